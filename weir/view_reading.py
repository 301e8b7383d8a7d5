"""Views as people look at them: what is declared of each, how far it is settled, what its checks are. From records alone."""

from dataclasses import dataclass
from datetime import date

from weir.event_time import ONE_DAY
from weir.expectations import Expectation
from weir.layout import Lake
from weir.pipeline import Pipeline
from weir.serving import cell_days, settled_run

FIRST_ROWS = 200


@dataclass(frozen=True)
class ViewOverview:
    """One view in a list, from the declaration and one small record."""

    name: str
    grain: list[str]
    streams: list[str]
    tables: list[str]
    is_pattern: bool
    settled_until: date | None
    ahead: int
    """Days that passed while one before them did not."""
    fingerprint: str


def view_overviews(lake: Lake, pipeline: Pipeline) -> list[ViewOverview]:
    return [view_overview(lake, pipeline, view) for view in pipeline.views]


def view_overview(lake: Lake, pipeline: Pipeline, view: str) -> ViewOverview:
    declared, run = pipeline.views[view], settled_run(lake, pipeline, view)
    return ViewOverview(
        name=view,
        grain=declared.grain,
        streams=pipeline.streams_of(view),
        tables=list(declared.as_of),
        is_pattern=declared.pattern is not None,
        settled_until=run.until if run else None,
        ahead=len(run.ahead) if run else 0,
        fingerprint=pipeline.fingerprint(view),
    )


def first_question(lake: Lake, pipeline: Pipeline, view: str) -> str:
    """A good one to begin with: the last two days that have cells, which costs little."""
    time = pipeline.views[view].time
    days = cell_days(lake, pipeline, view)
    within = f"\nWHERE {time} >= TIMESTAMPTZ '{days[-1] - ONE_DAY}'" if days else ""
    return f"SELECT *\nFROM {view}{within}\nORDER BY {time} DESC\nLIMIT {FIRST_ROWS}"


def told_expectation(expectation: Expectation) -> str:
    """What it asks for, as it was declared."""
    told = dict(expectation.arguments) | {"mostly": expectation.mostly, "row_condition": expectation.row_condition}
    return ", ".join(f"{name}: {value}" for name, value in told.items() if value is not None)
