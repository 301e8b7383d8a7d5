"""How a Spark job is called and how it ends: the same arguments and the same outcome record for each of them."""

import argparse
import re
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from weir.lake_files import lake_path, store_trouble
from weir.layout import Lake
from weir.loader import load_named
from weir.pipeline import Pipeline
from weir.records.jobs import Outcome
from weir.refusal import Refusal


@dataclass(frozen=True)
class Call:
    """What every job is told: which declaration, which lake, which log, and where to leave its outcome."""

    pipeline: Pipeline
    lake: Lake
    kafka: str
    options: argparse.Namespace


def run_job(act: Callable[[Call], Outcome], add_options: Callable[[argparse.ArgumentParser], None]) -> None:
    """Run the job's act and exit: 0 done, 2 refused (a person must change something), 1 failed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pipeline", required=True)
    parser.add_argument("--pipelines", required=True, type=Path)
    parser.add_argument("--lake", required=True)
    parser.add_argument("--kafka", default="")
    parser.add_argument("--outcome", type=lake_path)
    add_options(parser)
    options = parser.parse_args()
    try:
        outcome = act(Call(load_named(options.pipelines, options.pipeline), Lake.at(options.lake), options.kafka, options))
    except Refusal as refusal:
        outcome = Outcome(refusal=str(refusal))
    except Exception as error:
        traceback.print_exc()
        outcome = Outcome(failure=store_trouble(error) or one_line(error))
    if options.outcome:
        outcome.write(options.outcome)
    if trouble := outcome.refusal or outcome.failure:
        print(trouble, file=sys.stderr, flush=True)
    sys.exit(2 if outcome.refusal else 1 if outcome.failure else 0)


def one_line(error: BaseException) -> str:
    """The sentence of an exception that tells a person most: Spark's deepest cause with an error class, else its first line."""
    text = str(error)
    while (cause := getattr(error, "_cause", None) or error.__cause__) is not None:
        error, text = cause, f"{text}\n{cause}"
    causes = re.findall(r"^(?:Caused by: )?(?:[\w.$]+(?:Exception|Error): )?(\[[A-Z_0-9.]+\] .*)$", text, re.MULTILINE)
    sentence = causes[-1] if causes else next((line for line in text.splitlines() if line.strip()), "")
    return re.sub(r"\s*SQLSTATE: \w+.*$", "", sentence)[:500] or type(error).__name__
