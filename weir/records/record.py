"""The JSON that one process writes and another reads. Small files, whole or absent."""

from pathlib import Path
from typing import Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from weir.lake_files import read_whole, sign, write_whole


class Record(BaseModel):
    """Written atomically and only for its owner to read (0600 in a 0700 folder). Readers ignore fields they do not know: a driver outlives
    an upgrade."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    def write(self, file: Path) -> None:
        write_whole(file, self.model_dump_json(indent=1))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None where there is no such record; a record that cannot be read is an error, never a guess."""
        try:
            return cls.model_validate_json(read_whole(file))
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise ValueError(f"{file}: not a {cls.__name__} record ({error.error_count()} errors)") from None


_READ: dict[Path, tuple[tuple[Any, ...], Record | None]] = {}
_MOST_READ = 512
R = TypeVar("R", bound=Record)


def read_once(of: type[R], file: Path) -> R | None:
    """The record, parsed again only when its file is another one: records are replaced whole, and never changed."""
    try:
        signed = sign(file)
    except FileNotFoundError:
        return None
    known = _READ.get(file)
    if known is None or known[0] != signed or not isinstance(known[1], of):
        if len(_READ) >= _MOST_READ:
            _READ.clear()
        known = _READ[file] = (signed, of.read(file))
    return known[1]  # type: ignore[return-value]
