"""The command that answers questions: query."""

from typing import Annotated

import typer

from weir import screens
from weir.commands.terminal import AsJson, out, print_json
from weir.layout import Home
from weir.loader import load_named, load_pipelines
from weir.serving import answer_query


def query(
    sql: Annotated[str, typer.Argument(help="a SELECT over views; <view>__speed and <view>__batch are its layers")],
    pipeline: Annotated[str | None, typer.Option(help="only the views of this one")] = None,
    as_json: AsJson = False,
) -> None:
    """Ask the served views by SQL (DuckDB's), without starting Spark."""
    home = Home.from_environment()
    pipelines = [load_named(home.pipelines, pipeline)] if pipeline else list(load_pipelines(home.pipelines).values())
    answer = answer_query(home.lake, pipelines, sql)
    if as_json:
        print_json([dict(zip(answer.columns, row, strict=True)) for row in answer.rows])
    else:
        screens.show_answer(out, answer)
