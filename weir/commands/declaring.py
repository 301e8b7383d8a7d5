"""Commands about declarations: check, test, search."""

from typing import Annotated

import typer

from weir import screens
from weir.cases import load_cases
from weir.commands.terminal import AsJson, out, print_json, run
from weir.event_time import utc_now
from weir.jobs import Job
from weir.layout import Home, alerts_topic
from weir.loader import load_named, load_pipelines
from weir.pipeline import nearest
from weir.records.driver import Search, Searches
from weir.refusal import Refusal
from weir.stack import running_bootstrap


def check(
    pipeline: Annotated[str | None, typer.Argument(help="one pipeline, default all")] = None,
    no_spark: Annotated[bool, typer.Option("--no-spark", help="only the declaration, not what Spark says of its SQL")] = False,
    cluster: Annotated[bool, typer.Option("--cluster", help="what the Spark master lacks on which the jobs are to run")] = False,
    as_json: AsJson = False,
) -> None:
    """Say what is wrong with the declarations, before anything runs."""
    home = Home.from_environment()
    pipelines = {pipeline: load_named(home.pipelines, pipeline)} if pipeline else load_pipelines(home.pipelines)
    if not pipelines:
        raise Refusal(f"{home.pipelines}: holds no pipeline (a folder with a pipeline.yaml)")
    lines: dict[str, list[str]] = {}
    for name in pipelines:
        lines[name] = [] if no_spark else run(Job(home, "check_job", name), f"Spark reads {name}").lines
        if cluster:
            lines[name] = [*lines[name], *run(Job(home, "cluster_job", name, running_bootstrap(home)), "asking the executors").lines]
    if as_json:
        print_json({name: {"ok": True, "views": found} for name, found in lines.items()})
        return
    for name, found in lines.items():
        declared = pipelines[name]
        out.print(f"[green]✓[/] {name}: {len(declared.streams)} streams, {len(declared.tables)} tables, {len(declared.views)} views")
        for line in found:
            out.print(f"    {line}", markup=False, soft_wrap=True)


def test(
    pipeline: Annotated[str, typer.Argument(help="whose cases (<name>_test.yaml) to run")],
    case: Annotated[str, typer.Option(help="only cases with this in their name")] = "",
    as_json: AsJson = False,
) -> None:
    """Run a pipeline's test cases: rows in, cells out; as a batch, as a stream cut at random, and with a crash in between."""
    home = Home.from_environment()
    load_cases(home.pipelines / pipeline, load_named(home.pipelines, pipeline))  # mistakes are said before Spark starts
    told = run(Job(home, "cases_job", pipeline, options=["--case", case]), f"Spark runs the cases of {pipeline}")
    if as_json:
        print_json([result.model_dump() | {"passed": result.passed} for result in told.cases])
    else:
        screens.show_cases(out, told.cases, told.lines)
    if not all(result.passed for result in told.cases):
        raise typer.Exit(1)


search = typer.Typer(help="Conditions that people save, to be told of each row that meets one, at once.", no_args_is_help=True)


@search.command("add")
def search_add(
    pipeline: Annotated[str, typer.Argument()],
    stream: Annotated[str, typer.Argument(help="a stream that the declaration watches")],
    name: Annotated[str, typer.Argument(help="how alerts call it; one that is there is replaced")],
    when: Annotated[str, typer.Argument(help="a condition in Spark SQL, for example \"amount > 500 AND country = 'DE'\"")],
) -> None:
    """Save a condition: rows that meet it are told to <pipeline>.alerts from now on. The views are not disturbed."""
    home = Home.from_environment()
    declared = load_named(home.pipelines, pipeline)
    if stream not in declared.watch:
        hint = nearest(stream, declared.watch) if declared.watch else ""
        raise Refusal(f"'{stream}' is not watched: name it below `watch:` in the declaration of {pipeline}{hint}")
    if name in declared.watch[stream].alerts:
        raise Refusal(f"'{name}' is an alert of the declaration: choose another name")
    run(Job(home, "check_job", pipeline, options=["--search", stream, when]), "Spark reads the condition")
    file = home.lake.searches(pipeline)
    others = [own for own in (Searches.read(file) or Searches()).saved if own.name != name]
    Searches(saved=[*others, Search(name=name, stream=stream, when=when, added_at=utc_now())]).write(file)
    out.print(f"'{name}' is heard of on {alerts_topic(pipeline)} as soon as the driver has read it", markup=False, soft_wrap=True)


@search.command("list")
def search_list(pipeline: Annotated[str, typer.Argument()], as_json: AsJson = False) -> None:
    """The saved conditions."""
    home = Home.from_environment()
    saved = (Searches.read(home.lake.searches(load_named(home.pipelines, pipeline).name)) or Searches()).saved
    if as_json:
        print_json([own.model_dump(mode="json") for own in saved])
    else:
        screens.show_searches(out, saved)


@search.command("drop")
def search_drop(pipeline: Annotated[str, typer.Argument()], name: Annotated[str, typer.Argument()]) -> None:
    """Forget a saved condition."""
    file = Home.from_environment().lake.searches(pipeline)
    saved = (Searches.read(file) or Searches()).saved
    if name not in [own.name for own in saved]:
        raise Refusal(f"there is no search '{name}'{nearest(name, [own.name for own in saved]) if saved else ''}")
    Searches(saved=[own for own in saved if own.name != name]).write(file)
    out.print(f"'{name}' is forgotten", markup=False)
