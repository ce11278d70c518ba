"""Why power loss breaks a program, per model: the order that was needed, and what mends it.

What is done here happens in a worker: states are judged by the subject's own resume. Everything is
bounded, in time as well, and the answer says where a bound was met.
"""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.crash_states import PlaceCount, State, cause_of, enumerate_states, rebuild
from fault_injection.trace import Trace
from harness.cases import Case
from harness.errors import CannotJudge
from harness.evidence import Finding
from harness.mending import Mending, Search, Sparing, mended, spared
from harness.power.explore import Exploration, prepare
from harness.power.judge import Judge
from harness.power.reasons import Reason, crash_words, reason_of

ENOUGH = 40  # failing states to choose the one to show from


@dataclass(frozen=True, slots=True)
class Why:
    """One crash state: the invariants it breaks, and the order that was needed."""

    findings: tuple[Finding, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Explained:
    """One model: ``failed`` of ``states``, and then ``mending``, or else ``sparing``.

    Where many fail only the first are looked at: ``all_judged`` is false then, and both numbers
    are those of what was. ``stopped`` says that the budget ended the search, and what is missing.
    """

    model: str
    states: int
    failed: int
    sampled: bool
    all_judged: bool = True
    why: Why | None = None
    mending: Mending | None = None
    sparing: Sparing | None = None
    stopped: str = ""


class _OutOfTime(Exception):
    """The budget is used up."""


def explain_state(exploration: Exploration, case: Case, scratch: Path) -> Why | None:
    """Why the crash state of a power case is bad; None: it is good. CannotJudge when it is gone."""
    prepared = prepare(exploration, scratch)
    descriptor = dict(case.state).get("state", "")
    try:
        state = rebuild(prepared.trace, exploration.model, descriptor, outputs=prepared.outputs)
    except ValueError as error:
        raise CannotJudge(f"{case.id}: this recording has no such crash state: {error}") from error
    return _why(state, prepared.judge)


def explain_kill(exploration: Exploration, place: str, scratch: Path) -> str:
    """Which operation makes a kill before ``place`` harmful, in words; "" when it is not known."""
    prepared = prepare(exploration, scratch)
    trace = prepared.trace
    at = next((op.index for op in trace.operations if op.place == place), len(trace.operations))
    bad: State | None = None
    for state in enumerate_states(trace, model="kill", outputs=prepared.outputs):
        if state.place > at:
            break
        bad = None if prepared.judge.is_good(state) else bad or state
    return "" if bad is None else crash_words(bad)


def _why(state: State, judge: Judge) -> Why | None:
    findings = judge.findings(state)
    if not findings:
        return None
    return Why(tuple(findings), reason_of(state, cause_of(state, judge.is_good)))


def explain_model(exploration: Exploration, scratch: Path, *, budget_s: float) -> Explained:
    """All that there is to say of a recorded run under the exploration's model."""
    prepared = prepare(exploration, scratch)
    return explained(prepared.trace, prepared.outputs, prepared.judge, exploration, budget_s)


def explained(
    trace: Trace, outputs: tuple[int, ...], judge: Judge, asked: Exploration, budget_s: float
) -> Explained:
    """The same for a trace and a judge that are there already."""
    deadline_s = time.monotonic() + budget_s

    def is_good(state: State) -> bool:
        if time.monotonic() > deadline_s:
            raise _OutOfTime
        return judge.is_good(state)

    search = Search(
        trace,
        asked.model,
        frozenset(outputs),
        is_good,
        asked.seed,
        asked.bound,
        names=judge.baseline.stable_names,
    )
    said = Explained(asked.model, states=0, failed=0, sampled=False)
    counts: list[PlaceCount] = []
    failing: list[State] = []
    try:
        for state in search.states(trace, search.outputs, counts):
            said = replace(said, states=said.states + 1)
            if not is_good(state):
                failing.append(state)
            if len(failing) == ENOUGH:
                said = replace(said, all_judged=False)
                break
    except _OutOfTime:
        return replace(said, failed=len(failing), stopped="not every crash state was judged")
    said = replace(said, failed=len(failing), sampled=any(c.sampled for c in counts))
    try:
        if not failing:
            return replace(said, sparing=spared(search))
        smallest = min(failing, key=lambda s: (len(s.lost()) + len(s.data), s.place))
        said = replace(said, why=_why(smallest, judge))
        return replace(said, mending=mended(search))
    except _OutOfTime:
        what = "the smallest set of fsyncs was" if failing else "the fsyncs nobody needs were"
        return replace(said, stopped=f"{what} not found out")
