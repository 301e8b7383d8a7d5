"""The pages' numbers for programs: /weir/api/v1. The same readings, the same permissions; lists come in pages of at most a hundred."""

from datetime import date
from typing import Annotated, Any, Generic, TypeVar

from fastapi import APIRouter, Body, Depends, HTTPException, Query
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from weir.answers import PlainAnswer
from weir.asking import MOST_CHARACTERS, PAGE
from weir.event_time import utc_now
from weir.gauges import Readings
from weir.layout import NIGHTLY, QUARANTINE, STREAM, dag_id
from weir.masking import shown_cell, shown_quarantined
from weir.overview import StreamOverview, stream_overview
from weir.quarantine import QuarantineAct, QuarantineFilter
from weir.records.night import Cell, NightlyReport, Settlement
from weir.records.record import read_once
from weir.refusal import Refusal
from weir.serving import QuarantineGroup, count_quarantined, differences, quarantine_groups, quarantine_rows
from weir.settlements import revert_settlement, settlements_of
from weir.summaries import NightRow, NightSummary, QualitySummary
from weir.view_reading import ViewOverview, view_overviews
from weir_airflow import acts
from weir_airflow.access import Visitor, VisitorDep, refuse_other_sites
from weir_airflow.pages.book import cut_page
from weir_airflow.pages.nights import proved_version
from weir_airflow.pages.views import answer
from weir_airflow.runs import QuarantineRun, quarantine_run

router = APIRouter(prefix="/api/v1")
ACT: dict[str, Any] = {"dependencies": [Depends(refuse_other_sites)]}
PageNumber = Annotated[int, Query(ge=1, le=1_000_000)]
Each = Annotated[int, Query(ge=1, le=100, description="items on a page")]
Item = TypeVar("Item")


class Listing(BaseModel, Generic[Item]):
    """One page of a list."""

    items: list[Item]
    page: int
    pages: int
    all: int


class Declared(BaseModel):
    """A declared pipeline; `error` says why it cannot be loaded, where it cannot."""

    name: str
    error: str | None
    streams: list[str] = []
    tables: list[str] = []
    views: list[str] = []


class Done(BaseModel):
    """What an act has brought about."""

    done: str


def _list(items: list[Any], page: int, each: int) -> dict[str, Any]:
    shown, place = cut_page(items, page, each)
    return {"items": shown, **place}


@router.get("/pipelines")
def list_pipelines(visitor: VisitorDep, page: PageNumber = 1, each: Each = 20) -> Listing[Declared]:
    names = _list(visitor.pipelines(), page, each)
    return Listing[Declared].model_validate(names | {"items": [_declared(visitor, name) for name in names["items"]]})


def _declared(visitor: Visitor, name: str) -> Declared:
    try:
        own = visitor.declared(name)
    except Refusal as refusal:
        return Declared(name=name, error=str(refusal))
    return Declared(name=name, error=None, streams=list(own.streams), tables=list(own.tables), views=list(own.views))


@router.get("/streams")
def list_streams(visitor: VisitorDep, page: PageNumber = 1, each: Each = 20) -> Listing[StreamOverview]:
    """Drivers of the pipelines whose declaration can be loaded."""
    names = _list(visitor.pipelines(), page, each)
    found = [_stream(visitor, name) for name in names["items"] if _declared(visitor, name).error is None]
    return Listing[StreamOverview].model_validate(names | {"items": found})


def _stream(visitor: Visitor, pipeline: str) -> StreamOverview:
    return stream_overview(visitor.home, visitor.load(pipeline), utc_now())


@router.get("/streams/{pipeline}")
def get_stream(visitor: VisitorDep, pipeline: str) -> StreamOverview:
    return _stream(visitor, pipeline)


@router.get("/streams/{pipeline}/readings")
def get_readings(visitor: VisitorDep, pipeline: str) -> Readings:
    """What the driver has measured of itself in the last hours."""
    visitor.must_see(pipeline)
    return read_once(Readings, visitor.home.lake.readings(pipeline)) or Readings()


@router.post("/streams/{pipeline}/{act}", **ACT)
def act_on_stream(visitor: VisitorDep, pipeline: str, act: str) -> Done:
    """Start, stop or restart the driver."""
    visitor.must_act(pipeline, STREAM)
    if act not in acts.STREAM_ACTS:
        raise HTTPException(404, f"There is no such act: {', '.join(acts.STREAM_ACTS)}.")
    return Done(done=acts.STREAM_ACTS[act](visitor.home, pipeline, visitor.user.get_name()))


@router.get("/quality/{pipeline}")
def get_quality(visitor: VisitorDep, pipeline: str) -> QualitySummary:
    """The last month of every stream, by day of arrival."""
    visitor.must_see(pipeline)
    return _or_404(read_once(QualitySummary, visitor.home.lake.quality_summary(pipeline)), "No micro-batch has run yet.")


Rule = Annotated[str | None, Query(max_length=300, description="a reason, such as amount:be_between")]


def _asked(stream: str | None = None, rule: Rule = None, since: date | None = None, until: date | None = None) -> QuarantineFilter:
    return QuarantineFilter(stream, rule, since, until)


Asked = Annotated[QuarantineFilter, Depends(_asked)]


@router.get("/quarantine/{pipeline}")
def list_quarantine(visitor: VisitorDep, pipeline: str, asked: Asked, page: PageNumber = 1, each: Each = 20) -> Listing[QuarantineGroup]:
    """What was set aside and is still open, by stream and reason, most rows first."""
    found = quarantine_groups(visitor.home.lake, visitor.load(pipeline), asked)
    return Listing[QuarantineGroup].model_validate(_list(found, page, each))


@router.get("/quarantine/{pipeline}/rows")
def list_quarantined_rows(
    visitor: VisitorDep, pipeline: str, asked: Asked, page: Annotated[int, Query(ge=1, le=1_000)] = 1, each: Each = 20
) -> Listing[dict[str, Any]]:
    """The rows themselves, the oldest first; private columns are masked."""
    declared = visitor.load(pipeline)
    count = sum(own.rows for own in count_quarantined(visitor.home.lake, declared, asked).values())
    rows = quarantine_rows(visitor.home.lake, declared, asked, each, (page - 1) * each)
    shown = [shown_quarantined(declared, row) for row in rows]
    return Listing[dict[str, Any]](items=shown, page=page, pages=max(1, -(-count // each)), all=count)


@router.post("/quarantine/{pipeline}", **ACT)
def act_on_quarantine(visitor: VisitorDep, pipeline: str, asked: Annotated[dict[str, str], Body()]) -> Done:
    """Preview, replay or discard by a run of the quarantine's DAG: `act`, `stream`, and where wanted `rule`, `since`, `until`, `note`."""
    visitor.must_act(pipeline, QUARANTINE)
    act = QuarantineAct.of(asked)
    if act.stream not in visitor.load(pipeline).sources:
        raise HTTPException(404, "There is no such stream.")
    return Done(done=acts.start_run(dag_id(pipeline, QUARANTINE), visitor.user.get_name(), act.settings()))


@router.get("/quarantine/{pipeline}/runs/{run_id}")
def get_quarantine_run(visitor: VisitorDep, pipeline: str, run_id: str) -> QuarantineRun:
    """How an act stands, and what came of it."""
    visitor.must_see(pipeline)
    return _or_404(quarantine_run(pipeline, run_id), "The quarantine of this pipeline has no such run.")


@router.get("/nights/{pipeline}")
def list_nights(visitor: VisitorDep, pipeline: str, page: PageNumber = 1, each: Each = 20) -> Listing[NightRow]:
    """The proved days of the last month, the newest first."""
    visitor.must_see(pipeline)
    summary = read_once(NightSummary, visitor.home.lake.nights_summary(pipeline)) or NightSummary()
    return Listing[NightRow].model_validate(_list(summary.nights[::-1], page, each))


@router.post("/nights/{pipeline}", **ACT)
def start_night(visitor: VisitorDep, pipeline: str, day: Annotated[date, Body(embed=True)]) -> Done:
    """Prove one day, by a run of the night's DAG."""
    visitor.must_act(pipeline, NIGHTLY)
    return Done(done=f"{dag_id(pipeline, NIGHTLY)} runs as {acts.start_night(pipeline, day, visitor.user.get_name())}")


@router.get("/nights/{pipeline}/{day}")
def get_night(visitor: VisitorDep, pipeline: str, day: date) -> NightlyReport:
    """All that the night has found of one day; of the cells the worst, and private values masked."""
    declared = visitor.load(pipeline)
    report = _or_404(NightlyReport.read(visitor.home.lake.nightly_report(pipeline, str(day))), f"{day} was not proved yet.")
    views = []
    for own in report.views:
        cells = [shown_cell(declared, own.view, cell) for cell in own.examples] if own.view in declared.views else []
        views.append(own.model_copy(update={"examples": cells}))
    return report.model_copy(update={"views": views})


@router.get("/nights/{pipeline}/{day}/{view}")
def list_cells(
    visitor: VisitorDep, pipeline: str, day: date, view: str, page: PageNumber = 1, each: Each = 20, cause: str | None = None
) -> Listing[Cell]:
    """The cells of a view that differed, the unexplained first; with `cause` only those."""
    declared = visitor.load_with(pipeline, view)
    report = _or_404(NightlyReport.read(visitor.home.lake.nightly_report(pipeline, str(day))), f"{day} was not proved yet.")
    cells = differences(visitor.home.lake, declared, view, day, proved_version(report, view))
    some = _list([cell for cell in cells if cause is None or any(own.cause == cause for own in cell.causes)], page, each)
    return Listing[Cell].model_validate(some | {"items": [shown_cell(declared, view, cell) for cell in some["items"]]})


@router.get("/settlements/{pipeline}")
def get_settlements(visitor: VisitorDep, pipeline: str) -> dict[str, Settlement]:
    """How far each view is settled, with the last days' verdicts and people's acceptances."""
    return settlements_of(visitor.home.lake, visitor.load(pipeline))


@router.post("/settlements/{pipeline}/{view}/{day}/accept", **ACT)
def accept(visitor: VisitorDep, pipeline: str, view: str, day: date, reason: Annotated[str, Body(embed=True, max_length=500)]) -> Done:
    """Accept the cells of a day that are unexplained now, and start the night that settles it."""
    visitor.must_act(pipeline, NIGHTLY)
    return Done(done=acts.accept(visitor.home, visitor.load_with(pipeline, view), view, day, reason, visitor.user.get_name()))


@router.post("/settlements/{pipeline}/{view}/{day}/revert", **ACT)
def revert(visitor: VisitorDep, pipeline: str, view: str, day: date) -> Done:
    """Serve the streamed numbers again, from this day on."""
    visitor.must_act(pipeline, NIGHTLY)
    revert_settlement(visitor.home.lake, visitor.load_with(pipeline, view), view, day)
    return Done(done=f"{view}: speed is served from {day} on")


@router.get("/views/{pipeline}")
def list_views(visitor: VisitorDep, pipeline: str) -> list[ViewOverview]:
    """The views, with what each reads and how far it is settled."""
    return view_overviews(visitor.home.lake, visitor.load(pipeline))


@router.get("/query/{pipeline}")
def query(visitor: VisitorDep, pipeline: str, sql: Annotated[str, Query(max_length=MOST_CHARACTERS)]) -> PlainAnswer:
    """Answer one SELECT over the served views, tables and served queries of the pipeline; at most 1,000 rows."""
    visitor.load(pipeline)
    return answer(visitor.home, pipeline, sql, PAGE)


@router.get("/openapi.json", include_in_schema=False)
def describe() -> dict[str, Any]:
    """The description of this interface, behind the login like all the rest."""
    return get_openapi(title="Weir", version="1", routes=router.routes)


def _or_404(found: Item | None, line: str) -> Item:
    if found is None:
        raise HTTPException(404, line)
    return found
