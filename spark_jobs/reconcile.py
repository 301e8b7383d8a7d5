"""Speed against batch, cell by cell → differences, each with its causes.

Three forms of the day are lined up: what was streamed (speed), what is true (batch), and the view over the events that the
fates call counted. Where speed equals the third, the fates explain the difference, and the events that are in the one and
not in the other are its causes. What speed says beyond that is unexplained.
"""

import hashlib
from dataclasses import dataclass
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DoubleType, FloatType

from weir.event_time import format_duration
from weir.pipeline import View
from weir.records.night import Cause, Cell, CellCause, ViewComparison

MAX_EXAMPLES = 20
MAX_IDENTITIES = 20
CAUSES = "array<struct<cause:string,events:bigint,identities:array<string>>>"


@dataclass(frozen=True)
class Sides:
    """Three forms of a view's day. `told_until` (micros) is the watermark: an append-mode view has told no cell that reaches beyond it."""

    speed: DataFrame
    batch: DataFrame
    counted: DataFrame
    told_until: int


def line_up(view: View, sides: Sides) -> DataFrame:
    """One row per cell: its grain, `_speed`, `_batch` and `_counted` (null where a form has no such cell), `_state`, and `_word`, the
    batch that told the speed cell."""
    columns = [column for column in sides.batch.columns if not column.startswith("_")]
    values = [column for column in columns if column not in view.grain]
    forms = {"_speed": sides.speed, "_batch": sides.batch, "_counted": sides.counted}
    tagged = [
        frame.select(
            *view.grain,
            F.struct(F.lit(True).alias("_told"), *values).alias("_values"),
            F.lit(form).alias("_form"),
            (F.col("_batch") if form == "_speed" else F.lit(None).cast("bigint")).alias("_word"),
        )
        for form, frame in forms.items()
    ]
    each = [F.first(F.when(F.col("_form") == form, F.col("_values")), ignorenulls=True).alias(form) for form in forms]
    lined = reduce(DataFrame.unionByName, tagged).groupBy(*view.grain).agg(*each, F.max("_word").alias("_word"))
    floating = {field.name for field in sides.batch.schema if isinstance(field.dataType, FloatType | DoubleType)}

    def same(left: str, right: str) -> Column:
        equal = [_same_value(F.col(f"{left}.{c}"), F.col(f"{right}.{c}"), view.tolerance if c in floating else None) for c in values]
        both = reduce(Column.__and__, equal, F.col(left).isNotNull() & F.col(right).isNotNull())
        return both | (F.col(left).isNull() & F.col(right).isNull())

    closes_at = F.unix_micros(F.col(view.time) + F.expr(f"INTERVAL {format_duration(view.reach)}"))
    untold = F.lit(view.is_told_when_closed) & F.col("_speed").isNull() & (closes_at > sides.told_until)
    state = (
        F.when(same("_speed", "_batch"), "equal")
        .when(same("_speed", "_counted"), "explained")
        .when(untold, "pending")
        .otherwise("unexplained")
    )
    return lined.withColumn("_state", state)


def _same_value(left: Column, right: Column, tolerance: float | None) -> Column:
    if tolerance is None:
        return left.eqNullSafe(right)
    close = F.abs(left - right) <= tolerance * F.greatest(F.abs(left), F.abs(right))
    return left.eqNullSafe(right) | F.coalesce(close, F.lit(False))


def with_causes(
    view: View, differing: DataFrame, suspects: list[DataFrame], causes: set[str], is_early: bool, else_cause: Cause
) -> DataFrame:
    """Differing cells with `_causes`, from the suspects of each stream that lie near a cell.

    `causes` are all that there are on this day: an explained cell with no suspect near it gets all of them. Where the stream has read
    further than raw (`is_early`), a cell may hold events that raw did not have yet. `else_cause` is given to a cell for which there is
    no other.
    """
    anyhow = F.array(*(_cause(F.lit(cause), F.lit(0), F.array()) for cause in sorted(causes))).cast(CAUSES)
    nothing = F.array().cast("array<string>")
    joined = differing.withColumn("_near", F.array().cast(CAUSES))
    if suspects:
        near = reduce(DataFrame.unionByName, (_near(view, differing, own) for own in suspects))
        gathered = near.groupBy(*(F.col(column).alias(f"_g_{column}") for column in view.grain)).agg(
            F.array_sort(F.collect_list(_cause(F.col("_cause"), F.col("_events"), F.col("_identities")))).alias("_near")
        )
        same_cell = [F.col(column).eqNullSafe(F.col(f"_g_{column}")) for column in view.grain]
        joined = differing.join(gathered, same_cell, "left").drop(*(f"_g_{column}" for column in view.grain))
    own = F.coalesce("_near", F.array().cast(CAUSES))
    rest = F.lit("cut" if is_early else else_cause)
    found = (
        F.when(F.col("_state") == "explained", F.when(F.size(own) > 0, own).otherwise(anyhow))
        .when(F.col("_state") == "pending", F.array(_cause(F.lit("pending"), F.lit(0), nothing)))
        .otherwise(F.array(_cause(rest, F.lit(0), nothing)))
    )
    return joined.withColumn("_causes", found.cast(CAUSES)).drop("_near")


def _cause(cause: Column, events: Column, identities: Column) -> Column:
    return F.struct(cause.alias("cause"), events.cast("bigint").alias("events"), identities.cast("array<string>").alias("identities"))


def _near(view: View, differing: DataFrame, events: DataFrame) -> DataFrame:
    """Per cell and cause the suspects near it: within its time, give or take the reach, and with the same values where the view's
    grain has columns of the stream's names. Null in the grain of a join stands for the partner that did not come: any could have."""
    shared = [column for column in view.grain[1:] if column in events.columns]
    cells = differing.select(*(F.col(column).alias(f"_g_{column}") for column in view.grain))
    reach = F.expr(f"INTERVAL {format_duration(view.reach)}")
    span = F.expr(f"INTERVAL {format_duration(view.span)}")
    start = F.col(f"_g_{view.time}")
    near = (F.col("_at") >= start - reach) & (F.col("_at") < start + reach + span)
    # Spark can look events up by a stretch of time that they lie in, not by a range: each cell stands under the two that it touches.
    stretch = max(1, round((2 * view.reach + view.span).total_seconds()))
    first, last = (_stretch(at, stretch) for at in (start - reach, start + reach + span))
    cells = cells.withColumn("_stretch", F.explode(F.sequence(first, last)))
    near = near & (F.col("_stretch") == _stretch(F.col("_at"), stretch))
    alone = _columns_with_nulls(cells, shared) if view.is_outer_join and shared else []
    for column in shared:
        same = F.col(column).cast("string").eqNullSafe(F.col(f"_g_{column}").cast("string"))
        near = near & (same | F.col(f"_g_{column}").isNull() if column in alone else same)
    identities = F.slice(F.array_sort(F.collect_set("_identity")), 1, MAX_IDENTITIES)
    grain = [f"_g_{column}" for column in view.grain]
    counted = cells.join(events, near).groupBy(*grain, "_cause").agg(F.count("*").alias("_events"), identities.alias("_identities"))
    return counted.select(*(F.col(f"_g_{column}").alias(column) for column in view.grain), "_cause", "_events", "_identities")


def _stretch(at: Column, seconds: int) -> Column:
    return (F.unix_seconds(at.cast("timestamp")) / seconds).cast("bigint")


def _columns_with_nulls(cells: DataFrame, columns: list[str]) -> list[str]:
    """Only these are compared with an alternative: one for every column would leave Spark no key to join by."""
    row = cells.agg(*(F.max(F.col(f"_g_{column}").isNull()).alias(column) for column in columns)).first()
    return [column for column in columns if row is not None and row[column]]


def as_texts(view: View, differing: DataFrame, day: str, name: str, fingerprint: str) -> DataFrame:
    """Differences as the table keeps them: values as text, so that no value of a message (a year like 57971) can trouble a reader."""
    values = _values(differing)
    return differing.select(
        F.lit(name).alias("view"),
        F.lit(fingerprint).alias("fingerprint"),
        F.lit(day).cast("date").alias("_day"),
        _grain(view).alias("grain"),
        *(_side(form, values).alias(form.removeprefix("_")) for form in ("_speed", "_batch")),
        F.col("_state").alias("state"),
        F.col("_causes").alias("causes"),
    )


def against_served(view: View, served: DataFrame, lined: DataFrame) -> DataFrame:
    """Cells of which another number is served from now on than before: `grain`, `before` and `after`, as text."""
    values = _values(lined)
    before = served.select(*view.grain, F.struct(*values).alias("_before") if values else F.struct(F.lit(True)).alias("_before"))
    after = lined.filter("_batch IS NOT NULL").select(*(F.col(c).alias(f"_g_{c}") for c in view.grain), "_batch")
    same_cell = [F.col(column).eqNullSafe(F.col(f"_g_{column}")) for column in view.grain]
    both = before.join(after, same_cell, "full_outer")
    for column in view.grain:
        both = both.withColumn(column, F.coalesce(column, f"_g_{column}"))
    told = both.select(_grain(view).alias("grain"), _side("_before", values).alias("before"), _side("_batch", values).alias("after"))
    same = F.to_json("before").eqNullSafe(F.to_json("after"))
    return told.filter(~same)


def _values(lined: DataFrame) -> list[str]:
    return [field for field in lined.schema["_batch"].dataType.names if field != "_told"]  # type: ignore[attr-defined]


def _grain(view: View) -> Column:
    return F.create_map(*(part for column in view.grain for part in (F.lit(column), _text(F.col(column)))))


def _side(form: str, values: list[str]) -> Column:
    pairs = [part for column in values for part in (F.lit(column), _text(F.col(f"{form}.{column}")))]
    return F.when(F.col(form).isNotNull(), F.create_map(*pairs) if pairs else F.create_map().cast("map<string,string>"))


def _text(value: Column) -> Column:
    return F.coalesce(value.cast("string"), F.lit("null"))


def summarise(view: View, name: str, fingerprint: str, counts: dict[tuple[str, str], int], differences: DataFrame) -> ViewComparison:
    """The comparison as people and programs read it. `counts` are cells by state and by what is there of them."""

    def cells(state: str = "", there: str = "") -> int:
        return sum(n for (of, where), n in counts.items() if state in ("", of) and there in ("", where))

    def differing(there: str) -> int:
        return cells("explained", there) + cells("unexplained", there)

    causes = count_causes(differences)
    unexplained = differences.filter("array_contains(causes.cause, 'unexplained')")
    digest, count = _digest(unexplained) if cells("unexplained") else ("", 0)
    events = F.aggregate("causes", F.lit(0).cast("bigint"), lambda total, cause: total + cause["events"])
    order = [F.array_contains("causes.cause", "unexplained").desc(), events.desc()]
    told = differences.filter("state != 'pending'").orderBy(*order, F.to_json("grain")).limit(MAX_EXAMPLES).collect()
    return ViewComparison(
        view=name,
        fingerprint=fingerprint,
        compared=cells(),
        equal=cells("equal"),
        different=differing("both"),
        only_speed=differing("speed"),
        only_batch=differing("batch"),
        pending=cells("pending"),
        causes=causes,
        unexplained=count,
        unexplained_digest=digest,
        examples=[
            Cell(
                grain={column: row["grain"][column] for column in view.grain},
                speed=row["speed"],
                batch=row["batch"],
                causes=[CellCause(cause=c["cause"], events=c["events"], identities=c["identities"]) for c in row["causes"]],
            )
            for row in told
        ],
    )


def count_causes(differences: DataFrame) -> dict[str, int]:
    """Cells by cause, most first."""
    found = differences.select(F.explode("causes.cause").alias("cause")).groupBy("cause").count().collect()
    return {row["cause"]: row["count"] for row in sorted(found, key=lambda row: (-row["count"], row["cause"]))}


def _digest(unexplained: DataFrame) -> tuple[str, int]:
    cell = F.to_json(F.struct(*(F.sort_array(F.map_entries(side)).alias(side) for side in ("grain", "speed", "batch"))))
    marks = sorted(row[0] for row in unexplained.select(F.sha2(cell, 256)).collect())
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()[:16], len(marks)
