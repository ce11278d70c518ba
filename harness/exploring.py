"""What ``explore`` does in its child: set up, record, enumerate, check, explain.

Each distinct state is checked, in a fork of its own where it is not known what comes of it
(:mod:`harness.checking`): the state's tree lies at the path at which the workload ran, because
programs remember absolute paths. A state is known by its tree, and by what had been printed where
the check asks for that; all models share what is known.
"""

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fault_injection.attempt import Attempt, Command, Settings, run_attempt
from fault_injection.crash_states import (
    PlaceCount,
    State,
    VisibleTree,
    cause_of,
    enumerate_states,
    materialize,
)
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.space import space_of
from fault_injection.holding import ALL_OTHERS
from fault_injection.trace import FileType, Kind, Trace
from harness.checking import Checks, Plan, Printed, Unsteady
from harness.errors import CannotJudge
from harness.power.reasons import reason_of
from harness.recordings import recorded
from harness.report.clean import one_line, printable
from harness.report.timeline import Step, Timeline, as_text
from harness.scratch import emptied
from harness.state_timeline import steps_of

MAX_VIOLATIONS = 200  # of one model; all are counted
MAX_EXPLAINED = 6  # of one model, the smallest
MAX_LEFT = 8
_CHANGES_NOTHING = (Kind.OUTPUT, Kind.META, Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC)


@dataclass(frozen=True, slots=True)
class Count:
    """One model: distinct crash ``states``, ``failed`` of them, the crash ``places``.

    ``sampled``: a place had more states than the bound, and some were left out.
    """

    states: int
    failed: int
    places: int
    sampled: bool


@dataclass(frozen=True, slots=True)
class Violation:
    """One state on which the check failed.

    ``error`` is what the check said, on one line, ``traceback`` all of it. ``lost`` are the
    operations that were not durable, ``crash`` says where the crash fell, ``left`` what lay in the
    tree, ``told`` what had been printed. ``explained`` ones also have ``needs`` (the missing fsync,
    between which operations; empty when no fsync mends it), its source line ``site``, and ``steps``
    (every operation and what became of it). ``signature`` is alike where the same fsync misses.
    """

    model: str
    place: str
    error: str
    traceback: str
    lost: tuple[str, ...]
    crash: str
    left: tuple[str, ...]
    told: tuple[str, ...] = ()
    needs: str = ""
    site: str = ""
    signature: str = ""
    steps: tuple[Step, ...] = ()
    explained: bool = False

    def lines(self) -> list[str]:
        """For people: what failed, the order that was needed, what was durable and what not."""
        site = f"      {self.site}" if self.site else ""
        pairs = [
            ("needs", self.needs + site if self.needs else ""),
            *(("lost", lost) for lost in self.lost[:MAX_LEFT]),
            ("crash", self.crash),
            ("left", ", ".join(self.left) or "nothing"),
            ("printed", " | ".join(self.told)),
            ("note", self._note()),
        ]
        said = [f"  FAIL under {self.model}: {one_line(self.error)}"]
        said += [f"    {label:<8}{one_line(text, limit=600)}" for label, text in pairs if text]
        if not self.steps:
            return said
        drawn = Timeline(title="", steps=self.steps, crash=self.crash)
        return [*said, *("  " + line for line in as_text(drawn).splitlines()[1:])]

    def _note(self) -> str:
        if self.lost:
            return ""
        if self.crash.startswith("before"):
            return "nothing was lost: the check fails on the tree that setup left"
        return "nothing was lost: a kill at this place does the same, and no fsync mends it"


@dataclass(frozen=True, slots=True)
class Explored:
    """What came of it; see ``Exploration``."""

    violations: tuple[Violation, ...]
    counts: tuple[tuple[str, Count], ...]
    checks: int
    operations: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Found:
    """The same of one recording; each violation with its size and the number of its model."""

    violations: tuple[tuple[int, int, Violation], ...]
    counts: tuple[tuple[str, Count], ...]
    checks: int
    operations: tuple[str, ...]


def explored(plan: Plan, beat: Callable[[], None]) -> Explored:
    """All of it. Raises CannotJudge, and what setup raises."""
    if plan.setup is not None:
        plan.setup(plan.root)
        beat()
    traces, said = _recorded(plan, beat)
    found: list[_Found] = []
    for trace in traces:
        printed = _printed(trace) if plan.told else Printed()
        try:
            checks = Checks(plan, printed, beat, equal_reads=plan.equal_reads)
            found.append(_explored(plan, trace, checks))
        except Unsteady:
            found.append(_explored(plan, trace, Checks(plan, printed, beat, equal_reads=False)))
    return _together(found, said)


def _together(found: Sequence[_Found], said: tuple[str, ...]) -> Explored:
    """What the recordings showed, of different orders of the same threads."""
    first = found[0]
    violations = [sized for one in found for sized in one.violations]
    violations.sort(key=lambda sized: sized[:2])
    return Explored(
        violations=tuple(violation for _, _, violation in violations),
        counts=tuple(
            (model, _sum([dict(one.counts)[model] for one in found])) for model, _ in first.counts
        ),
        checks=sum(one.checks for one in found),
        operations=first.operations,
        notes=said,
    )


def _sum(counts: Sequence[Count]) -> Count:
    return Count(
        states=sum(count.states for count in counts),
        failed=sum(count.failed for count in counts),
        places=sum(count.places for count in counts),
        sampled=any(count.sampled for count in counts),
    )


def _explored(plan: Plan, trace: Trace, checks: Checks) -> _Found:
    counts: list[tuple[str, Count]] = []
    violations: list[tuple[int, int, Violation]] = []
    for number, model in enumerate(plan.models):
        count, failing = _failing(plan, trace, model, checks)
        counts.append((model, count))
        for position, (size, state) in enumerate(failing):
            violation = _violation(state, checks, explain=position < MAX_EXPLAINED)
            violations.append((size, number, violation))
    words = operation_words(space_of(trace, plan.models[0], checks.printed.ends).history)
    return _Found(
        violations=tuple(violations),
        counts=tuple(counts),
        checks=checks.ran,
        operations=tuple(words),
    )


def _recorded(plan: Plan, beat: Callable[[], None]) -> tuple[list[Trace], tuple[str, ...]]:
    """The workload's traces: one, or some of a workload of several threads; what is to be said."""
    first: list[Trace] = []

    def run(hold_back: tuple[int, int]) -> Attempt:
        if first:  # from the same start again
            start = next(iter(enumerate_states(first[0], model="kill")))
            materialize(start.tree(), str(emptied(plan.root)))
        beat()
        attempt = _attempt(plan, hold_back)
        if not first and attempt.trace is not None:
            first.append(attempt.trace)
        return attempt

    found, said = recorded(run, attempt_of=lambda attempt: attempt)
    return [attempt.trace for attempt in found if attempt.trace is not None], said


def _attempt(plan: Plan, hold_back: tuple[int, int]) -> Attempt:
    attempt = run_attempt(
        Command(("the workload",), os.getcwd(), (), call=lambda: plan.workload(plan.root)),
        Settings(
            str(plan.root),
            timeout_s=plan.timeout_s,
            record_to=str(plan.spool / str(hold_back[0])),
            hold_back=hold_back,
        ),
    )
    for stream, output in ((sys.stdout, attempt.stdout), (sys.stderr, attempt.stderr)):
        if hold_back[0] == ALL_OTHERS:  # once is enough
            stream.write(output.decode(errors="backslashreplace"))
    problem = _why_not(attempt, plan)
    if problem:
        raise CannotJudge(problem)
    assert attempt.trace is not None
    if all(op.kind in _CHANGES_NOTHING for op in attempt.trace.operations):
        raise CannotJudge(
            "the workload changed nothing below the path that it was given; there is no crash "
            "state to look at"
        )
    return attempt


def _why_not(attempt: Attempt, plan: Plan) -> str:
    """Why the recording is of no use; empty when it is."""
    if attempt.start_error:
        return f"the workload could not be started: {attempt.start_error}"
    if attempt.untraceable:
        return f"the workload cannot be traced: {attempt.untraceable}"
    if attempt.timed_out:
        return f"the workload did not end within {plan.timeout_s:g} s"
    if attempt.bounded:
        return f"the workload was stopped: {attempt.bounded}"
    if attempt.exit_code != 0:
        said = printable(attempt.stderr.decode(errors="replace")).rstrip()
        how = f"exit {attempt.exit_code}" if attempt.signal is None else f"signal {attempt.signal}"
        return f"the workload failed by itself, without any crash ({how}):\n{said}"
    if attempt.left_behind:
        left = ", ".join(attempt.left_behind)
        return f"the workload left processes behind; what they would write is not known: {left}"
    return ""


def _printed(trace: Trace) -> Printed:
    ends: list[int] = []
    counts: list[int] = []
    lines: list[str] = []
    begun = b""
    for op in trace.operations:
        if op.kind is Kind.OUTPUT and op.stream == "stdout" and op.size:
            *whole, begun = (begun + trace.blobs.read(op.blob, 0, op.size)).split(b"\n")
            if whole:
                lines += [line.decode("utf-8", "backslashreplace") for line in whole]
                ends.append(op.index)
                counts.append(len(lines))
    return Printed(tuple(ends), tuple(counts), tuple(lines))


def _failing(
    plan: Plan, trace: Trace, model: str, checks: Checks
) -> tuple[Count, list[tuple[int, State]]]:
    """The model's failing states with their sizes, the smallest first, and the counts."""
    places: list[PlaceCount] = []
    failing: list[tuple[int, State]] = []
    states = 0
    ends = checks.printed.ends
    for state in enumerate_states(
        trace, model=model, seed=plan.seed, bound=plan.bound, outputs=ends, counts=places
    ):
        states += 1
        if not checks.is_good(state):
            failing.append((len(state.lost()) + len(state.data), state))
    failing.sort(key=lambda one: (one[0], one[1].place))
    sampled = any(place.sampled for place in places)
    count = Count(states=states, failed=len(failing), places=len(places), sampled=sampled)
    return count, failing[:MAX_VIOLATIONS]


def _violation(state: State, checks: Checks, *, explain: bool) -> Violation:
    wrong = checks.wrong(state)
    assert wrong is not None
    reason = reason_of(state, cause_of(state, checks.is_good) if explain else None)
    return Violation(
        model=state.space.model.name,
        place=state.place_label,
        error=wrong.error,
        traceback=wrong.traceback,
        lost=reason.lost,
        crash=reason.crash,
        left=_left(state.tree()),
        told=checks.printed.by(state),
        needs=reason.needs,
        site=reason.site,
        signature=reason.signature,
        steps=steps_of(state) if explain else (),
        explained=explain,
    )


def _left(tree: VisibleTree) -> tuple[str, ...]:
    """What lies in a tree, an entry a path."""
    said: list[str] = []
    for path, entry in sorted(tree.entries.items())[: MAX_LEFT + 1]:
        name = path.decode("utf-8", "backslashreplace")
        if entry.type is FileType.DIRECTORY:
            said.append(f"{name}/")
        elif entry.content is not None:
            said.append(f"{name} ({entry.content.size} bytes)")
        else:
            said.append(f"{name} ({entry.type})")
    if len(tree.entries) > MAX_LEFT:
        said[MAX_LEFT:] = [f"and {len(tree.entries) - MAX_LEFT} more"]
    return tuple(said)
