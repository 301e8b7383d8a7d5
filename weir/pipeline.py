"""What a pipeline is: streams with a contract, tables, and views. Loaded from YAML and SQL by loader.py, run by spark_jobs."""

import hashlib
import json
import re
import weakref
from collections.abc import Callable
from datetime import date, timedelta
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    StringConstraints,
    ValidationError,
    model_validator,
)

from weir.event_time import format_duration, parse_duration
from weir.expectations import Expectations, nearest, refusal_at
from weir.sql_text import bare_sql, looks_beyond_its_day, normal_sql, relations_in, window_length

Name = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]{0,62}$")]
Topic = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,249}$")]
Duration = Annotated[
    timedelta,
    BeforeValidator(lambda v: parse_duration(v) if isinstance(v, str) else v),
    PlainSerializer(format_duration),
]
SqlType = Annotated[
    str,
    BeforeValidator(lambda v: v.lower().strip() if isinstance(v, str) else v),
    StringConstraints(
        pattern=r"^(string|boolean|tinyint|smallint|int|bigint|float|double|date|timestamp"
        r"|decimal\(\d{1,2}, ?\d{1,2}\)|(array|map|struct)<.+>)$"
    ),
]

ConnectionId = Annotated[str, StringConstraints(pattern=r"^[\w.-]{1,200}$")]


def at_least(shortest: timedelta) -> Callable[[timedelta], timedelta]:
    def check(given: timedelta) -> timedelta:
        if given < shortest:
            raise ValueError(f"must be at least {format_duration(shortest)}")
        return given

    return check


COORDINATES = ("topic", "partition", "offset", "received_at")
"""Where a message stands in the log and when it came: columns of every raw row, so no contract may use these names."""


class Declared(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class Column(Declared):
    """One field of the contract. `from` is its type in the message where that differs; `clean` is Spark SQL."""

    type: SqlType
    from_type: SqlType | None = Field(default=None, alias="from")
    clean: str | None = None
    optional: bool = False
    private: bool = False

    @property
    def wire_type(self) -> str:
        """How the message's JSON is read. Times are read as text, because Spark misreads numbers and zone-less times."""
        if self.from_type is not None:
            return self.from_type
        return "string" if self.type in ("timestamp", "date") else self.type

    @property
    def is_parsed_time(self) -> bool:
        return self.from_type is None and self.type in ("timestamp", "date")


def read_share(given: Any) -> Any:
    """'5 %' → 0.05; a number stays."""
    if isinstance(given, str) and (percent := re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*%\s*", given)):
        return float(percent.group(1)) / 100
    return given


class SourceLevels(Declared):
    """What is promised of a stream or table: broken promises are shown and told."""

    behind: int | None = Field(default=None, ge=0)
    """Messages in the log that the slowest reader has not read, at most."""
    rejected: Annotated[float, BeforeValidator(read_share), Field(ge=0, le=1)] | None = None
    """Share of a day's rows that are set aside, at most."""


class ViewLevels(Declared):
    """What is promised of a view."""

    freshness: Duration | None = None
    """How old a message may be that it does not show yet, at most."""


class Contract(Declared):
    """What streams and tables share: a topic, its columns, and what is expected of them."""

    topics: Annotated[list[Topic], BeforeValidator(lambda v: [v] if isinstance(v, str) else v)] = Field(alias="topic", min_length=1)
    """Where it arrives: one topic, or several that are merged."""
    partitions: int = Field(default=2, ge=1, le=1_000)
    columns: dict[Name, Column] = Field(min_length=1)
    unknown_fields: Literal["reject", "ignore"] = "reject"
    keep_quarantined: Duration = timedelta(days=30)
    """How long people have to look at what was set aside."""
    levels: SourceLevels = SourceLevels()
    expectations: Expectations = []

    @model_validator(mode="before")
    @classmethod
    def _short_columns(cls, given: Any) -> Any:
        """`order_id: string` is short for `order_id: {type: string}`."""
        if isinstance(given, dict) and isinstance(given.get("columns"), dict):
            columns = {k: {"type": v} if isinstance(v, str) else v for k, v in given["columns"].items()}
            return {**given, "columns": columns}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "Contract":
        for reserved in COORDINATES:
            if reserved in self.columns:
                raise ValueError(f"column '{reserved}' has the name of a coordinate: choose another")
        types = {name: column.type for name, column in self.columns.items()}
        misfits = [
            (("expectations", place, expectation.name), wrong)
            for place, expectation in enumerate(self.expectations)
            for wrong in expectation.misfits(types)
        ]
        if misfits:
            raise refusal_at(misfits)
        return self

    @property
    def topic(self) -> str:
        """The first of its topics: where events are sent to."""
        return self.topics[0]

    @property
    def private_columns(self) -> list[str]:
        return [name for name, column in self.columns.items() if column.private]

    def _must_be_column(self, name: str, where: str) -> None:
        if name not in self.columns:
            raise ValueError(f"{where} names column '{name}', which is not declared{nearest(name, self.columns)}")


class Stream(Contract):
    """One kind of event. The same identity again is a duplicate; `lateness` is how long the speed layer waits."""

    identity: Name
    occurred_at: Name
    sent_at: Name | None = None
    """When the device sent the message, by the clock by which it occurred. With it a wrong clock is corrected: what counts is how
    long before its sending an event occurred."""
    oldest: Duration = timedelta(days=3650)
    """What occurred longer before its arrival is absurd, and rejected: a clock that was never set."""
    lateness: Duration = timedelta(minutes=10)
    references: dict[Name, Name] = {}
    """Column → the table in which its value must be a key. Checked by the micro-batch, which knows the tables."""

    @model_validator(mode="after")
    def _names_columns(self) -> "Stream":
        self._must_be_column(self.identity, "identity")
        self._must_be_column(self.occurred_at, "occurred_at")
        if self.sent_at is not None:
            self._must_be_column(self.sent_at, "sent_at")
        for word, column in (("occurred_at", self.occurred_at), ("sent_at", self.sent_at)):
            if column is not None and self.columns[column].type != "timestamp":
                raise ValueError(f"{word} names column '{column}', which must be of type timestamp")
        return self


VERSION = ("valid_from", "valid_to", "recorded_at")
"""What Weir knows of a row of a table beside its columns: since when it holds, until when, and when its change arrived."""


class Table(Contract):
    """A changelog, of which every version is kept: the last change of each key is the table's row."""

    key: Name
    changed_at: Name
    deleted: str | None = None
    """A condition in Spark SQL on the change: from then on the key has no row."""

    @model_validator(mode="after")
    def _names_columns(self) -> "Table":
        self._must_be_column(self.key, "key")
        self._must_be_column(self.changed_at, "changed_at")
        if self.columns[self.changed_at].type != "timestamp":
            raise ValueError(f"changed_at names column '{self.changed_at}', which must be of type timestamp")
        if taken := next((name for name in VERSION if name in self.columns), None):
            raise ValueError(f"column '{taken}' has a name by which Weir tells of versions: choose another")
        return self

    @property
    def identity(self) -> str:
        return self.key

    @property
    def occurred_at(self) -> str:
        return self.changed_at


TIMES = "times is a number from 1 to 100, a range like 2-4, or 3+ for three and more"


def _read_times(given: Any) -> Any:
    """`3` is three, `3+` three or more, `2-4` two to four."""
    if not isinstance(given, int | str):
        return given
    found = re.fullmatch(r"(\d{1,4})(\+|-(\d{1,4}))?", str(given).replace(" ", ""))
    if found is None:
        raise ValueError(TIMES)
    least = int(found[1])
    return least, None if found[2] == "+" else int(found[3] or least)


class Step(Declared):
    """A condition on events, met so many times one after the other; or one that no event may meet in its place."""

    of: Name | None = None
    """The stream, where it is not the pattern's."""
    when: str | None = Field(default=None, min_length=1)
    not_when: str | None = Field(default=None, alias="not", min_length=1)
    times: Annotated[tuple[int, int | None], BeforeValidator(_read_times)] = (1, 1)

    @model_validator(mode="after")
    def _one_of_both(self) -> "Step":
        if (self.when is None) == (self.not_when is None):
            raise ValueError("a step says either `when` or `not`")
        least, most = self.times
        if least < 1 or (most is not None and most < least) or (most or least) > 100:
            raise ValueError(TIMES)
        if self.not_when is not None and self.times != (1, 1):
            raise ValueError("what must not happen has no `times`")
        return self

    @property
    def condition(self) -> str:
        return self.when or self.not_when or ""


class Pattern(Declared):
    """Steps that the events of one key take one after the other, the last one so long after the first at most."""

    of: Name
    by: Name
    within: Annotated[Duration, AfterValidator(at_least(timedelta(milliseconds=1)))]
    steps: list[Step] = Field(min_length=1, max_length=20)

    @model_validator(mode="after")
    def _begins_with_an_event(self) -> "Pattern":
        if self.steps[0].not_when is not None:
            raise ValueError("a pattern begins with something that happens: its first step says `when`")
        return self

    @property
    def streams(self) -> list[str]:
        return list(dict.fromkeys(step.of or self.of for step in self.steps))

    @property
    def waits(self) -> bool:
        """Whether what is still to come can take a match away: then it is told when nothing can come any more."""
        return any(step.not_when is not None for step in self.steps)

    @property
    def reach(self) -> timedelta:
        """What is told at the end of the time depends on events before its first one, too."""
        return 2 * self.within if self.steps[-1].not_when is not None else self.within


MATCH_TIME, MATCH_KEY = "matched_at", "last_event"


class View(Declared):
    """One SQL query over streams, or a pattern. Its grain is its key, the first grain column is its time.

    `reach` is how far events outside of a day can change that day's cells: the length of a hopping window, the
    longest session, the interval of a join. Tumbling windows that divide a day need none.
    """

    grain: list[Name] = Field(min_length=1)
    sql: str = ""
    pattern: Pattern | None = None
    reach: Duration = timedelta(0)
    as_of: dict[Name, Name] = {}
    """Table → the column of the view's streams that holds its key: each event gets the table's row as it was when the event occurred, as a
    column with the table's name."""
    tolerance: float = Field(default=1e-9, ge=0, lt=1)
    """By how much of the larger one two floating point numbers may differ and still be equal: a sum depends on its order.
    Integers, decimals and texts are equal or not."""
    levels: ViewLevels = ViewLevels()
    expectations: Expectations = []
    """Checked on its closed cells. The columns are those of the query, which only Spark knows."""

    @model_validator(mode="before")
    @classmethod
    def _shape_of_a_pattern(cls, given: Any) -> Any:
        """A pattern has the same columns always, and says itself how far it reaches."""
        if not isinstance(given, dict) or not given.get("pattern"):
            return given
        try:
            pattern = Pattern.model_validate(given["pattern"])
        except ValidationError:  # said by the field itself, with its place
            return {**given, "grain": [MATCH_TIME]}
        own = {"sql": "", "grain": [MATCH_TIME, pattern.by, MATCH_KEY], "reach": format_duration(pattern.reach)}
        if wrong := next((word for word in own if given.get(word, own[word]) != own[word]), None):
            raise ValueError(f"a pattern has no `{wrong}` of its own")
        return {**given, **own}

    @model_validator(mode="after")
    def _reach_is_declared(self) -> "View":
        if not self.sql and not self.pattern:
            raise ValueError("needs its SQL or a pattern")
        if not self.reach and (what := looks_beyond_its_day(self.sql)):
            raise ValueError(f"{what} looks beyond its day: declare how far, for example `reach: 1 hour`")
        return self

    @property
    def time(self) -> str:
        return self.grain[0]

    @property
    def is_told_when_closed(self) -> bool:
        """Whether Spark tells a cell only when the watermark has passed it, instead of at each change or match."""
        if self.pattern:
            return self.pattern.waits
        what = looks_beyond_its_day(self.sql)
        return what == "a session window" or self.is_outer_join or (what == "a join" and "group by" in bare_sql(self.sql))

    @property
    def is_outer_join(self) -> bool:
        return re.search(r"\b(left|right|full)\s+(outer\s+)?join\b", bare_sql(self.sql)) is not None

    @property
    def span(self) -> timedelta:
        """How long a cell is: its window's length; a day where the SQL does not say it."""
        return timedelta(0) if self.pattern else window_length(self.sql) or timedelta(days=1)


class ServedQuery(Declared):
    """SQL over served views, for what a stream cannot compute: the top ten, a moving average, the last week. In DuckDB's words."""

    sql: str = Field(min_length=1)


class Watch(Declared):
    """What is told of a stream's rows within milliseconds of their arrival, to Kafka."""

    rejected: bool = True
    """Whether what is set aside is told, to `<topic>.rejected`, with its reasons."""
    alerts: dict[Name, str] = {}
    """By name: a condition in Spark SQL. Rows that meet one are told to `<pipeline>.alerts`."""


class Schedule(Declared):
    """When the parts of a pipeline run, who owns it, and who is told. All times are UTC; it changes no number."""

    owner: str = "weir"
    shift: Annotated[Duration, AfterValidator(at_least(timedelta(seconds=10)))] = timedelta(hours=6)
    """How long one run of the stream DAG looks after the driver before it hands it over."""
    microbatch: Annotated[Duration, AfterValidator(at_least(timedelta(minutes=1)))] = timedelta(minutes=5)
    nightly_at: Annotated[str, StringConstraints(pattern=r"^([01]\d|2[0-3]):[0-5]\d$")] = "02:00"
    nightly_within: Duration = timedelta(hours=3)
    """The night is late when it has not ended so long after it was due."""
    since: date | None = None
    """The first day that the nightly recomputes by itself. Without it only days from the first start on."""
    notify: list[ConnectionId] = []
    """Airflow connections that hear of red runs and late nights: mail (smtp) or a web hook (http)."""


LEAST_KEPT = timedelta(days=7)
"""Of raw: a night that failed over a long weekend can still be recomputed."""


_FINGERPRINTS: dict[int, dict[str, str]] = {}
"""Of the pipelines that are in use: a page asks for the same ones over and over. By object, because a copy may be changed."""


class Pipeline(Declared):
    name: Name = Field(alias="pipeline")
    schedule: Schedule = Schedule()
    keep_raw: Duration | None = None
    """How long raw is kept; None is for ever. No view's numbers depend on it."""
    streams: dict[Name, Stream] = Field(min_length=1)
    tables: dict[Name, Table] = {}
    views: dict[Name, View] = {}
    serve: dict[Name, ServedQuery] = {}
    watch: dict[Name, Watch] = {}

    @model_validator(mode="after")
    def _consistent(self) -> "Pipeline":
        names = [*self.streams, *self.tables, *self.views, *self.serve]
        topics = [topic for source in self.sources.values() for topic in source.topics]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"'{name}' names two things: streams, tables, views and served queries need names of their own")
        for topic in topics:
            if topics.count(topic) > 1:
                raise ValueError(f"topic '{topic}' is declared twice: one topic carries one stream")
        if self.keep_raw is not None and self.keep_raw < (least := LEAST_KEPT + self.reach):
            # Whole days up: what is said must be enough.
            what = f"must be at least {-(-least // timedelta(days=1))} days: a week, and the longest reach of a view"
            raise refusal_at([(("keep_raw",), what)])
        for name, stream in self.streams.items():
            for column, table in stream.references.items():
                stream._must_be_column(column, "references")
                if table not in self.tables:
                    raise ValueError(f"stream '{name}' refers to table '{table}', which is not declared{nearest(table, self.tables)}")
        for name, view in self.views.items():
            mentioned = relations_in(view.sql)
            if read := next((table for table in self.tables if table in mentioned), None):
                what = f"reads table '{read}': declare `as_of: {{{read}: <the column with its key>}}`, and use `{read}.<column>`"
                raise refusal_at([(("views", name), what)])
            for table in view.as_of:
                self._must_have_key(name, table)
            if view.pattern:
                self._must_match(name, view.pattern)
            elif not self.streams_of(name):
                hint = nearest(mentioned[0], self.streams) if mentioned else ""
                raise ValueError(f"view '{name}' reads none of the streams{hint}")
        for name in self.serve:
            self._must_be_served(name, [])
        for name in self.watch:
            if name not in self.streams:
                raise refusal_at([(("watch", name), f"'{name}' is no stream{nearest(name, self.streams)}")])
        return self

    def _must_have_key(self, name: str, table: str) -> None:
        """What a view looks up is a declared table, by a column of its streams that has the key's type."""
        column, where = self.views[name].as_of[table], ("views", name, "as_of", table)
        if table not in self.tables:
            raise refusal_at([(where, f"'{table}' is no table{nearest(table, self.tables)}")])
        streams = {own: self.streams[own].columns for own in self.streams_of(name)}
        known = list(dict.fromkeys(word for columns in streams.values() for word in columns))
        if column not in known:
            raise refusal_at([(where, f"none of its streams has a column '{column}'{nearest(column, known)}")])
        key = self.tables[table].columns[self.tables[table].key].type
        for own, columns in streams.items():
            if column in columns and columns[column].type != key:
                raise refusal_at([(where, f"'{column}' is {columns[column].type} in '{own}', the key of '{table}' is {key}")])
            if column in columns and table in columns:
                raise refusal_at([(where, f"stream '{own}' has a column of that name: rename the table")])

    def _must_match(self, name: str, pattern: Pattern) -> None:
        """Every stream of a pattern has its key, in one type."""
        named: dict[tuple[str | int, ...], str] = {("of",): pattern.of}
        named |= {("steps", place, "of"): step.of for place, step in enumerate(pattern.steps) if step.of}
        for path, stream in named.items():
            where = ("views", name, "pattern", *path)
            if stream not in self.streams:
                raise refusal_at([(where, f"'{stream}' is no stream{nearest(stream, self.streams)}")])
            columns = self.streams[stream].columns
            if pattern.by not in columns:
                what = f"stream '{stream}' has no column '{pattern.by}'{nearest(pattern.by, columns)}"
                raise refusal_at([(("views", name, "pattern", "by"), what)])
            if columns[pattern.by].type != (own := self.streams[pattern.of].columns[pattern.by].type):
                what = f"'{pattern.by}' is {columns[pattern.by].type} in '{stream}' and {own} in '{pattern.of}'"
                raise refusal_at([(("views", name, "pattern", "by"), what)])

    def _must_be_served(self, name: str, through: list[str]) -> None:
        """A served query reads views and other served queries, and never itself."""
        if name in through:
            raise refusal_at([(("serve", name), f"reads itself: {' → '.join([*through[through.index(name) :], name])}")])
        own = relations_in(self.serve[name].sql)
        if foreign := next((word for word in own if word in self.streams), None):
            raise refusal_at([(("serve", name), f"reads '{foreign}': served queries read views and tables{nearest(foreign, self.views)}")])
        known = [*self.views, *self.tables, *map(history_of, self.tables), *self.serve]
        if not any(word in known for word in own):
            raise refusal_at([(("serve", name), f"reads no view and no table{nearest(own[0], known) if own else ''}")])
        for word in own:
            if word in self.serve:
                self._must_be_served(word, [*through, name])

    @property
    def sources(self) -> dict[str, Stream | Table]:
        """All that arrives on a topic."""
        return {**self.streams, **self.tables}

    @property
    def topics(self) -> dict[str, str]:
        """Every topic → the stream or table that arrives on it."""
        return {topic: name for name, source in self.sources.items() for topic in source.topics}

    @property
    def partitions(self) -> dict[str, int]:
        """Every topic → how many partitions it is made with."""
        return {topic: source.partitions for source in self.sources.values() for topic in source.topics}

    @property
    def watched_partitions(self) -> int:
        """Each of them holds a task slot of Spark's as long as the stream runs."""
        return sum(len(self.streams[name].topics) * self.streams[name].partitions for name in self.watch)

    @property
    def reach(self) -> timedelta:
        """The longest of its views."""
        return max((view.reach for view in self.views.values()), default=timedelta(0))

    def streams_of(self, view: str) -> list[str]:
        if pattern := self.views[view].pattern:
            return pattern.streams
        mentioned = relations_in(self.views[view].sql)
        return [name for name in self.streams if name in mentioned]

    def fingerprint(self, view: str) -> str:
        """Changes when the view's numbers could: with its SQL, or its streams' contracts, cleansing and the rules that reject rows."""
        if id(self) not in _FINGERPRINTS:
            _FINGERPRINTS[id(self)] = {}
            weakref.finalize(self, _FINGERPRINTS.pop, id(self), None)
        known = _FINGERPRINTS[id(self)]
        if view not in known:
            known[view] = self._fingerprint(view)
        return known[view]

    def _fingerprint(self, view: str) -> str:
        declared = self.views[view].model_dump(mode="json", exclude={"expectations", "tolerance", "levels"}, exclude_none=True) | {
            "sql": normal_sql(self.views[view].sql)
        }
        if not self.views[view].as_of:
            declared.pop("as_of")
        streams = {name: _judgement(self.streams[name]) for name in self.streams_of(view)}
        return _digest([declared, streams] + ([self._versions(table) for table in sorted(self.views[view].as_of)]))

    def table_fingerprint(self, table: str) -> str:
        """Changes when the versions of a table's rows could."""
        return _digest(self._versions(table))

    def contract_fingerprint(self, source: str) -> str:
        """Changes when the judgement of a stream's or table's messages could."""
        return _digest(_judgement(self.sources[source]))

    def _versions(self, table: str) -> dict[str, Any]:
        return _judgement(self.tables[table])


def history_of(table: str) -> str:
    """The name under which all versions of a table's rows are served."""
    return f"{table}__history"


def _judgement(contract: Contract) -> dict[str, Any]:
    """All of a contract on which it depends what an accepted row is."""
    no_matter: Any = dict.fromkeys(("partitions", "expectations", "references", "keep_quarantined", "levels"), True)
    no_matter["columns"] = {"__all__": {"private"}}
    declared = contract.model_dump(mode="json", exclude=no_matter)
    return declared | {"expectations": [rule.judgement() for rule in contract.expectations if rule.rejects]}


def _digest(declared: Any) -> str:
    return hashlib.sha256(json.dumps(declared, sort_keys=True).encode()).hexdigest()[:12]
