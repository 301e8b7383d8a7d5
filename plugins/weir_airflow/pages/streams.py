"""Streams: each pipeline's driver, live, with its last hours as pictures; start, stop, restart for those who may."""

from datetime import timedelta
from typing import Any

from fastapi import APIRouter, Depends, HTTPException
from fastapi.responses import HTMLResponse, Response

from weir.gauges import EVERY_SECONDS, KEPT_SECONDS, Readings
from weir.layout import STREAM, dag_id
from weir.look import short, size
from weir.look.charts import Frame, TimeChart, time_chart
from weir.overview import stream_overview
from weir.records.record import read_once
from weir_airflow import acts
from weir_airflow.access import refuse_other_sites
from weir_airflow.pages.book import Book, BookDep, PageNumber

router = APIRouter()
SMALL = Frame(150, 34, left=0, right=150, top=3, bottom=33)
LARGE = Frame(620, 170, left=66, right=612, top=12, bottom=146)
RANGES_SECONDS = (1_800, 3_600, 2 * 3_600, KEPT_SECONDS)
"""A picture shows the shortest of these that holds all readings."""
GAP_SECONDS = 4 * EVERY_SECONDS
"""A longer silence is a gap in the picture: nobody measured."""
ALARM = {"running": "good", "starting": "warn", "stopping": "warn", "stopped": "dull", "never started": "dull"}
"""Of a stream's state; every other word is bad news."""


@router.get("/streams")
def show_streams(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    found, place = book.some_pipelines(page)
    streams = []
    for name, pipeline, wrong in found:
        own = stream_overview(book.home, pipeline, book.now) if pipeline else None
        readings = read_once(Readings, book.home.lake.readings(name)) or Readings()
        streams.append({"name": name, "wrong": wrong, "own": own, "chart": _chart(book, readings, "arriving", SMALL)})
    return book.show("streams.html", "streams", streams=streams, place=place, alarm=ALARM)


@router.get("/streams/{pipeline}")
def show_stream(book: BookDep, pipeline: str) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    readings = read_once(Readings, book.home.lake.readings(pipeline)) or Readings()
    charts: list[dict[str, Any]] = [
        {"of": of, "title": title, "unit": unit, "chart": _chart(book, readings, of, LARGE)}
        for of, title, unit in (
            ("arriving", "Arriving", "messages a second"),
            ("behind", "Behind", "messages that the slowest query has not read"),
            ("stale_seconds", "Staleness", "of the view that is furthest behind"),
            ("state_bytes", "State", "of all queries"),
        )
    ]
    return book.show(
        "stream.html",
        "streams",
        pipeline=pipeline,
        own=stream_overview(book.home, declared, book.now),
        charts=charts,
        alarm=ALARM,
        may_act=book.visitor.may(pipeline, STREAM),
        dag=dag_id(pipeline, STREAM),
        paused=acts.is_paused(dag_id(pipeline, STREAM)),
    )


@router.post("/streams/{pipeline}/{act}", dependencies=[Depends(refuse_other_sites)])
def act_on_stream(book: BookDep, pipeline: str, act: str) -> Response:
    book.visitor.must_act(pipeline, STREAM)
    if act not in acts.STREAM_ACTS:
        raise HTTPException(404, "There is no such act.")
    return book.go(f"/streams/{pipeline}", acts.STREAM_ACTS[act](book.home, pipeline, book.visitor.user.get_name()))


def _chart(book: Book, readings: Readings, of: str, frame: Frame) -> TimeChart:
    age = book.now.timestamp() - (readings.at[0] if readings.at else book.now.timestamp())
    shown = next((own for own in RANGES_SECONDS if own >= age), KEPT_SECONDS)
    words = {"state_bytes": size, "stale_seconds": lambda seconds: f"{short(seconds)} s"}.get(of, short)
    return time_chart(readings.series(of), book.now - timedelta(seconds=shown), book.now, frame, GAP_SECONDS, words)
