"""Judging crash states by the subject's own resume.

A state is laid out as real files and the subject resumes on it, supervised, so that what it looked
at is known. A state that answers alike takes that attempt (``equal_reads``), also where it only
differs in leftovers that are cleared away (``removals``). The invariants are computed for every
state anew, from the acknowledgements its crash had let out and the attempt; states of one place
that differ in nothing that either depends on share them (``Verdicts``).
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
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
from harness.power.equal_reads import (
    Known,
    Question,
    is_wild,
    matches,
    questions_of,
    untouched,
)
from harness.power.removals import Removals
from harness.power.state_view import StepKey, is_evidence, layout_of, run_state
from harness.power.verdicts import Verdicts
from harness.runner import settings, step_of, tree_is_final
from harness.scratch import emptied, empty_temporary
from harness.subjects import Subject
from harness.tinyllm_layout import CKPT, LATEST, STEP_FILES
from harness.tinyllm_state import read_run

_OF_CONTENT = frozenset({"stat", "content"})

# Of n states that equal reads answer, at most one in CHECK_EVERY is run all the same, and
# CHECKED_OF_EACH_FOLD more for each e-fold of n.
CHECK_EVERY, CHECKED_OF_EACH_FOLD = 50, 1

_RUN_ALL = "With --no-equal-reads every state is run"


@dataclass(frozen=True, slots=True)
class Resumed:
    """One resumed attempt on a crash state: the oracle's view of it, and the final artifacts.

    ``looked_into`` are the paths whose length or bytes it depends on; None: it may be any.
    ``presumed`` are directories whose content is taken not to have mattered (``removals``).
    """

    step: Step
    final: dict[str, str]
    tree_is_final: bool
    looked_into: frozenset[bytes] | None = None
    presumed: frozenset[bytes] = frozenset()


@dataclass(slots=True)
class Counts:
    """How states were judged. ``checked``: answered by equal reads, and run all the same."""

    judged: int = 0
    equal_reads: int = 0
    checked: int = 0


@dataclass(slots=True)
class Judge:
    """Judges the crash states of one subject.

    ``shown`` are the losses and acknowledgements of the recorded run with the ordinal of what the
    world had seen by then (:func:`shown_events`): an event counts once it has seen as many.
    ``equal_reads`` False runs every state for real; ``check`` runs a sample of those that were
    answered by equal reads all the same, and ``contradictions`` says where that came out otherwise.
    ``presume``: leftovers that are only cleared away may be taken not to matter (``removals``).
    ``acknowledged`` are the operations that did so.
    """

    subject: Subject
    baseline: Baseline
    scratch: Path
    shown: tuple[tuple[int, Event], ...]
    equal_reads: bool = True
    presume: bool = False
    check: bool = False
    seed: int = 0
    counts: Counts = field(default_factory=Counts)
    known: Known[Resumed] = field(default_factory=Known)
    removals: Removals[Resumed] = field(default_factory=Removals)
    verdicts: Verdicts = field(init=False)
    complete: set[tuple[int, StepKey]] = field(default_factory=set)
    acknowledged: frozenset[int] = field(init=False)
    contradictions: list[str] = field(default_factory=list)
    _remembered: dict[tuple[str, int], list[Finding]] = field(default_factory=dict)
    _presumed: list[tuple[State, frozenset[bytes]]] = field(default_factory=list)
    _rng: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self._rng.seed(self.seed)
        self.verdicts = Verdicts(self._is_evidence)
        acks = (event for _, event in self.shown if event.kind == "ack")
        self.acknowledged = frozenset(event.operation for event in acks)

    def _is_evidence(self, path: bytes) -> tuple[bool, bool]:
        """Whether the invariants depend on there being a file, and on its bytes, by themselves."""
        if any(is_wild(glob) and matches(path, glob) for glob in self.subject.final):
            return True, True
        return is_evidence(path) if self.subject.format == "tinyllm" else (False, False)

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
        known = self.verdicts.find(state) if self.equal_reads else None
        if known is not None:
            self.counts.equal_reads += 1
            if not self._is_to_be_checked():
                self._presume(state, known[1])
                return known[0]
        tree = state.tree()
        resumed = self._checked(tree) if known is not None else self.resumed(tree)
        history = History(
            subject=self.subject,
            layer="power",
            steps=(self.crash(state, tree), resumed.step),
            final=resumed.final,
            tree_is_final=resumed.tree_is_final,
        )
        findings = judge(history, self.baseline)
        if known is not None and findings != known[0] and not known[1]:
            self.contradictions.append(
                f"the state {state.descriptor()} was taken for one that is judged like others of "
                f"its place, and is not. {_RUN_ALL}"
            )
        self._presume(state, resumed.presumed)
        if self.equal_reads and known is None and resumed.looked_into is not None:
            self.verdicts.add(
                state, findings, looked_into=resumed.looked_into, presumed=resumed.presumed
            )
        return findings

    def _presume(self, state: State, directories: frozenset[bytes]) -> None:
        if directories:
            self._presumed.append((state, directories))

    def presume_nothing(self) -> None:
        """An exploration begins: what others have judged is not its own."""
        self._presumed.clear()

    def doubted(self) -> list[State]:
        """The states whose verdict presumed that a directory does not matter which has mattered
        since. They are forgotten, to be judged again."""
        doubted = [s for s, directories in self._presumed if directories & self.removals.material]
        if doubted:
            self._presumed = [
                (s, directories)
                for s, directories in self._presumed
                if not directories & self.removals.material
            ]
            self.verdicts.forget()
        for state in doubted:
            self._remembered.pop(state.identity, None)
        return doubted

    def resumed(self, tree: VisibleTree) -> Resumed:
        """The resumed attempt on a tree, run for real or known to run alike."""
        found = self._alike(tree) if self.equal_reads else None
        if found is not None:
            self.counts.equal_reads += 1
            return self._checked(tree) if self._is_to_be_checked() else found
        self.counts.judged += 1
        resumed, questions, removed = self.run(tree)
        if self.equal_reads and questions is not None:
            self.known.add(tree, questions, resumed)
            self.verdicts.ask(questions)
            if self.presume:
                self.removals.add(
                    tree,
                    questions,
                    removed,
                    essence=_essence(resumed),
                    outcome=resumed if resumed.step.succeeded else None,
                )
        return resumed

    def _alike(self, tree: VisibleTree) -> Resumed | None:
        found = self.known.find(tree)
        if found is not None:
            return found
        outcome = self.removals.find(tree) if self.presume else None
        return None if outcome is None else replace(outcome[0], presumed=outcome[1])

    def _is_to_be_checked(self) -> bool:
        """Whether a state that equal reads answered is run all the same."""
        likely = min(1 / CHECK_EVERY, CHECKED_OF_EACH_FOLD / self.counts.equal_reads)
        return self.check and self._rng.random() < likely

    def _checked(self, tree: VisibleTree) -> Resumed:
        """A tree that equal reads answered, run all the same."""
        self.counts.checked += 1
        found = self._alike(tree)
        again, _, _ = self.run(tree)
        if found is None or again.step.timed_out or found.step.timed_out:  # it tells nothing
            return again
        if _essence(again) != _essence(found):
            if found.presumed:
                self.removals.material |= found.presumed
            else:
                self.contradictions.append(_contradiction(found, again))
        return again

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

    def run(
        self, tree: VisibleTree
    ) -> tuple[Resumed, tuple[Question, ...] | None, frozenset[bytes]]:
        """Resume on a tree for real; what came of it, what it looked at (None: not known), and
        the directories that it listed and removed."""
        resumed, questions, attempt = self.run_kept(tree)
        return resumed, questions, attempt.removed

    def run_kept(self, tree: VisibleTree) -> tuple[Resumed, tuple[Question, ...] | None, Attempt]:
        """Resume on a tree for real: what came of it, what it looked at, and the attempt."""
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
        if step.after is not None:
            step = replace(step, after=replace(step.after, spare=()))  # counts in a rewind only
        printed = bool(losses_of(step.events))
        resumed = Resumed(
            step=step,
            final=digests(root, self.subject.final, compare=self.subject.compare),
            tree_is_final=False if printed else tree_is_final(root, self.baseline),
        )
        if attempt.reads is None or attempt.untraceable:
            return resumed, None, attempt
        questions = questions_of(attempt.reads)
        # What the attempt never looked at may still lie in the final tree.
        beyond = set(self.baseline.final if printed else self.baseline.tree) | set(resumed.final)
        globs = self.subject.final
        if self.subject.format == "tinyllm":  # as in state_view.is_evidence
            questions += ((CKPT.encode(), frozenset({"listing"})),)
            globs += (STEP_FILES,)
            beyond |= {LATEST, *digests(root, (STEP_FILES,), compare="bytes")}
        assert attempt.overlay is not None
        questions += tuple(
            untouched(
                tree,
                questions,
                overlay=attempt.overlay,
                names=sorted(beyond),
                globs=globs,
            )
        )
        looked_into = frozenset(path for path, levels in questions if levels & _OF_CONTENT)
        return replace(resumed, looked_into=looked_into), questions, attempt


def _contradiction(one: Resumed, other: Resumed) -> str:
    """What two runs did that were answered alike, in words."""
    told = [
        f"exit code {run.step.exit_code}"
        + "".join(f", {e.kind} {e.step} {e.loss}".rstrip() for e in run.step.events[:3])
        for run in (one, other)
    ]
    return (
        "two crash states that answered alike all that a resume was seen to ask did not run alike "
        f"({told[0]}; {told[1]}): it depends on something that is not seen. {_RUN_ALL}"
    )


def _essence(resumed: Resumed) -> tuple[object, ...]:
    """What two runs of one behaviour must share."""
    step = resumed.step
    told = tuple((e.kind, e.step, e.loss) for e in step.events)
    final = tuple(sorted(resumed.final.items()))
    return step.exit_code, step.signal, step.timed_out, told, final, step.after


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
