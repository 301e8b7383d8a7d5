"""Quality: every stream by day, what was set aside and by which rule, as a trend; down to the reports of a day."""

from collections import Counter
from datetime import date, timedelta
from typing import Any

from fastapi import APIRouter
from fastapi.responses import HTMLResponse

from weir.look.charts import Frame
from weir.pipeline import Pipeline
from weir.records.record import read_once
from weir.summaries import QualityDay, QualitySummary
from weir_airflow.pages.book import Book, BookDep, PageNumber

router = APIRouter()
SPARK = Frame(150, 34, left=0, right=150, top=2, bottom=32)
SHOWN_DAYS = 14
SHOWN_RULES = 10


@router.get("/quality")
def show_quality(book: BookDep, page: PageNumber = 1) -> HTMLResponse:
    found, place = book.some_pipelines(page)
    pipelines = [
        {"name": name, "wrong": wrong, "streams": _streams(book, pipeline, summary) if pipeline else [], "summary": summary}
        for name, pipeline, wrong in found
        for summary in [_summary(book, name)]
    ]
    return book.show("quality.html", "quality", pipelines=pipelines, place=place)


@router.get("/quality/{pipeline}")
def show_quality_of(book: BookDep, pipeline: str) -> HTMLResponse:
    declared = book.visitor.load(pipeline)
    summary = _summary(book, pipeline)
    newest = max((own_days[-1].day for own_days in summary.streams.values() if own_days), default=None) if summary else None
    days = [str(date.fromisoformat(newest) - timedelta(days=back)) for back in range(SHOWN_DAYS - 1, -1, -1)] if newest else []
    by_day = {name: {own.day: own for own in summary.streams.get(name, [])} for name in declared.sources} if summary else {}
    rules: Counter[tuple[str, str]] = Counter()
    for name, own_days in (summary.streams if summary else {}).items():
        for own in own_days:
            rules.update({(name, reason): rows for reason, rows in own.reasons.items()})
    worst = rules.most_common(SHOWN_RULES)
    return book.show(
        "quality_of.html",
        "quality",
        pipeline=pipeline,
        summary=summary,
        streams=_streams(book, declared, summary),
        days=days,
        by_day=by_day,
        worst=worst,
        most_rows=max([1, *(rows for _, rows in worst)]),
        depth=_depth,
    )


def _summary(book: Book, pipeline: str) -> QualitySummary | None:
    return read_once(QualitySummary, book.home.lake.quality_summary(pipeline))


def _streams(book: Book, pipeline: Pipeline, summary: QualitySummary | None) -> list[dict[str, Any]]:
    found = []
    for name, source in pipeline.sources.items():
        days = summary.streams.get(name, []) if summary else []
        found.append(
            {
                "name": name,
                "kind": "table" if name in pipeline.tables else "stream",
                "topics": ", ".join(source.topics),
                "last": days[-1] if days else None,
                "bars": _bars(days[-SHOWN_DAYS:]),
                "level": source.levels.rejected,
                "blocked": bool(summary and name in summary.blocked),
            }
        )
    return found


def _bars(days: list[QualityDay]) -> list[dict[str, Any]]:
    """The shares set aside, day by day, as bars on one scale."""
    most = max([0.02, *(own.share_set_aside or 0 for own in days)])
    step, height = (SPARK.right - SPARK.left) / SHOWN_DAYS, SPARK.bottom - SPARK.top
    return [
        {
            "x": SPARK.left + step * (place + SHOWN_DAYS - len(days)),
            "width": step - 2,
            "height": (tall := max(1.0, height * own.share_set_aside / most) if own.share_set_aside else 0.0),
            "y": SPARK.bottom - tall,
            "title": f"{own.day}: {own.set_aside:,} of {own.rows:,} rows set aside",
            "day": own.day,
        }
        for place, own in enumerate(days)
    ]


DEPTHS = (0.005, 0.02, 0.05, 0.1)


def _depth(own: QualityDay) -> int:
    """How dark a day's square is: 0 nothing set aside, 5 a tenth or more."""
    share = own.share_set_aside
    return 1 + sum(share >= bound for bound in DEPTHS) if share else 0
