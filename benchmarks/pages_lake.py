"""A lake with many cells behind a view, for measuring pages: written without Spark, in the shape that a thousand nights leave."""

import sys
import time
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import numpy
import pyarrow as pa
from deltalake import write_deltalake

sys.path.insert(0, str(Path(__file__).parent.parent))

from weir.event_time import utc_now
from weir.layout import Lake
from weir.loader import load_pipeline
from weir.pipeline import Pipeline
from weir.records.night import DayVerdict, Settlement
from weir.settling import settle

VALUES = ("AT", "BE", "CH", "DE", "ES", "FR", "IT", "NL")
EVERY_REPAIRED, STREAMED_BATCHES = 97, 60


def write_many_cells(lake: Lake, pipeline: Pipeline, view: str, days: int, cells: int) -> None:
    """So many cells over so many days, one file and one commit each: all days settled but today, which is streamed, in sixty commits.

    The first grain column is its time; the others have one of eight texts or numbers. Counted are orders and revenue.
    """
    fingerprint, today = pipeline.fingerprint(view), utc_now().date()
    since, each = today - timedelta(days=days), max(1, cells // days)
    for place in range(days):
        day = since + timedelta(days=place)
        statuses = pa.array(["repaired" if number % EVERY_REPAIRED == 0 else "proved" for number in range(each)])
        table = _cells(pipeline, view, day, each).append_column("_status", statuses)
        write_deltalake(lake.batch(pipeline.name, view, fingerprint), table, mode="append", partition_by=["_day"])
    for batch in range(STREAMED_BATCHES):
        told = _cells(pipeline, view, today, min(each, 500))
        told = told.append_column("_generation", pa.array([1] * len(told), pa.int64()))
        told = told.append_column("_batch", pa.array([batch] * len(told), pa.int64()))
        write_deltalake(lake.speed(pipeline.name, view, fingerprint), told, mode="append", partition_by=["_day"])
    settled = Settlement(view=view, fingerprint=fingerprint)
    for place in range(days):
        settled = settle(settled, _proved(since + timedelta(days=place), each))
    settled.write(lake.settlement(pipeline.name, view, fingerprint))


def _cells(pipeline: Pipeline, view: str, day: date, count: int) -> pa.Table:
    time_column, *others = pipeline.views[view].grain
    kinds = len(VALUES) if others else 1
    start = numpy.datetime64(datetime.combine(day, datetime.min.time()), "us")
    step = numpy.timedelta64(86_400_000_000 // max(1, -(-count // kinds)), "us")
    places = numpy.arange(count)
    columns: dict[str, pa.Array] = {
        time_column: pa.array(start + step * (places // kinds), pa.timestamp("us")).cast(pa.timestamp("us", "UTC"))
    }
    types = {name: column.type for own in pipeline.streams_of(view) for name, column in pipeline.streams[own].columns.items()}
    for name in others:
        numbers = types.get(name) in ("int", "bigint")
        columns[name] = pa.array(
            [place % kinds if numbers else VALUES[place % kinds] for place in range(count)], pa.int64() if numbers else pa.string()
        )
    columns["orders"] = pa.array(places % 50 + 1, pa.int64())
    columns["revenue"] = pa.array([Decimal(int(place) % 9_000) / 100 for place in places], pa.decimal128(22, 2))
    columns["_day"] = pa.array([day] * count)
    return pa.table(columns)


def _proved(day: date, cells: int) -> DayVerdict:
    repaired = -(-cells // EVERY_REPAIRED)
    return DayVerdict(
        day=day, decision="PASS", equal=cells - repaired, repaired=repaired, pending=0, unexplained=0, cut={}, written_at=utc_now()
    )


if __name__ == "__main__":
    root, days, cells = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    began = time.monotonic()
    write_many_cells(Lake.at(root), load_pipeline(Path(__file__).parent.parent / "pipelines" / "shop"), "revenue_per_minute", days, cells)
    print(f"{cells:,} cells over {days:,} days in {time.monotonic() - began:.0f} s")
