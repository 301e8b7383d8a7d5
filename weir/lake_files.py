"""Files and folders of the lake, on a disk or in an object store: paths with pathlib's methods either way.

Other processes, also on other machines, write there too. So a file is seen whole or not at all, of two that create the same one only
one succeeds, and what was listed before is never remembered.
"""

import os
import secrets
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, cast

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_random

from weir.refusal import Refusal

OBJECT_STORE = "s3a://"
"""How the lake's root begins where it is in an object store. Hadoop, fsspec, deltalake and DuckDB all know the word."""


def is_remote(path: Path | str) -> bool:
    return str(path).startswith(OBJECT_STORE)


def lake_path(path: str) -> Path:
    if not is_remote(path):
        return Path(path)
    from upath import UPath  # a lake on a disk does not have to wait for it

    return cast(Path, UPath(path, use_listings_cache=False))


def object_store() -> Any:
    """fsspec's file system of the store, which the environment describes in the words of AWS."""
    import fsspec

    return fsspec.filesystem("s3", use_listings_cache=False)


def endpoint() -> str | None:
    """Of a store that is not Amazon's own."""
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


def delta_options(path: str) -> dict[str, str] | None:
    """What deltalake has to be told beside the environment."""
    return {"AWS_ALLOW_HTTP": "true"} if is_remote(path) and (endpoint() or "").startswith("http://") else None


def arrow_file(path: str) -> tuple[Any, str]:
    """Arrow's file system, and what it calls this file."""
    if not is_remote(path):
        return _arrow_disk(), path
    return _arrow_store(), path.removeprefix(OBJECT_STORE)


@cache
def _arrow_disk() -> Any:
    from pyarrow.fs import LocalFileSystem

    return LocalFileSystem()


@cache
def _arrow_store() -> Any:
    from pyarrow.fs import S3FileSystem

    return S3FileSystem(endpoint_override=endpoint(), region=os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION"))


def read_whole(file: Path) -> bytes:
    """As it is at one moment, however often others replace it. FileNotFoundError where there is none."""
    if is_remote(file):  # one request: to open it would look it up first, and be refused what was replaced since
        remote = cast(Any, file)
        return cast(bytes, remote.fs.cat_file(remote.path))
    return file.read_bytes()


def write_whole(file: Path, text: str) -> None:
    """Write a file that readers see whole or not at all, and on a disk only its owner sees."""
    if is_remote(file):
        file.write_bytes(text.encode())
        return
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = _written_beside(file, text)
    try:
        temporary.replace(file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_new(file: Path, text: str) -> bool:
    """Write a file that is not there yet; False when it is, whoever was first by however little. No two texts are the same."""
    if is_remote(file):
        _check_conditional(file)
        return _create_object(file, text)
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    temporary = _written_beside(file, text)
    try:
        os.link(temporary, file)
        return True
    except FileExistsError:
        return False
    finally:
        temporary.unlink()


def _written_beside(file: Path, text: str) -> Path:
    handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as opened:
            opened.write(text)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return Path(temporary)


class _UndecidedError(OSError):
    """Another one is just being created: the store cannot say yet who was first."""


@retry(retry=retry_if_exception_type(_UndecidedError), wait=wait_random(0.05, 0.5), stop=stop_after_delay(30), reraise=True)
def _create_object(file: Any, text: str) -> bool:
    try:
        file.fs.pipe_file(file.path, text.encode(), mode="create")
    except OSError as error:
        match getattr(error.__cause__, "response", {}).get("Error", {}).get("Code"):
            case "PreconditionFailed":
                # A request that was sent again because its answer got lost is refused by what it has itself written.
                return read_whole(file) == text.encode()
            case "ConditionalRequestConflict":
                raise _UndecidedError(f"{file}: others create it, too") from error
        raise
    return True


_CHECKED: set[str] = set()


def _check_conditional(file: Any) -> None:
    """Refuse a store that overwrites where it was asked not to: two drivers would both believe that they are the one. Once a process."""
    bucket = file.path.split("/")[0]
    if bucket in _CHECKED:
        return
    probe = file.parent / f".probe-{secrets.token_hex(4)}"
    try:
        created, overwritten = _create_object(probe, "first"), _create_object(probe, "second")
        probe.unlink(missing_ok=True)
    except Exception as error:
        raise Refusal(store_trouble(error) or f"the lake's bucket {bucket} cannot be written: {error}") from None
    if overwritten or not created:
        raise Refusal(f"{OBJECT_STORE}{bucket}: the store does not refuse to create what is there: it needs conditional writes")
    _CHECKED.add(bucket)


def store_trouble(error: Exception) -> str | None:
    """What to tell a person of an exception, where it comes from the object store."""
    where = f"the lake's object store ({endpoint() or 'AWS'})"
    if type(error).__module__.startswith(("botocore", "aiobotocore")):
        return f"{where} cannot be used: {str(error).rstrip('.')}; see AWS_ENDPOINT_URL, AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    if isinstance(error, PermissionError) and hasattr(error.__cause__, "response"):
        return f"{where} says no: {error.strerror or error}; see AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
    return None


def sign(file: Path) -> tuple[Any, ...]:
    """Another one whenever the file is another. FileNotFoundError where there is none."""
    if is_remote(file):
        remote = cast(Any, file)
        return (remote.fs.info(remote.path)["ETag"],)
    stat = file.stat()
    return stat.st_mtime_ns, stat.st_ino, stat.st_size


def files_below(folder: Path) -> dict[str, float]:
    """All files in a folder and its folders, by their name below it: when each was written, in seconds since 1970."""
    if is_remote(folder):
        remote = cast(Any, folder)
        found = remote.fs.find(remote.path, detail=True)
        return {name.removeprefix(f"{remote.path.rstrip('/')}/"): own["LastModified"].timestamp() for name, own in found.items()}
    times: dict[str, float] = {}
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # others write there: what was temporary is gone
            if file.is_file():
                times[file.relative_to(folder).as_posix()] = file.stat().st_mtime
    return times


def written_at(path: Path) -> float:
    """When a file, or the last file of a folder, was written. An object store has no folders that could tell it."""
    if not is_remote(path) or path.is_file():
        return path.stat().st_mtime
    return max(files_below(path).values(), default=0.0)


def remove_folder(folder: Path) -> None:
    """With all that is in it. Where there is none, nothing is done."""
    remote = cast(Any, folder)
    with suppress(FileNotFoundError):
        remote.fs.rm(remote.path, recursive=True) if is_remote(folder) else shutil.rmtree(folder)
