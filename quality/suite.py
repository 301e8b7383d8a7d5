"""Declaration → Great Expectations suite. Refuses a suite that Great Expectations does not keep whole.

Importing Great Expectations takes seconds, so it is imported when the first suite is built.
"""

import functools
import logging
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from weir.expectations import Expectation, argument_names, nearest
from weir.refusal import Refusal

if TYPE_CHECKING:
    from great_expectations import ExpectationSuite
    from great_expectations.data_context import EphemeralDataContext


@functools.cache
def quiet_context() -> "EphemeralDataContext":
    """The one context of this process: in memory, without progress bars, and telling nobody."""
    import great_expectations

    logging.getLogger("great_expectations").setLevel(logging.ERROR)
    context = great_expectations.get_context(mode="ephemeral")
    context.enable_analytics(False)
    context.variables.progress_bars = {"globally": False}  # type: ignore[assignment]
    return context


def build_suite(name: str, expectations: Sequence[Expectation]) -> "ExpectationSuite":
    """The suite of these expectations, each with its rule's name in its meta. All that is wrong is said, one line for each."""
    from great_expectations import ExpectationSuite

    quiet_context()
    built = [_build(expectation) for expectation in expectations]
    if wrong := [f"{name}: {one}" for one in built if isinstance(one, str)]:
        raise Refusal("\n".join(wrong))
    suite = ExpectationSuite(name=name, expectations=built)
    refuse_unless_whole(suite, expectations)
    return suite


def refuse_unless_whole(suite: "ExpectationSuite", expectations: Sequence[Expectation]) -> None:
    """Great Expectations logs an expectation that it does not understand, and goes on without it."""
    kept = [(kept.expectation_type, (kept.meta or {}).get("rule")) for kept in suite.expectations]
    lost = [expectation for expectation in expectations if (expectation.name, expectation.rule) not in kept]
    if lost:
        told = ", ".join(f"{expectation.name} ({expectation.rule})" for expectation in lost)
        raise Refusal(f"{suite.name}: Great Expectations did not keep {told}")
    if len(kept) != len(expectations):
        raise Refusal(f"{suite.name}: Great Expectations has {len(kept)} expectations for the {len(expectations)} that are declared")


def _build(expectation: Expectation) -> Any:
    """Great Expectations' own expectation, or the line that says why there is none."""
    from great_expectations.compatibility.pydantic import ValidationError
    from great_expectations.expectations.registry import get_expectation_impl

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # a condition in Spark's own SQL is all that fits both layers
            built = get_expectation_impl(expectation.name)(**expectation.gx_arguments(), meta={"rule": expectation.rule})
    except ValidationError as error:
        return f"{expectation.name}: {_say(expectation, error.errors()[0])}"
    except Exception as error:
        return f"{expectation.name}: {' '.join(str(error).split())}"
    if built.suite_parameter_options:
        return f"{expectation.name}: takes its arguments from the declaration only, not from suite parameters"
    return built


def _say(expectation: Expectation, error: Any) -> str:
    known = argument_names(expectation.name)
    argument = str(error["loc"][0])
    match error["type"]:
        case "value_error.extra":
            return f"unknown argument '{argument}'{nearest(argument, known)}"
        case "value_error.missing":
            return f"needs '{argument}'"
    about = f"{argument}: " if argument in known else ""
    return f"{about}{error['msg']}"
