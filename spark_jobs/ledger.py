"""The books of one day of arrival: per view, stream and partition, each offset of the log exactly once, with its fate."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import date

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from weir.records.driver import Loss
from weir.records.night import FATES, LedgerLine, LostRange

LINES = (
    "view string, stream string, topic string, partition int, _day date, first_offset bigint, until_offset bigint, offsets bigint, "
    + ", ".join(f"{fate} bigint" for fate in FATES)
    + ", lost_ranges array<struct<from_offset:bigint,until_offset:bigint,reason:string>>, wrong array<string>"
)
MAX_LOST_RANGES = 1_000


@dataclass
class Partition:
    """The offsets of one partition that arrived on a day."""

    topic: str
    number: int
    rows: int
    different: int
    first: int
    until: int
    holes: list[tuple[int, int]] = field(default_factory=list)
    """Offsets before the day's messages that no message has, half open."""

    @property
    def place(self) -> str:
        return f"{self.topic}/{self.number}"


def arrived_on(day: date) -> Column:
    return F.to_date("received_at") == F.lit(day)


def partitions_of(rows: DataFrame, day: date, before: dict[str, int], archive: DataFrame) -> list[Partition]:
    """What arrived on the day, and the holes in it. `before` says how far the books of the days before reach, where there are any.

    Different offsets are counted in bitmaps: exact, and no row has to be moved. Only where they do not fill their range the
    holes are looked for, and only those count that the whole archive does not fill.
    """
    one_up = F.col("offset") + 1  # the functions count from 1
    by_bucket = (
        rows.filter(arrived_on(day))
        .groupBy("topic", "partition", F.bitmap_bucket_number(one_up).alias("_bucket"))
        .agg(
            F.count("*").alias("rows"),
            F.bitmap_count(F.bitmap_construct_agg(F.bitmap_bit_position(one_up))).alias("different"),
            F.min("offset").alias("first"),
            F.max("offset").alias("last"),
        )
    )
    totals = [
        F.sum("rows").alias("rows"),
        F.sum("different").alias("different"),
        F.min("first").alias("first"),
        F.max("last").alias("last"),
    ]
    found = by_bucket.groupBy("topic", "partition").agg(*totals).orderBy("topic", "partition").collect()
    partitions = [Partition(r["topic"], r["partition"], r["rows"], r["different"], r["first"], r["last"] + 1) for r in found]
    for own in partitions:
        start = before.get(own.place, own.first)
        if own.until - start != own.different:
            own.holes = _holes(rows.filter((F.col("topic") == own.topic) & (F.col("partition") == own.number)), day, start, archive)
    return partitions


def _holes(rows: DataFrame, day: date, start: int, archive: DataFrame) -> list[tuple[int, int]]:
    last = F.coalesce(F.lag("offset").over(Window.partitionBy("topic", "partition").orderBy("offset")), F.lit(start - 1))
    jumps = rows.select("topic", "partition", "offset", "received_at").withColumn("_last", last)
    found = jumps.filter(arrived_on(day) & (F.col("offset") > F.col("_last") + 1)).orderBy("offset").collect()
    gaps = [(row["_last"] + 1, row["offset"]) for row in found]
    if not gaps:
        return []
    topic, partition = found[0]["topic"], found[0]["partition"]
    inside = (F.col("offset") >= gaps[0][0]) & (F.col("offset") < gaps[-1][1])
    elsewhere = archive.filter((F.col("topic") == topic) & (F.col("partition") == partition) & inside & ~arrived_on(day))
    return _without(gaps, sorted(row["offset"] for row in elsewhere.select("offset").distinct().collect()))


def _without(gaps: list[tuple[int, int]], present: list[int]) -> list[tuple[int, int]]:
    """The gaps less the offsets that are there after all."""
    left = []
    for start, end in gaps:
        for offset in (o for o in present if start <= o < end):
            if offset > start:
                left.append((start, offset))
            start = offset + 1
        if start < end:
            left.append((start, end))
    return left


def draw_lines(
    view: str, stream: str, day: date, partitions: list[Partition], fates: Mapping[str, dict[str, int]], losses: list[Loss]
) -> list[LedgerLine]:
    """The ledger of one view and stream. `fates` are, by topic/partition, how many messages that arrived on the day have each fate."""
    return [_line(view, stream, day, own, fates.get(own.place, {}), losses) for own in partitions]


def _line(view: str, stream: str, day: date, own: Partition, counts: dict[str, int], losses: list[Loss]) -> LedgerLine:
    lost = [part for hole in own.holes for part in _with_reasons(own, hole, losses)]
    in_holes = sum(r.until_offset - r.from_offset for r in lost)
    fates = {fate: counts.get(fate, 0) for fate in FATES}
    fates["lost"] += in_holes
    wrong = []
    if own.rows != own.different:
        wrong.append(f"{own.rows - own.different:,} messages of {own.place} stand twice in raw")
    if unknown := set(counts) - set(FATES):
        wrong.append(f"{own.place}: no such fate as {', '.join(sorted(unknown))}")
    if (offsets := own.different + in_holes) != sum(fates.values()) and not wrong:
        wrong.append(f"{own.place}: {offsets:,} offsets, but {sum(fates.values()):,} fates")
    return LedgerLine(
        view=view,
        stream=stream,
        topic=own.topic,
        partition=own.number,
        day=str(day),
        first_offset=min([own.first, *(hole[0] for hole in own.holes)]),
        until_offset=own.until,
        offsets=offsets,
        fates=fates,
        lost_ranges=lost[:MAX_LOST_RANGES],
        wrong=wrong,
    )


def _with_reasons(own: Partition, hole: tuple[int, int], losses: list[Loss]) -> list[LostRange]:
    """A hole in parts: what the driver noted as dropped by the log, and where there never was a message."""
    start, end = hole
    parts = []
    for loss in sorted(losses, key=lambda loss: loss.from_offset):
        if (loss.topic, loss.partition) != (own.topic, own.number):
            continue
        a, b = max(start, loss.from_offset), min(end, loss.until_offset)
        if a < b:
            if start < a:
                parts.append(LostRange(from_offset=start, until_offset=a, reason="gap"))
            parts.append(LostRange(from_offset=a, until_offset=b, reason="retention"))
            start = b
    if start < end:
        parts.append(LostRange(from_offset=start, until_offset=end, reason="gap"))
    return parts


def as_rows(lines: list[LedgerLine], day: date) -> list[tuple[object, ...]]:
    """As the ledger table has them."""
    return [
        (
            *(line.view, line.stream, line.topic, line.partition, day, line.first_offset, line.until_offset, line.offsets),
            *(line.fates[fate] for fate in FATES),
            [(lost.from_offset, lost.until_offset, lost.reason) for lost in line.lost_ranges],
            line.wrong,
        )
        for line in lines
    ]
