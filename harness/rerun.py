"""One case again, with everything kept: the trees, what was said, the timeline. In a worker.

The first attempt is recorded, and what the resume looked at is observed, which a campaign's run of
the same case does without; the verdict is the same.
"""

from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.attempt import Attempt
from fault_injection.crash_states import (
    enumerate_states,
    materialize,
    rebuild,
)
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.space import space_of
from fault_injection.trace import Kind, Trace
from harness.baseline import Baseline
from harness.cases import Case
from harness.errors import CannotJudge
from harness.evidence import History
from harness.oracle import judge
from harness.power.explore import Exploration, case_of, prepare
from harness.realfs import rerun_cut
from harness.report.timeline import Read, Step, Timeline
from harness.results import FAIL, PASS
from harness.runner import Kept, Outcome, run_case
from harness.state_timeline import steps_of
from harness.subjects import Subject

MAX_READS = 60


@dataclass(frozen=True, slots=True)
class KeptRun:
    """A case that was run again. The trees are ``state-<n>`` in the directory that was given."""

    outcome: Outcome
    timeline: Timeline


def rerun_case(
    subject: Subject, baseline: Baseline, case: Case, scratch: Path, directory: Path
) -> KeptRun:
    """Run a case of faults, where it was run: in ``scratch``, or on a real file system."""
    if case.layer.startswith("realfs/"):
        outcome = rerun_cut(subject, baseline, case, Kept(directory))
    else:
        outcome = run_case(subject, baseline, case, scratch, kept=Kept(directory))
    trace = outcome.attempts[0].trace
    steps = _killed_steps(trace) if trace is not None else ()
    return KeptRun(
        _without_traces(outcome),
        Timeline(
            title=case.id,
            steps=steps,
            crash=case.describe(),
            reads=_reads(outcome.attempts[-1]) if len(outcome.attempts) > 1 else (),
            outcome=_words(outcome),
        ),
    )


def _without_traces(outcome: Outcome) -> Outcome:
    """The outcome as it can be sent: a trace holds on to its worker's spool."""
    return replace(outcome, attempts=tuple(replace(a, trace=None) for a in outcome.attempts))


def _killed_steps(trace: Trace) -> tuple[Step, ...]:
    """After a kill the page cache survives: whatever was done is there."""
    words = operation_words(space_of(trace, "kill").history)
    return tuple(
        Step(
            index=op.index,
            text=words[op.index],
            status="seen" if op.kind is Kind.OUTPUT else "durable",
            site=op.site,
        )
        for op in trace.operations
    )


def rerun_state(exploration: Exploration, case: Case, scratch: Path, directory: Path) -> KeptRun:
    """Resume on the crash state of a power case. Raises :class:`CannotJudge` when it is gone."""
    prepared = prepare(exploration, scratch)
    descriptor = dict(case.state).get("state", "")
    try:
        state = rebuild(prepared.trace, exploration.model, descriptor, outputs=prepared.outputs)
    except ValueError as error:
        raise CannotJudge(f"{case.id}: this recording has no such crash state: {error}") from error
    tree = state.tree()
    target = directory / "state-1"
    target.mkdir(parents=True)
    materialize(tree, str(target))
    resumed, _, attempt = prepared.judge.run_kept(tree)
    history = History(
        subject=exploration.subject,
        layer=case.layer,
        steps=(prepared.judge.crash(state, tree), resumed.step),
        final=resumed.final,
        tree_is_final=resumed.tree_is_final,
    )
    findings = tuple(judge(history, exploration.baseline))
    outcome = Outcome(
        case=case,
        verdict=FAIL if findings else PASS,
        findings=findings,
        evidence=f"power lost after {state.place_label}, state {state.digest[:12]}",
        seconds=attempt.seconds,
        attempts=(attempt,),
        history=history,
    )
    return KeptRun(
        outcome,
        Timeline(
            title=case.id,
            steps=steps_of(state),
            crash=f"power lost after {state.place_label}",
            reads=_reads(attempt),
            outcome=_words(outcome),
        ),
    )


def smaller_states(exploration: Exploration, case: Case, scratch: Path) -> list[Case]:
    """States that break an invariant and lose fewer operations, or come earlier; smallest first.

    They are judged by what the judge knows, so that only few are run again for real.
    """
    prepared = prepare(exploration, scratch)
    descriptor = dict(case.state).get("state", "")
    try:
        state = rebuild(prepared.trace, exploration.model, descriptor, outputs=prepared.outputs)
    except ValueError as error:
        raise CannotJudge(f"{case.id}: this recording has no such crash state: {error}") from error
    size = (len(state.lost()) + len(state.data), state.place)
    found: list[tuple[tuple[int, int], Case]] = []
    for other in enumerate_states(
        prepared.trace,
        model=exploration.model,
        seed=exploration.seed,
        bound=exploration.bound,
        outputs=prepared.outputs,
    ):
        other_size = (len(other.lost()) + len(other.data), other.place)
        if other_size < size and prepared.judge.findings(other):
            found.append((other_size, case_of(exploration, other)))
    return [smaller for _, smaller in sorted(found, key=lambda pair: pair[0])]


def states_of(exploration: Exploration, scratch: Path) -> list[Case]:
    """Every distinct crash state of the exploration as a case."""
    prepared = prepare(exploration, scratch)
    return [
        case_of(exploration, state)
        for state in enumerate_states(
            prepared.trace,
            model=exploration.model,
            seed=exploration.seed,
            bound=exploration.bound,
            outputs=prepared.outputs,
        )
    ]


def _reads(attempt: Attempt) -> tuple[Read, ...]:
    """What the resumed attempt asked of the tree."""
    asked = list((attempt.reads or {}).items())[:MAX_READS]
    return tuple(
        Read(path=path.decode("utf-8", "backslashreplace") or ".", answer=", ".join(sorted(levels)))
        for path, levels in asked
    )


def _words(outcome: Outcome) -> str:
    if outcome.findings:
        return "; ".join(f"{f.invariant}: {f.message}" for f in outcome.findings)
    return outcome.message or "every invariant held"
