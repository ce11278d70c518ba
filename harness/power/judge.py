"""Judging crash states by the subject's own resume.

A state is laid out as real files and the subject resumes on it, supervised, so that what it looked
at is known. A state that answers alike takes that attempt (``equal_reads``); the invariants are
computed for every state anew, from the acknowledgements its crash had let out and the attempt.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fault_injection.attempt import Attempt, run_attempt
from fault_injection.crash_states import State, VisibleTree, materialize
from fault_injection.faults import Fault, TriggerKind
from fault_injection.trace import Kind
from harness.artifacts import digests
from harness.baseline import Baseline
from harness.evidence import Finding, History, Step
from harness.observation import Event, losses_of
from harness.oracle import judge
from harness.power.equal_reads import Known, Question, questions_of
from harness.power.state_view import StepKey, layout_of, run_state
from harness.runner import settings, step_of, tree_is_final
from harness.scratch import emptied, empty_temporary
from harness.subjects import Subject
from harness.tinyllm_state import read_run


@dataclass(frozen=True, slots=True)
class Resumed:
    """One resumed attempt on a crash state: the oracle's view of it, and the final artifacts."""

    step: Step
    final: dict[str, str]
    tree_is_final: bool


@dataclass(slots=True)
class Counts:
    """How states were judged. ``checked``: answered by equal reads, and run all the same."""

    judged: int = 0
    equal_reads: int = 0
    checked: int = 0


class EqualReadsWrong(Exception):
    """A state that answered alike did not run alike: an error of the harness."""


@dataclass(slots=True)
class Judge:
    """Judges the crash states of one subject.

    ``shown`` are the losses and acknowledgements of the recorded run with the ordinal of what the
    world had seen by then (:func:`shown_events`): an event counts once it has seen as many.
    ``equal_reads`` False runs every state for real; ``check_every`` n runs one of n states that
    were answered by equal reads all the same. ``acknowledged`` are the operations that did so.
    """

    subject: Subject
    baseline: Baseline
    scratch: Path
    shown: tuple[tuple[int, Event], ...]
    equal_reads: bool = True
    check_every: int = 0
    seed: int = 0
    counts: Counts = field(default_factory=Counts)
    known: Known[Resumed] = field(default_factory=Known)
    complete: set[tuple[int, StepKey]] = field(default_factory=set)
    acknowledged: frozenset[int] = field(init=False)
    _remembered: dict[tuple[str, int], list[Finding]] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.seed)
        acks = (event for _, event in self.shown if event.kind == "ack")
        self.acknowledged = frozenset(event.operation for event in acks)

    def findings(self, state: State) -> list[Finding]:
        """The broken invariants of a state, remembered by its identity."""
        found = self._remembered.get(state.identity)
        if found is None:
            found = self._remembered[state.identity] = self._judged(state)
        return found

    def is_good(self, state: State) -> bool:
        """Whether no invariant is broken."""
        return not self.findings(state)

    def _judged(self, state: State) -> list[Finding]:
        tree = state.tree()
        resumed = self.resumed(tree)
        history = History(
            subject=self.subject,
            layer="power",
            steps=(self.crash(state, tree), resumed.step),
            final=resumed.final,
            tree_is_final=resumed.tree_is_final,
        )
        return judge(history, self.baseline)

    def resumed(self, tree: VisibleTree) -> Resumed:
        """The resumed attempt on a tree, run for real or known to run alike."""
        found = self.known.find(tree) if self.equal_reads else None
        if found is None:
            self.counts.judged += 1
            resumed, questions = self.run(tree)
            if self.equal_reads and questions is not None:
                self.known.add(tree, questions, resumed)
            return resumed
        self.counts.equal_reads += 1
        if self.check_every and self._rng.randrange(self.check_every) == 0:
            self.counts.checked += 1
            again, _ = self.run(tree)
            late = again.step.timed_out or found.step.timed_out  # that says nothing of the tree
            if not late and _essence(again) != _essence(found):
                raise EqualReadsWrong(
                    f"{self.subject.name}: two crash states that answered all questions alike "
                    f"did not run alike: {_essence(again)} and {_essence(found)}"
                )
        return found

    def crash(self, state: State, tree: VisibleTree) -> Step:
        """The attempt that the power loss ended, as the oracle sees it."""
        operations = state.space.history.trace.operations
        acks = sorted(i for i in self.acknowledged if i < state.place)
        since = (
            sum(op.kind is not Kind.OUTPUT for op in operations[acks[-1] + 1 : state.place])
            if acks
            else -1
        )
        tinyllm = self.subject.format == "tinyllm"
        return Step(
            fault=Fault(TriggerKind.CALL, state.place_label),
            fault_seen=True,
            resuming=False,
            exit_code=None,
            signal=None,
            timed_out=False,
            events=tuple(e for ordinal, e in self.shown if ordinal <= state.outputs),
            output="",
            calls_since_ack=since,
            after=run_state(tree, complete_keys=self.complete) if tinyllm else None,
        )

    def know_complete(self, trees: Iterable[VisibleTree]) -> None:
        """Verify for real the step directories of trees of the uninterrupted run (tinyllm)."""
        for tree in trees:
            keys = set(layout_of(tree).steps.items())
            if keys <= self.complete:
                continue
            root = emptied(self.scratch / "root")
            materialize(tree, str(root))
            verified = read_run(root, seen=()).complete
            self.complete |= {(step, key) for step, key in keys if step in verified}

    def run(self, tree: VisibleTree) -> tuple[Resumed, tuple[Question, ...] | None]:
        """Resume on a tree for real; what came of it, and what it looked at (None: not known)."""
        resumed, questions, _ = self.run_kept(tree)
        return resumed, questions

    def run_kept(self, tree: VisibleTree) -> tuple[Resumed, tuple[Question, ...] | None, Attempt]:
        """Like :meth:`run`, and the attempt itself."""
        empty_temporary()
        root = emptied(self.scratch / "root")
        materialize(tree, str(root))
        attempt = run_attempt(
            self.subject.command(root=str(root), resuming=True),
            settings(self.subject, self.baseline, root=root, fault=None, observe_reads=True),
        )
        if attempt.start_error:
            raise RuntimeError(f"the program could not be started: {attempt.start_error}")
        step = step_of(attempt, subject=self.subject, root=root, fault=None, resuming=True)
        printed = bool(losses_of(step.events))
        resumed = Resumed(
            step=step,
            final=digests(root, self.subject.final, compare=self.subject.compare),
            tree_is_final=False if printed else tree_is_final(root, self.baseline),
        )
        if attempt.reads is None or attempt.untraceable:
            return resumed, None, attempt
        questions = list(questions_of(attempt.reads))
        # What the attempt never looked at may still lie in the final tree as it was.
        beyond = self.baseline.final if printed else self.baseline.tree
        asked = {path for path, levels in questions if "content" in levels}
        for name in sorted(beyond):
            path = name.encode("utf-8", "surrogateescape")
            if path not in asked:
                questions.append((path, frozenset({"content"})))
        return resumed, tuple(questions), attempt


def _essence(resumed: Resumed) -> tuple[object, ...]:
    """What two runs of one behaviour must share."""
    step = resumed.step
    told = tuple((e.kind, e.step, e.loss) for e in step.events)
    return step.exit_code, step.signal, step.timed_out, told, tuple(sorted(resumed.final.items()))


def shown_events(events: Iterable[Event]) -> tuple[tuple[tuple[int, Event], ...], tuple[int, ...]]:
    """Events with the ordinal of what the world had seen by then, and the operations that count so.

    Those are the acknowledgements and the last step's loss, with which training is done. Another
    loss counts with what was before it: that it was printed changes nothing.
    """
    found = tuple(events)
    last = next((e for e in reversed(found) if e.kind == "loss"), None)
    shown: list[tuple[int, Event]] = []
    operations: list[int] = []
    for event in found:
        telling = event.kind == "ack" or (last is not None and event.step == last.step)
        if telling and event.operation not in operations:
            operations.append(event.operation)
        shown.append((len(operations), event))
    return tuple(shown), tuple(operations)
