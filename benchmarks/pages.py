"""How fast the pages answer, against Airflow's own list of DAGs by its REST API: on the same server, in the same run, request by request.

Behind them stand 100 pipelines, 1,000 days of reports, and a million cells in one view. `p95_to_airflow` gives, for each page, its p95
over that of the list of DAGs; `growth` its p95 with 1,000 days of history over that with ten. `--json` prints one object.
"""

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from datetime import date, timedelta
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import requests  # noqa: E402
import yaml  # noqa: E402
from beats import beat, pulse  # noqa: E402
from pages_lake import write_many_cells  # noqa: E402

from weir import embedded_airflow  # noqa: E402
from weir.event_time import utc_now  # noqa: E402
from weir.gauges import EVERY_SECONDS, KEPT_SECONDS, Readings  # noqa: E402
from weir.layout import Home, Lake  # noqa: E402
from weir.loader import load_pipelines, read_yaml  # noqa: E402
from weir.pipeline import Pipeline  # noqa: E402
from weir.records.driver import Control  # noqa: E402
from weir.records.night import FATES, Cell, CellCause, LedgerLine, NightlyReport, ViewComparison  # noqa: E402
from weir.records.quality import DayQuality  # noqa: E402
from weir.summaries import DAYS_KEPT, NightSummary, summarise_quality  # noqa: E402

LONG, SHORT, VIEW = "shop", "shop_young", "revenue_per_minute"
"""The pipeline with the long history, and the one with a short one."""
LAST_DAY = date(2026, 3, 1)
PAGES = {
    "streams": "/weir/streams",
    "stream": "/weir/streams/{}",
    "quality": "/weir/quality",
    "quality_of": "/weir/quality/{}",
    "quarantine": "/weir/quarantine",
    "quarantine_of": "/weir/quarantine/{}",
    "reconciliation": "/weir/reconciliation",
    "nights": "/weir/reconciliation/{}",
    "night": "/weir/reconciliation/{}/2026-03-01",
    "views": "/weir/views",
    "lineage": "/weir/views/{}",
    "view": f"/weir/views/{{}}/{VIEW}",
    "pipelines": "/weir/pipelines",
    "pipeline": "/weir/pipelines/{}",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--pipelines", type=int, default=100)
    parser.add_argument("--days", type=int, default=1_000)
    parser.add_argument("--cells", type=int, default=1_000_000)
    parser.add_argument("--requests", type=int, default=60, help="of each page")
    options = parser.parse_args()
    room = Path(tempfile.mkdtemp(prefix="weir-bench-"))
    home = Home(room / "home")
    os.environ |= {"WEIR_HOME": str(home.root), "WEIR_LAKE": str(room / "lake"), "WEIR_PIPELINES": str(room / "pipelines")}
    say = (lambda _: None) if options.json else (lambda text: print(text, file=sys.stderr, flush=True))
    try:
        say("declaring pipelines and writing their history")
        declare(room / "pipelines", options.pipelines)
        lake, pipelines = home.lake, load_pipelines(home.pipelines)
        for pipeline in pipelines.values():
            write_history(lake, pipeline, {LONG: options.days, SHORT: 10}.get(pipeline.name, 3))
        write_many_cells(lake, pipelines[LONG], VIEW, options.days, options.cells)
        write_many_cells(lake, pipelines[SHORT], VIEW, 10, options.cells // options.days * 10)
        say("starting Airflow")
        embedded_airflow.start_airflow(home)
        api = embedded_airflow.AirflowApi(home)
        await_dags(api, 3 * options.pipelines, say)
        report(options, measure(api, options, say))
    finally:
        embedded_airflow.stop_airflow(home)
        shutil.rmtree(room, ignore_errors=True)


def declare(folder: Path, count: int) -> None:
    """The shop, and copies of it under other names and topics."""
    names = [LONG, SHORT, *(f"shop_{number}" for number in range(count - 2))]
    for name in names:
        shutil.copytree(ROOT / "pipelines" / "shop", folder / name)
        declared, _ = read_yaml(folder / name / "pipeline.yaml")
        declared["pipeline"] = name
        for own in [*declared["streams"].values(), *declared["tables"].values()]:
            own["topic"] = own["topic"].replace("shop.", f"{name}.")
        (folder / name / "pipeline.yaml").write_text(yaml.safe_dump(declared, sort_keys=False))


def write_history(lake: Lake, pipeline: Pipeline, days: int) -> None:
    """What the driver, the micro-batches and the nights of so many days leave for the pages."""
    now = utc_now()
    queries = {"archive": pulse(read=10**9, caught_up=0)} | {f"view_{view}": pulse(behind=3, caught_up=0) for view in pipeline.views}
    own_beat = beat(86_400, **queries)
    Control(lake.control(pipeline.name)).beat(own_beat.model_copy(update={"written_at": now}))
    at = [int(now.timestamp()) - KEPT_SECONDS + step * EVERY_SECONDS for step in range(KEPT_SECONDS // EVERY_SECONDS)]
    numbers = list(range(len(at)))
    Readings(at=at, taken_in=numbers, behind=numbers, stale_seconds=numbers, state_bytes=numbers).write(lake.readings(pipeline.name))
    nights = NightSummary()
    for back in range(days - 1, -1, -1):
        report = night(pipeline, str(LAST_DAY - timedelta(days=back)))
        if back < 400 or back % 10 == 0 or pipeline.name == LONG:
            report.write(lake.nightly_report(pipeline.name, report.day))
        if back < DAYS_KEPT:
            nights = nights.with_reports([report])
    nights.write(lake.nights_summary(pipeline.name))
    recent = [str(LAST_DAY - timedelta(days=back)) for back in range(min(days, DAYS_KEPT))]
    counts = {"rows": 5_010, "accepted": 5_000, "rejected": 10, "reasons": {f"amount:rule_{number}": number for number in range(30)}}
    quality = {name: {day: DayQuality(stream=name, day=day, **counts) for day in recent} for name in pipeline.sources}  # type: ignore[arg-type]
    summarise_quality(quality, {}).write(lake.quality_summary(pipeline.name))


def night(pipeline: Pipeline, day: str) -> NightlyReport:
    """A night with examples in every view."""
    cause = CellCause(cause="late", events=3, identities=[f"o-{number}" for number in range(20)])
    cells = [
        Cell(grain={"minute": f"{day} 10:{number:02}:00", "country": "DE"}, speed={"orders": "1"}, batch={"orders": "2"}, causes=[cause])
        for number in range(20)
    ]
    views = [
        ViewComparison(
            view=view,
            fingerprint=pipeline.fingerprint(view),
            compared=1_000,
            equal=980,
            different=20,
            only_speed=0,
            only_batch=0,
            pending=0,
            causes={"late": 20},
            examples=cells,
            settled_until=date.fromisoformat(day) + timedelta(days=1),
        )
        for view in pipeline.views
    ]
    lines = [
        LedgerLine(
            view=view,
            stream=stream,
            topic=stream,
            partition=partition,
            day=day,
            first_offset=0,
            until_offset=100,
            offsets=100,
            fates=dict.fromkeys(FATES, 0) | {"counted": 100},
        )
        for view in pipeline.views
        for stream in pipeline.streams_of(view)
        for partition in range(2)
    ]
    return NightlyReport(pipeline=pipeline.name, day=day, written_at=utc_now(), seconds=60, streams=[], views=views, ledger=lines)


def await_dags(api: embedded_airflow.AirflowApi, count: int, say: Any) -> None:
    deadline = time.monotonic() + 1_200
    while (found := api.call("GET", "dags?limit=1")["total_entries"]) < count:
        say(f"{found} of {count} DAGs are known")
        if time.monotonic() > deadline:
            raise SystemExit(f"Airflow knows only {found} DAGs")
        time.sleep(15)


def measure(api: embedded_airflow.AirflowApi, options: argparse.Namespace, say: Any) -> dict[str, list[float]]:
    """Milliseconds of each request, by page; all pages in turn, so that what disturbs one disturbs all."""
    session = requests.Session()
    session.headers.update(api._headers | {"accept": "text/html"})
    asked = {"airflow": "/api/v2/dags"}
    asked |= {page: path.format(LONG) for page, path in PAGES.items()}
    asked |= {f"{page} of a short history": path.format(SHORT) for page, path in PAGES.items() if "{}" in path}
    found: dict[str, list[float]] = {page: [] for page in asked}
    for number in range(options.requests + 3):
        for page, path in asked.items():
            began = time.perf_counter()
            answer = session.get(f"{api.root}{path}", timeout=60)
            took = (time.perf_counter() - began) * 1_000
            if not answer.ok:
                raise SystemExit(f"{path}: {answer.status_code} {answer.text[:300]}")
            if number >= 3:  # the first ones fill caches
                found[page].append(took)
        if number % 20 == 0:
            say(f"round {number}")
    return found


def percentile(times: list[float], percent: int) -> float:
    return sorted(times)[min(len(times) - 1, len(times) * percent // 100)]


def report(options: argparse.Namespace, found: dict[str, list[float]]) -> None:
    own = {page: percentile(times, 95) for page, times in found.items()}
    result = {
        "p95_to_airflow": {page: round(own[page] / own["airflow"], 2) for page in PAGES},
        "growth": {page: round(own[page] / own[f"{page} of a short history"], 2) for page in PAGES if f"{page} of a short history" in own},
        "airflow_p95_ms": round(own["airflow"], 1),
        "p95_ms": {page: round(own[page], 1) for page in PAGES},
        "p50_ms": {page: round(statistics.median(found[page]), 1) for page in ("airflow", *PAGES)},
        **{name: getattr(options, name) for name in ("pipelines", "days", "cells", "requests")},
    }
    if options.json:
        print(json.dumps(result))
        return
    print(f"{'page':16} {'p50 ms':>8} {'p95 ms':>8} {'to Airflow':>11} {'growth':>7}")
    for page in ("airflow", *PAGES):
        ratio, growth = own[page] / own["airflow"], result["growth"].get(page, "")  # type: ignore[attr-defined]
        print(f"{page:16} {result['p50_ms'][page]:8} {own[page]:8.1f} {ratio:11.2f} {growth:>7}")


if __name__ == "__main__":
    main()
