"""``evals/summary.json``: what a suite of evaluations found about one checkpoint.

The summary names the model it is to become, and the run and the step that were measured, so that a
good summary of another model, or of an earlier step, opens no gate. What it claims is checked
against its own numbers: a result passes when its value meets its threshold, and the suite passes
when every result does.

Not covered: running evaluations. The release gate reads what a suite wrote.
"""

from typing import Annotated

import msgspec

from tinyllm.documents import decode_strictly
from tinyllm.paths import MAX_STEP

SUMMARY_LIMIT_BYTES = 16 << 20

_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]
_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]


class EvalResult(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One evaluation: a ``value`` that must reach (or, for a loss, stay below) a ``threshold``."""

    name: _Name
    metric: _Name
    value: float
    threshold: float
    higher_is_better: bool
    passed: bool


class EvalSummary(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All the results of one suite on the checkpoint of ``step`` of the run ``run_id``."""

    model_id: _Id
    run_id: _Id
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
    suite: _Name
    passed: bool
    results: Annotated[list[EvalResult], msgspec.Meta(min_length=1, max_length=100_000)]


def decode_summary(data: bytes) -> EvalSummary:
    """Read a summary; ValueError says what is wrong with it."""
    return decode_strictly(data, EvalSummary)


def summary_problems(data: bytes, *, model_id: str, run_id: str, step: int | None) -> list[str]:
    """Everything that keeps the model from being released with this summary."""
    try:
        summary = decode_summary(data)
    except ValueError as error:
        return [f"is not an evaluation summary: {error}"]
    problems = []
    if summary.model_id != model_id:
        problems.append(f"is of another model: {summary.model_id}, not {model_id}")
    if summary.run_id != run_id:
        problems.append(f"is of another run: {summary.run_id}, not {run_id}")
    if step is not None and summary.step != step:
        problems.append(f"is of another step: {summary.step}, not {step}")
    failed = False
    for number, result in enumerate(summary.results, start=1):
        met = (
            result.value >= result.threshold
            if result.higher_is_better
            else result.value <= result.threshold
        )
        relation = "below" if result.higher_is_better else "above"
        where = f"result {number} ({result.name})"
        if not met:
            what = f"{result.metric} is {result.value}, {relation} {result.threshold}"
            claim = ", but it claims to have passed" if result.passed else ""
            problems.append(f"{where} did not pass: {what}{claim}")
        elif not result.passed:
            problems.append(f"{where} did not pass")
        failed = failed or not met or not result.passed
    if not summary.passed:
        problems.append(f"the suite {summary.suite} did not pass")
    elif failed:
        problems.append(
            f"the suite {summary.suite} claims to have passed, but not every result did"
        )
    return problems
