"""What people ask about quarantined rows, checked before anything is done, and the arguments of the job that does it.

What is asked may come from a form, a run's configuration or the command line: each value is checked here, and becomes one
element of a list of arguments, whatever is in it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Annotated, Any, Literal, Self

from pydantic import StringConstraints, ValidationError, model_validator

from weir.pipeline import Name
from weir.records.record import Record
from weir.refusal import Refusal

RULE = r"[A-Za-z0-9_][A-Za-z0-9_,:#]{0,299}"
"""A reason of a row: `amount:be_between#2`, `undecodable:not_json`."""
MOST_NOTE_CHARACTERS = 500
NOTE = r"[^\x00-\x1f\x7f]+"
"""One line."""


@dataclass(frozen=True)
class QuarantineFilter:
    """Which quarantined rows are meant. Days are days of arrival, both inclusive."""

    stream: str | None = None
    rule: str | None = None
    since: date | None = None
    until: date | None = None


class QuarantineAct(Record):
    """What is to be done about which quarantined rows of a stream. A preview changes nothing."""

    act: Literal["preview", "replay", "discard"]
    stream: Name
    rule: Annotated[str, StringConstraints(pattern=f"^{RULE}$")] | None = None
    since: date | None = None
    until: date | None = None
    note: Annotated[str, StringConstraints(strip_whitespace=True, pattern=f"^{NOTE}$", max_length=MOST_NOTE_CHARACTERS)] | None = None

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.since and self.until and self.since > self.until:
            raise ValueError("the first day is after the last")
        if self.act == "discard" and not self.note:
            raise ValueError("who discards rows says why, in a note")
        return self

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "QuarantineAct":
        """From a form or a run's configuration; an empty value is none. What is wrong is said in one line."""
        given = {name: settings[name] for name in QuarantineAct.model_fields if settings.get(name) not in (None, "")}
        if isinstance(note := given.get("note"), str) and not note.strip():
            del given["note"]
        try:
            return QuarantineAct.model_validate(given)
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = str(first["loc"][0]) if first["loc"] else ""
            words = (
                f"it is one line of at most {MOST_NOTE_CHARACTERS} characters"
                if where == "note"
                else _WORDS.get(first["type"], first["msg"])
            )
            raise Refusal(f"{where}: {words}" if where else words.removeprefix("Value error, ")) from None

    def asking(self) -> QuarantineFilter:
        return QuarantineFilter(self.stream, self.rule, self.since, self.until)

    def settings(self) -> dict[str, str]:
        """As a run's configuration, without what was not given."""
        return {name: str(value) for name, value in self.model_dump(exclude_none=True).items()}

    def job_options(self) -> list[str]:
        """The arguments of the job. A value stands in one element together with its option: none can become an option itself."""
        given = {name: value for name, value in self.settings().items() if name != "act"}
        act = "discard" if self.act == "discard" else "replay"
        return [f"--act={act}", *(f"--{name}={value}" for name, value in given.items()), *(["--apply"] if self.act == "replay" else [])]


_WORDS = {
    "missing": "it is needed",
    "string_pattern_mismatch": "there is no such name",
    "literal_error": "it is preview, replay or discard",
    "date_from_datetime_parsing": "a day is written like 2026-03-01",
    "date_parsing": "a day is written like 2026-03-01",
}


class QuarantinedStream(Record):
    """The open quarantined rows of one stream."""

    rows: int
    oldest: datetime
    expiring: int
    """Rows that will be kept for three more days at most."""
    expires_at: datetime | None
    """When the time of the first of them ends; None of a stream that is no longer declared: its rows stay."""


class QuarantineSummary(Record):
    """The open quarantined rows of a pipeline as its jobs last counted them, so that a page over all pipelines counts nothing."""

    streams: dict[str, QuarantinedStream]
    written_at: datetime

    @property
    def rows(self) -> int:
        return sum(own.rows for own in self.streams.values())

    @property
    def expiring(self) -> int:
        return sum(own.expiring for own in self.streams.values())

    @property
    def oldest(self) -> datetime | None:
        return min((own.oldest for own in self.streams.values()), default=None)
