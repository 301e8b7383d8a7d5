"""The `weir` command. Each command prints for people and, with --json, for programs; a refusal is one line and exit code 2."""

import sys

import typer

from weir.commands import asking, declaring, nights, quality, running
from weir.commands.terminal import err
from weir.jobs import JobFailed
from weir.lake_files import store_trouble
from weir.refusal import Refusal

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
for command in (
    *(declaring.check, declaring.test, running.jars, running.topics, running.up, running.down, running.status, running.produce),
    *(running.stream, quality.refine, nights.nightly, nights.reconcile, nights.explain, nights.ledger, nights.advise, asking.query),
    *(quality.housekeep, running.demo, nights.drill),
):
    app.command()(command)
app.add_typer(quality.quarantine, name="quarantine")
app.add_typer(declaring.search, name="search")


def main() -> None:
    try:
        app()
    except Refusal as refusal:
        err.print(f"weir: {refusal}", markup=False, soft_wrap=True)
        sys.exit(2)
    except JobFailed as failure:
        err.print(f"weir: {failure}", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if (trouble := store_trouble(error)) is None:
            raise
        err.print(f"weir: {trouble}", markup=False, soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
