"""Great Expectations on a closed batch, and the decision that follows. A gate fails closed.

The verdict sets single rows aside; Great Expectations then judges what is left as a whole: the aggregates, the milder row
rules, and once more the rules of the verdict. Those must hold for every row by now; if one does not, the two disagree and
nothing is published. An exception, a timeout or a suite that is not whole blocks as well.
"""

import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from quality.suite import build_suite, quiet_context
from weir.expectations import Expectation
from weir.masking import MASK
from weir.records.quality import Decision, ExpectationResult

DEADLINE_SECONDS = 300
RESULT_FORMAT = {"result_format": "SUMMARY", "partial_unexpected_count": 5}
"""At most five values of an expectation: the rows themselves are in quarantine."""


@dataclass(frozen=True)
class Validation:
    """What a validation found. `suite_result` is Great Expectations' own, for its own page; None when it did not come to one."""

    results: list[ExpectationResult]
    suite_result: Any = None
    trouble: str | None = None
    """Why the validation did not come to its end."""


def validate(
    rows: DataFrame,
    name: str,
    expectations: Sequence[Expectation],
    deadline_seconds: float = DEADLINE_SECONDS,
    before: Callable[[], None] = lambda: None,
    private: Collection[str] = (),
) -> Validation:
    """Judge closed rows by the whole suite, within the deadline. Raises nothing but a Refusal of the suite itself.

    What is observed of private columns is not told.
    """
    if not expectations:
        return Validation([])
    suite = build_suite(name, expectations)
    found: list[Any] = []
    failed: list[BaseException] = []
    context = rows.sparkSession.sparkContext
    group = f"validate {name} {uuid.uuid4()}"

    def run() -> None:
        try:
            context.setJobGroup(group, f"validate {name}", interruptOnCancel=True)
            before()
            found.append(_run_suite(rows, suite))
        except BaseException as error:  # a thread has nobody else to tell; whatever it is, the gate blocks
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True, name=group)
    thread.start()
    thread.join(deadline_seconds)
    if thread.is_alive():
        context.cancelJobGroup(group)
        return Validation([], trouble=f"the validation of {name} did not end within {deadline_seconds:.0f} s")
    if failed:
        return Validation([], trouble=f"the validation of {name} broke: {_sentence(failed[0])}")
    (suite_result,) = found
    results = _results(expectations, suite_result, private)
    if len(results) != len(expectations):
        return Validation(
            results, suite_result, f"Great Expectations answered {len(results)} of {len(expectations)} expectations of {name}"
        )
    return Validation(results, suite_result)


def _run_suite(rows: DataFrame, suite: Any) -> Any:
    """One validation by a data source of its own, forgotten afterwards: a driver validates for weeks."""
    context = quiet_context()
    name = f"batch {uuid.uuid4()}"
    # persist=False: by default Great Expectations caches each frame and never releases it.
    source = context.data_sources.add_spark(name, persist=False)
    try:
        batch = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name).get_batch({"dataframe": rows})
        return batch.validate(suite, result_format=RESULT_FORMAT)
    finally:
        context.data_sources.delete(name)


def _results(expectations: Sequence[Expectation], suite_result: Any, private: Collection[str]) -> list[ExpectationResult]:
    """Great Expectations' results in the order of the declaration, paired by the rule's name that each expectation carries."""
    by_rule = {result.expectation_config.meta["rule"]: result for result in suite_result.results}
    found = []
    for expectation in expectations:
        if (result := by_rule.get(expectation.rule)) is None:
            continue
        detail = result.result or {}
        observed = detail.get("observed_value")
        if observed is not None and not set(expectation.columns).isdisjoint(private):
            observed = MASK
        found.append(
            ExpectationResult(
                expectation=expectation.name,
                rule=expectation.rule,
                arguments=expectation.shown_arguments(),
                severity=expectation.severity,
                success=bool(result.success),
                observed=None if observed is None else str(observed)[:200],
                unexpected=int(detail.get("unexpected_count") or 0),
                checked=int(detail.get("element_count") or 0),
                error=_exception_in(result.exception_info),
            )
        )
    return found


def _exception_in(info: Any) -> str | None:
    """Great Expectations tells of an exception in one of two forms: one for all, or one by each metric."""
    if not info:
        return None
    for entry in [info] if "raised_exception" in info else info.values():
        if isinstance(entry, Mapping) and entry.get("raised_exception"):
            return _plainly(str(entry.get("exception_message") or "an exception without a message"))
    return None


def _plainly(message: str) -> str:
    """An exception's message in one line; of a JVM that is gone all that is left is a refused connection."""
    if any(sign in message for sign in ("Connection refused", "Answer from Java side is empty", "Error while sending or receiving")):
        return "Spark died meanwhile, most likely for want of memory (WEIR_DRIVER_MEMORY gives it more)"
    return " ".join(message.split())[:300]


def decide(
    expectations: Sequence[Expectation], validation: Validation, decoded: int, broken: Mapping[str, int]
) -> tuple[Decision, list[str]]:
    """PASS, WARN or BLOCK, and why. `decoded` rows were judged, of which `broken` says how many broke each rule."""
    blocks = [validation.trouble] if validation.trouble else []
    warnings: list[str] = []
    for expectation, result in zip(expectations, validation.results, strict=False):
        if result.error:
            blocks.append(f"{result.rule} could not be validated: {result.error}")
        elif not result.success and expectation.rejects:
            blocks.append(f"{result.rule}: Great Expectations finds {result.unexpected} rows among those that the verdict accepted")
        elif not result.success:
            told = f"{result.rule}: observed {result.observed}" if result.observed else f"{result.rule}: {result.unexpected} rows break it"
            (blocks if result.severity == "critical" else warnings if result.severity == "warning" else []).append(told)
    for expectation in expectations:
        if expectation.rejects and expectation.mostly is not None and decoded:
            share = 1 - broken.get(expectation.rule, 0) / decoded
            if share < expectation.mostly:
                blocks.append(f"{expectation.rule}: only {share:.1%} of {decoded:,} rows keep it, {expectation.mostly:.1%} must")
    return ("BLOCK" if blocks else "WARN" if warnings else "PASS"), [*blocks, *warnings]


def _sentence(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {_plainly(lines[0])}" if lines else type(error).__name__
