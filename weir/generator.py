"""produce.yaml → rows that look like a pipeline's own, and the ways in which they go wrong. Sent by produce.py."""

import math
from abc import abstractmethod
from bisect import bisect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2s
from itertools import accumulate, count
from pathlib import Path
from random import Random
from string import Formatter
from typing import Annotated, Any

from pydantic import BaseModel, Field, GetCoreSchemaHandler, ValidationError, model_validator
from pydantic_core.core_schema import CoreSchema, tagged_union_schema

from weir.loader import Where, read_yaml
from weir.pipeline import Declared, Duration, Name, Pipeline, Stream, Table, nearest
from weir.refusal import Refusal

Row = dict[str, Any]
"""A message before it is JSON. A column that is absent is not in it."""
Make = Callable[[datetime, Row, Row | None], Any]
"""Event time, the row so far, and the row of the event that this one follows → the column's value."""

ABSENT = object()
TURNS = 4
"""With `visit`, a quarter of the range is active at a time: the rest is three visits long."""
BELOW_ONE = 0.999_999
"""(n + this) to the power of a random number below 1 is log-uniform over 1 … n, and never rounds up to n + 1."""
INTEGERS = ("tinyint", "smallint", "int", "bigint")


def is_number(wire: str) -> bool:
    return wire in (*INTEGERS, "float", "double") or wire.startswith("decimal")


def iso_millis(instant: datetime) -> str:
    """An instant in UTC as 2026-07-26T12:00:00.000Z. (isoformat alone is a tenth of the time that an event takes.)"""
    minute, millis = divmod(round(instant.timestamp() * 1000), 60_000)
    return f"{_iso_minute(minute)}{millis // 1000:02}.{millis % 1000:03}Z"


@lru_cache(maxsize=4_096)
def _iso_minute(minute: int) -> str:
    return datetime.fromtimestamp(minute * 60, UTC).strftime("%Y-%m-%dT%H:%M:")


class Kind(Declared):
    """One way to make a column's value. `wire` is the type in which the message carries it."""

    @abstractmethod
    def fits(self, wire: str) -> bool: ...

    @abstractmethod
    def maker(self, wire: str, rng: Random, run: str) -> Make: ...


class Bare(Kind):
    """A kind that has no arguments: its name alone stands in the YAML."""

    @model_validator(mode="before")
    @classmethod
    def _no_arguments(cls, given: Any) -> Any:
        return {} if isinstance(given, str) else given


class EventTime(Bare):
    """When it occurred: ISO-8601 with milliseconds and Z, or epoch milliseconds where the message has a bigint."""

    def fits(self, wire: str) -> bool:
        return wire in ("string", "bigint")

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        if wire == "bigint":
            return lambda occurred_at, *_: round(occurred_at.timestamp() * 1000)
        return lambda occurred_at, *_: iso_millis(occurred_at)


class Absent(Bare):
    def fits(self, wire: str) -> bool:
        return True

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        return lambda *_: ABSENT


class Sequence(Kind):
    """An identity that no other run has: day, start and seed are inside. `{n}` stands for all of it."""

    sequence: Annotated[str, Field(pattern=r"\{n\}")]

    def fits(self, wire: str) -> bool:
        return wire == "string" or (wire == "bigint" and self.sequence == "{n}")

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        numbers = count(1)
        if wire == "bigint":
            # 21 bits for the run and 32 for the number: below 2^53, which every JSON reader keeps exactly.
            first = int.from_bytes(blake2s(run.encode(), digest_size=4).digest(), "big") >> 11 << 32
            return lambda *_: first + next(numbers)
        head, tail = self.sequence.split("{n}", 1)
        return lambda *_: f"{head}{run}-{next(numbers)}{tail}"


class Choice(Kind):
    """One of a list, or of a mapping from value to weight."""

    choice: Annotated[dict[str | bool | int | float, Annotated[float, Field(gt=0)]] | list[Any], Field(min_length=1)]

    def fits(self, wire: str) -> bool:
        return all(_json_fits(value, wire) for value in self.choice)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        random, values = rng.random, list(self.choice)
        if isinstance(self.choice, list):
            return lambda *_: values[int(random() * len(values))]
        bounds = list(accumulate(self.choice.values()))
        total, last = bounds[-1], len(values) - 1
        return lambda *_: values[bisect(bounds, random() * total, 0, last)]


class Skewed(Kind):
    """An integer from a range, of which the low ones are frequent (Zipf: 5 % of them make up two thirds).

    `visit` is for people: each is active that long, then rests while the others have their turn. Without it, the
    few who do most would be active without a pause all day.
    """

    skewed: tuple[int, int]
    visit: Duration | None = None

    @model_validator(mode="after")
    def _a_range(self) -> "Skewed":
        low, high = self.skewed
        if high - low + 1 < (TURNS if self.visit else 1):
            raise ValueError(f"[{low}, {high}] is too small a range")
        if self.visit is not None and self.visit.total_seconds() < 1:
            raise ValueError("a visit takes at least 1 second")
        return self

    def fits(self, wire: str) -> bool:
        return wire == "string" or is_number(wire)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        low, high = self.skewed
        random, size = rng.random, high - low + 1
        if self.visit is None:
            beyond = size + BELOW_ONE
            return _as_wire(wire, lambda *_: low - 1 + int(beyond ** random()))
        visit_seconds, beyond_turn = int(self.visit.total_seconds()), size // TURNS + BELOW_ONE

        def visitor(occurred_at: datetime, *_: Any) -> int:
            turn = int(occurred_at.timestamp()) // visit_seconds % TURNS
            return low + turn + (int(beyond_turn ** random()) - 1) * TURNS

        return _as_wire(wire, visitor)


class Uniform(Kind):
    """An integer from a range, all equally frequent, both ends included."""

    between: tuple[int, int]

    @model_validator(mode="after")
    def _a_range(self) -> "Uniform":
        if self.between[0] > self.between[1]:
            raise ValueError(f"{list(self.between)} is not a range: the lower end comes first")
        return self

    def fits(self, wire: str) -> bool:
        return wire == "string" or is_number(wire)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        low, high = self.between
        random, size = rng.random, high - low + 1
        return _as_wire(wire, lambda *_: low + int(random() * size))


class Money(Kind):
    """A lognormal amount: half lie below `money`; two thirds within a factor of e^spread around it."""

    money: Annotated[float, Field(gt=0)]
    spread: Annotated[float, Field(gt=0, le=3)] = 0.8

    def fits(self, wire: str) -> bool:
        return wire == "string" or (is_number(wire) and wire not in INTEGERS)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        lognormal, mean, spread = rng.lognormvariate, math.log(self.money), self.spread
        if wire == "string":
            return lambda *_: f"{lognormal(mean, spread):.2f}"
        return lambda *_: round(lognormal(mean, spread), 2)


class Phrase(Kind):
    """One word of each list, joined by a space; an empty word leaves its place out."""

    phrase: Annotated[list[Annotated[list[str], Field(min_length=1)]], Field(min_length=1)]

    def fits(self, wire: str) -> bool:
        return wire == "string"

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        random, lists = rng.random, self.phrase
        return lambda *_: " ".join([word for words in lists if (word := words[int(random() * len(words))])])


class Text(Kind):
    """Text with columns that stand above it: `customer{customer_id}@example.com`."""

    text: str

    @model_validator(mode="after")
    def _is_a_template(self) -> "Text":
        self.columns()
        return self

    def columns(self) -> list[str]:
        return [field for _, field, _, _ in Formatter().parse(self.text) if field is not None]

    def fits(self, wire: str) -> bool:
        return wire == "string"

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        template = self.text
        return lambda _, row, __: template.format_map(row)


class Constant(Kind):
    constant: Any

    def fits(self, wire: str) -> bool:
        return _json_fits(self.constant, wire)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        return lambda *_: self.constant


OWN_KINDS: dict[str, type[Kind]] = {
    "event_time": EventTime, "absent": Absent, "sequence": Sequence, "choice": Choice, "skewed": Skewed,
    "between": Uniform, "money": Money, "phrase": Phrase, "text": Text, "constant": Constant,
}  # fmt: skip


@dataclass(frozen=True)
class OneOf:
    """Has pydantic read a kind by the word that names it: `{money: 38}`, or `event_time` alone."""

    kinds: dict[str, type[Kind]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        choices = {word: handler.generate_schema(kind) for word, kind in self.kinds.items()}
        return tagged_union_schema(choices, discriminator=self.word_of)

    def word_of(self, given: Any) -> str | None:
        if isinstance(given, dict):
            return next((word for word in given if word in self.kinds), next(map(str, given), None))
        return next((word for word, kind in self.kinds.items() if isinstance(given, kind)), str(given))


class Copied(Kind):
    """The value that this column has in the event that is followed; `otherwise` for events that follow none."""

    copied: Name
    otherwise: Annotated[Kind, OneOf(OWN_KINDS)] = Absent()

    def fits(self, wire: str) -> bool:
        return self.otherwise.fits(wire)

    def maker(self, wire: str, rng: Random, run: str) -> Make:
        column, alone = self.copied, self.otherwise.maker(wire, rng, run)
        return lambda at, row, leader: alone(at, row, None) if leader is None else leader.get(column, ABSENT)


KINDS = OWN_KINDS | {"copied": Copied}


def _as_wire(wire: str, make: Make) -> Make:
    return (lambda *given: str(make(*given))) if wire == "string" else make


def _json_fits(value: Any, wire: str) -> bool:
    match value:
        case None:
            return True
        case bool():
            return wire == "boolean"
        case str():
            return wire == "string"
        case int():
            return is_number(wire)
        case float():
            return is_number(wire) and wire not in INTEGERS
    return wire.startswith(("array<", "map<", "struct<"))


class Dirty(Declared):
    """One column spoilt: another `value`, the value inside another text (`format: "-{value}"`), or no field at all."""

    column: Name
    value: Any = None
    format: Annotated[str, Field(pattern=r"\{value\}")] | None = None
    absent: bool = False

    @model_validator(mode="after")
    def _one_change(self) -> "Dirty":
        if ("value" in self.model_fields_set) + (self.format is not None) + self.absent != 1:
            raise ValueError("needs exactly one of value, format and absent: true")
        return self

    def spoil(self, row: Row) -> Row:
        if self.absent:
            return {name: value for name, value in row.items() if name != self.column}
        if self.format is not None:
            return row | {self.column: self.format.replace("{value}", str(row.get(self.column)))}
        return row | {self.column: self.value}


class Follows(Declared):
    """These events come after one of another source, which stands above: a payment after its order."""

    source: Name
    after: tuple[Duration, Duration]
    share: Annotated[float, Field(gt=0, le=1)] = 1.0

    @model_validator(mode="after")
    def _a_range(self) -> "Follows":
        if self.after[0] > self.after[1]:
            raise ValueError("after: the shorter delay comes first")
        return self


class Source(Declared):
    """What one stream or table gets: how often, how each column is made, how it goes wrong."""

    weight: Annotated[float, Field(gt=0)]
    follows: Follows | None = None
    columns: dict[Name, Annotated[Kind, OneOf(KINDS)]] = Field(min_length=1)
    dirty: dict[Name, Dirty] = Field(default={})


Share = Annotated[float, Field(ge=0, le=1)]


class Shares(Declared):
    """Which part of the events has which fault. An event has at most one."""

    dirty: Share = 0.02
    late: Share = 0.01
    duplicate: Share = 0.01
    out_of_order: Share = 0.05
    skewed: Share = 0.01
    future: Share = 0.001

    @model_validator(mode="after")
    def _at_most_all(self) -> "Shares":
        if (total := sum(self.model_dump().values())) > 1 + 1e-9:
            raise ValueError(f"the shares add up to {total:g}: at most 1, an event has one fault")
        return self


NIGHT_TO_EVENING = [12, 7, 4, 3, 3, 5, 12, 28, 48, 62, 74, 86, 96, 88, 76, 72, 76, 86, 96, 100, 94, 74, 46, 24]
"""How busy a shop is at each full hour, UTC: quiet nights, a peak at noon, a higher one in the evening."""


class ProduceDeclaration(Declared):
    """All of produce.yaml. A source that is not named in it gets no events."""

    shares: Shares = Shares()
    busy: list[Annotated[float, Field(gt=0)]] = Field(default=[float(hour) for hour in NIGHT_TO_EVENING], min_length=24, max_length=24)
    sources: dict[Name, Source] = Field(min_length=1)


def row_maker(source: Source, contract: Stream | Table, rng: Random, run: str) -> Callable[[datetime, Row | None], Row]:
    """From event time, and the row that is followed, to a row; columns in the order of produce.yaml."""
    makers = [(name, kind.maker(contract.columns[name].wire_type, rng, run)) for name, kind in source.columns.items()]

    def make_row(occurred_at: datetime, leader: Row | None) -> Row:
        row: Row = {}
        for name, make in makers:
            if (value := make(occurred_at, row, leader)) is not ABSENT:
                row[name] = value
        return row

    return make_row


def load_produce(folder: Path, pipeline: Pipeline) -> ProduceDeclaration:
    """Read produce.yaml of a pipeline's folder; every error says file:line and, where one is near, the valid word."""
    file = folder / "produce.yaml"
    given, where = read_yaml(file)
    try:
        declaration = ProduceDeclaration.model_validate(given)
    except ValidationError as error:
        raise Refusal("\n".join(_say(file, where, e) for e in error.errors())) from None
    if problems := [f"{file}:{_line(where, path)}: {text}" for path, text in _misfits(declaration, pipeline)]:
        raise Refusal("\n".join(problems))
    return declaration


def _misfits(declaration: ProduceDeclaration, pipeline: Pipeline) -> Iterator[tuple[tuple[str, ...], str]]:
    """Where produce.yaml does not go with pipeline.yaml: the path of the words, and what is wrong."""
    above: dict[str, Source] = {}
    for name, source in declaration.sources.items():
        path = ("sources", name)
        contract = pipeline.sources.get(name)
        if contract is None:
            yield path, f"'{name}' is no stream or table of {pipeline.name}{nearest(name, pipeline.sources)}"
            continue
        if source.follows and source.follows.source not in above:
            yield (*path, "follows"), f"{name} follows '{source.follows.source}', which must be a source that stands above it"
            continue
        needed = [column for column, declared in contract.columns.items() if not declared.optional]
        for column in dict.fromkeys([contract.identity, contract.occurred_at, *needed]):
            if column not in source.columns:
                yield (*path, "columns"), f"{name} needs column '{column}'"
        for variant, dirty in source.dirty.items():
            if dirty.column not in contract.columns:
                yield (*path, "dirty", variant), f"{name} has no column '{dirty.column}'{nearest(dirty.column, contract.columns)}"
        for column, text in _misfit_columns(source, contract, above, pipeline):
            yield (*path, "columns", column), f"{name}.{column}: {text}"
        above[name] = source


def _misfit_columns(source: Source, contract: Stream | Table, above: dict[str, Source], pipeline: Pipeline) -> Iterator[tuple[str, str]]:
    always: list[str] = []
    for name, kind in source.columns.items():
        column = contract.columns.get(name)
        if column is None:
            yield name, f"there is no such column{nearest(name, contract.columns)}"
            continue
        if not kind.fits(column.wire_type):
            yield name, f"'{OneOf(KINDS).word_of(kind)}' cannot make this: the message has a {column.wire_type} here"
        if name == contract.occurred_at and not isinstance(kind, EventTime):
            yield name, "is the event time: write event_time"
        if isinstance(kind, Text) and (unknown := [field for field in kind.columns() if field not in always]):
            yield name, f"'{unknown[0]}' is no column that stands above it and is always there"
        if isinstance(kind, Copied):
            yield from ((name, text) for text in _miscopied(kind, column.wire_type, source, above, pipeline))
        alone = kind.otherwise if isinstance(kind, Copied) and source.follows and source.follows.share < 1 else kind
        if isinstance(alone, Absent) and not column.optional:
            yield name, "is not optional: say how it is made where there is nothing to copy (otherwise: …)"
        elif not isinstance(alone, Absent):
            always.append(name)


def _miscopied(kind: Copied, wire: str, source: Source, above: dict[str, Source], pipeline: Pipeline) -> Iterator[str]:
    if source.follows is None:
        yield "copies, but the source has no follows"
        return
    leader = source.follows.source
    if kind.copied not in above[leader].columns:
        yield f"{leader} makes no column '{kind.copied}'{nearest(kind.copied, above[leader].columns)}"
    elif (theirs := pipeline.sources[leader].columns.get(kind.copied)) and theirs.wire_type != wire:
        yield f"{leader}.{kind.copied} is a {theirs.wire_type} in its message, this a {wire}"


def _line(where: Where, path: tuple[str | int, ...]) -> int:
    while path and path not in where:
        path = path[:-1]
    return where.get(path, 1)


def _say(file: Path, where: Where, error: Any) -> str:
    """One line for one of pydantic's errors. Of its path, the word that chose the kind of a column is left out."""
    loc = tuple(part for part in error["loc"] if part != "[key]")
    chosen = {i for i in range(1, len(loc)) if loc[i - 1] == "otherwise" or (i == 4 and loc[2] == "columns")}
    path = tuple(part for i, part in enumerate(loc) if i not in chosen)
    place, name, parent = f"{file}:{_line(where, path)}", ".".join(map(str, path)), ".".join(map(str, path[:-1]))
    match error["type"]:
        case "extra_forbidden":
            return f"{place}: unknown word '{path[-1]}' in {parent or 'produce.yaml'}{nearest(str(path[-1]), _words_at(loc[:-1]))}"
        case "missing":
            return f"{place}: {parent or 'produce.yaml'} needs '{path[-1]}'"
        case "union_tag_invalid" | "union_tag_not_found":
            word = str(error["ctx"].get("tag", error["input"]))
            return f"{place}: {name}: '{word}' is no way to make a value{nearest(word, KINDS)}"
        case "value_error":
            return f"{place}: {name}: {error['ctx']['error']}"
    return f"{place}: {name}: {error['msg'][0].lower()}{error['msg'][1:]}"


def _words_at(loc: tuple[str | int, ...]) -> list[str]:
    """The valid keys of the mapping at this path of pydantic's."""
    model: type[BaseModel] = ProduceDeclaration
    match loc:
        case ("shares",):
            model = Shares
        case ("sources", _):
            model = Source
        case ("sources", _, "follows"):
            model = Follows
        case ("sources", _, "dirty", _):
            model = Dirty
        case ("sources", _, "columns", _, *_, str(kind)):
            model = KINDS[kind]
    return list(model.model_fields)
