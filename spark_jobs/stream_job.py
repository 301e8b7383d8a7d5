"""The speed layer of one pipeline, in one driver.

1. take the lease, or be refused before Spark starts
2. start the queries: archive, intake, views that need state, watches
3. every two seconds: beat, look for failed queries and for a stop request
4. stop every query at a batch border, report how it ended
"""

import argparse
import os
import signal

from spark_jobs.entry import Call, one_line, run_job
from spark_jobs.streaming.driver import Driver
from weir.records.driver import Control
from weir.records.jobs import Outcome
from weir.refusal import Refusal
from weir.stack import missing_topics
from weir.supervision import LeaseLost, take_lease

MAX_BATCH_MESSAGES = 200_000
"""A batch is bounded however large the backlog: this many fit into a driver of 2 GB with room to spare. Where they take too long, fewer."""


def stream(call: Call) -> Outcome:
    if missing := missing_topics(call.kafka, list(call.pipeline.topics)):
        raise Refusal(f"topic {', '.join(missing)} is not on {call.kafka}: run `weir up`, or create it there")
    control = Control(call.lake.control(call.pipeline.name))
    name = call.pipeline.name
    lease = take_lease(control, f"{name} already has a driver", f"stop it with `weir stream {name} --stop`", call.options.launch)
    driver = Driver(call, lease, control)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: driver.stopping.set())
    try:
        driver.start()
        error = driver.look_after()
        driver.stop()
    except LeaseLost as lost:
        return Outcome(failure=f"stopped at once: {lost}")
    except Exception as failure:
        driver.beat("failed", one_line(failure))
        raise
    driver.beat("failed" if error else "stopped", error)
    return Outcome(failure=error)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--launch", help="the nonce by which the starter knows this driver again")
    parser.add_argument("--once", action="store_true", help="read what is there, then stop")
    parser.add_argument("--views", default="", help="only these views, separated by commas")
    parser.add_argument("--no-archive", action="store_true")
    parser.add_argument("--no-watch", action="store_true")
    parser.add_argument("--trigger-seconds", type=float, default=1, help="how often the intake starts a batch")
    most = int(os.environ.get("WEIR_MAX_BATCH") or MAX_BATCH_MESSAGES)
    parser.add_argument("--max-batch", type=int, default=most, help="messages in one batch of the intake")
    parser.add_argument("--max-archive-batch", type=int, default=MAX_BATCH_MESSAGES)


if __name__ == "__main__":
    run_job(stream, add_options)
