"""Judging crash states by the subject's own resume.

A state is laid out as real files and the subject resumes on it, supervised, so that what it looked
at is known. A state that answers alike takes that attempt (``equal_reads``); the invariants are
computed for every state anew, from the acknowledgements its crash had let out and the attempt.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from fault_injection.attempt import run_attempt
from fault_injection.crash_states import State, VisibleTree
from fault_injection.crash_states.materialize import materialize
from fault_injection.faults import Fault, TriggerKind
from fault_injection.trace import Kind, Trace
from harness.artifacts import digests
from harness.baseline import Baseline
from harness.evidence import Finding, History, Step
from harness.observation import Event, losses_of
from harness.oracle import judge
from harness.power.equal_reads import Known, Question, questions_of
from harness.power.state_view import StepKey, layout_of, run_state
from harness.runner import settings, step_of, tree_is_final
from harness.scratch import emptied
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
    """How states were judged. ``checked`` were answered by equal reads and run all the same."""

    judged: int = 0
    equal_reads: int = 0
    checked: int = 0


class EqualReadsWrong(Exception):
    """A state that answered alike did not run alike: an error of the harness."""


@dataclass(slots=True)
class Judge:
    """Judges the states of one trace. ``equal_reads`` False runs every state for real."""

    subject: Subject
    baseline: Baseline
    trace: Trace
    scratch: Path
    equal_reads: bool = True
    check_every: int = 0
    counts: Counts = field(default_factory=Counts)
    known: Known[Resumed] = field(default_factory=Known)
    _events: tuple[Event, ...] = ()
    _complete: set[tuple[int, StepKey]] = field(default_factory=set)
    _rng: random.Random = field(default_factory=lambda: random.Random(0))

    def findings(self, state: State, tree: VisibleTree) -> list[Finding]:
        """The broken invariants of a state."""
        resumed = self.resumed(tree)
        crashed = self.crash(state.place, tree)
        history = History(
            subject=self.subject,
            layer="power",
            steps=(crashed, resumed.step),
            final=resumed.final,
            tree_is_final=resumed.tree_is_final,
        )
        return judge(history, self.baseline)

    def resumed(self, tree: VisibleTree) -> Resumed:
        """The resumed attempt on a tree, run for real or known to run alike."""
        found = self.known.find(tree) if self.equal_reads else None
        if found is None:
            self.counts.judged += 1
            resumed, questions = self._run(tree)
            if self.equal_reads:
                self.known.add(tree, questions, resumed)
            return resumed
        self.counts.equal_reads += 1
        if self.check_every and self._rng.randrange(self.check_every) == 0:
            self.counts.checked += 1
            again, _ = self._run(tree)
            if _essence(again) != _essence(found):
                raise EqualReadsWrong(
                    f"{self.subject.name}: two crash states that answered all questions alike "
                    f"did not run alike: {_essence(again)} and {_essence(found)}"
                )
        return found

    def crash(self, place: int, tree: VisibleTree) -> Step:
        """The attempt that the power loss ended, as the oracle sees it."""
        operations = self.trace.operations
        shown = tuple(e for e in self._events if e.operation < place)
        last_ack = max((e.operation for e in shown if e.kind == "ack"), default=-1)
        since = sum(op.kind is not Kind.OUTPUT for op in operations[last_ack + 1 : place])
        tinyllm = self.subject.format == "tinyllm"
        return Step(
            fault=Fault(TriggerKind.CALL, operations[place - 1].place if place else "start"),
            fault_seen=True,
            resuming=False,
            exit_code=None,
            signal=None,
            timed_out=False,
            events=shown,
            output="",
            calls_since_ack=since if last_ack >= 0 else -1,
            after=run_state(tree, complete_keys=self._complete) if tinyllm else None,
        )

    def prepare(self, events: Iterable[Event], complete_trees: Iterable[VisibleTree]) -> None:
        """Say what the world saw, and verify for real the step directories of complete trees."""
        self._events = tuple(events)
        if self.subject.format != "tinyllm":
            return
        for tree in complete_trees:
            keys = set(layout_of(tree).steps.items())
            if keys <= self._complete:
                continue
            root = emptied(self.scratch / "root")
            materialize(tree, str(root))
            verified = read_run(root, seen=()).complete
            self._complete |= {(step, key) for step, key in keys if step in verified}

    def _run(self, tree: VisibleTree) -> tuple[Resumed, tuple[Question, ...]]:
        root = emptied(self.scratch / "root")
        materialize(tree, str(root))
        attempt = run_attempt(
            self.subject.command(root=str(root), resuming=True),
            settings(self.subject, self.baseline, root=root, fault=None, observe_reads=True),
        )
        if attempt.start_error:
            raise RuntimeError(f"the program could not be started: {attempt.start_error}")
        step = step_of(attempt, subject=self.subject, root=root, fault=None, resuming=True)
        final = digests(root, self.subject.final, compare=self.subject.compare)
        printed = bool(losses_of(step.events))
        resumed = Resumed(
            step=step,
            final=final,
            tree_is_final=False if printed else tree_is_final(root, self.baseline),
        )
        questions = list(questions_of(attempt.reads or {}))
        # What the attempt never looked at may still lie in the final tree as it was.
        beyond = set(self.baseline.final) if printed else set(self.baseline.tree)
        asked = {path for path, levels in questions if "content" in levels}
        questions += [
            (path.encode("utf-8", "surrogateescape"), frozenset({"content"}))
            for path in sorted(beyond)
            if path.encode("utf-8", "surrogateescape") not in asked
        ]
        return resumed, tuple(questions)


def _essence(resumed: Resumed) -> tuple[object, ...]:
    """What two runs of one behaviour must share."""
    step = resumed.step
    told = tuple((e.kind, e.step, e.loss) for e in step.events)
    return step.exit_code, step.signal, step.timed_out, told, tuple(sorted(resumed.final.items()))
