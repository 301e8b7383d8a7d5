"""Numbers for Prometheus, in its text form: /weir/metrics, with a token like every program."""

from collections.abc import Iterator

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse

from weir.event_time import day_bounds, utc_now
from weir.overview import StreamOverview, stream_overview
from weir.records.night import Settlement
from weir.records.record import read_once
from weir.refusal import Refusal
from weir.settlements import settlements_of
from weir.summaries import NightSummary, QualitySummary
from weir_airflow.access import Visitor, VisitorDep
from weir_airflow.pages.book import headers

router = APIRouter()
HELP = {
    "weir_stream_up": "1 while the driver of the pipeline runs",
    "weir_stream_generation": "rising number of the driver's lease",
    "weir_stream_restarts": "drivers that ended unasked in the last day",
    "weir_stream_arriving_messages_per_second": "messages that the archive takes in",
    "weir_stream_headroom_seconds": "time until the log drops unread messages",
    "weir_query_behind_messages": "messages in the log that the query has not read",
    "weir_query_stale_seconds": "how old a message may be that the query has not taken in",
    "weir_query_watermark_seconds": "event time of the watermark, since 1970",
    "weir_query_state_bytes": "memory of the query's state",
    "weir_quality_rows": "rows of the stream's last day, by what became of them",
    "weir_night_cells": "cells of the last proved day, by what was found",
    "weir_view_settled_until_seconds": "the exclusive bound before which batch is served, since 1970",
    "weir_level_breached": "1 while a service level is not met",
}
Sample = tuple[str, dict[str, str], float]


@router.get("/metrics")
def show_metrics(visitor: VisitorDep) -> PlainTextResponse:
    by_name: dict[str, list[Sample]] = {}
    for pipeline in visitor.pipelines():
        for sample in _samples(visitor, pipeline):
            by_name.setdefault(sample[0], []).append(sample)
    lines = []
    for name, samples in by_name.items():
        lines += [f"# HELP {name} {HELP[name]}", f"# TYPE {name} gauge"]
        lines += [_line(*sample) for sample in samples]
    return PlainTextResponse("\n".join([*lines, ""]), media_type="text/plain; version=0.0.4", headers=headers())


def _line(name: str, labels: dict[str, str], value: float) -> str:
    told = ",".join(f'{key}="{escape_label(label)}"' for key, label in labels.items())
    return f"{name}{{{told}}} {value:.15g}"


def escape_label(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _samples(visitor: Visitor, pipeline: str) -> Iterator[Sample]:
    own = {"pipeline": pipeline}
    try:
        declared = visitor.declared(pipeline)
    except Refusal:
        yield "weir_stream_up", own, 0
        return
    yield from _of_stream(stream_overview(visitor.home, declared, utc_now()), own)
    if quality := read_once(QualitySummary, visitor.home.lake.quality_summary(pipeline)):
        for stream, days in quality.streams.items():
            for fate in ("accepted", "duplicates", "rejected", "undecodable") if days else ():
                yield "weir_quality_rows", own | {"stream": stream, "fate": fate}, getattr(days[-1], fate)
    nights = read_once(NightSummary, visitor.home.lake.nights_summary(pipeline))
    for view in nights.nights[-1].views if nights and nights.nights else ():
        for found in ("equal", "differing", "pending", "unexplained"):
            yield "weir_night_cells", own | {"view": view.view, "found": found}, getattr(view, found)
    for name, settled in settlements_of(visitor.home.lake, declared).items():
        if (until := _until(settled)) is not None:
            yield "weir_view_settled_until_seconds", own | {"view": name}, until


def _of_stream(stream: StreamOverview, own: dict[str, str]) -> Iterator[Sample]:
    yield "weir_stream_up", own, float(stream.is_running)
    numbers = {
        "weir_stream_generation": stream.generation,
        "weir_stream_restarts": stream.restarts,
        "weir_stream_arriving_messages_per_second": stream.arriving,
        "weir_stream_headroom_seconds": stream.headroom_seconds,
    }
    yield from ((name, own, value) for name, value in numbers.items() if value is not None)
    for query in stream.queries:
        labels = own | {"query": query.name, "kind": query.kind}
        yield "weir_query_behind_messages", labels, query.behind
        yield "weir_query_state_bytes", labels, query.state_bytes
        if query.stale_seconds is not None:
            yield "weir_query_stale_seconds", labels, query.stale_seconds
        if query.watermark is not None:
            yield "weir_query_watermark_seconds", labels, query.watermark.timestamp()
    for level in stream.levels:
        yield "weir_level_breached", own | {"of": level.of, "level": level.kind}, float(level.is_breached)


def _until(settled: Settlement) -> float | None:
    return day_bounds(settled.until)[0].timestamp() if settled.until else None
