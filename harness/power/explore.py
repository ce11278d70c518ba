"""Exploring: all crash states of a recorded run under one model, judged; what failed and why.

A run's states are shared out among workers by crash place. Each worker keeps one judge a subject,
so that what one model's states taught answers those of the next.
"""

import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_injection.crash_states import (
    DEFAULT_BOUND,
    PlaceCount,
    State,
    cause_of,
    enumerate_states,
)
from fault_injection.trace import Trace
from fault_injection.tracestore import load_trace
from harness.baseline import Baseline
from harness.cases import Case, at_state, in_recording
from harness.evidence import Finding
from harness.power.judge import Judge, shown_events
from harness.power.reasons import lost_words, reason_of
from harness.power.stretches import Enumerated
from harness.recordings import trace_of
from harness.subjects import Subject
from harness.underway import Told

CAUSES = 24  # sought at most, and of one kind
CAUSES_OF_A_KIND = 3
FAILURES = 2000
PLENTY = 32
MOST_PREPARED = 8  # judges that a worker keeps; a long run meets hundreds of subjects


@dataclass(frozen=True, slots=True)
class Exploration:
    """A recorded run under a model, at the crash places ``first`` to ``last`` (-1: to the end).

    ``trace_dir`` is where the first recording's trace is; ``baseline.number`` says which is meant.
    ``presume``: leftovers may be taken not to matter (``removals``). ``filter`` lets through only
    the states whose case it names, or whose place (None: all). Of a place where ``plenty`` states
    failed, and none in a way that is new, no more are judged (None: all are). ``fail_fast``: stop
    at the first that fails.
    """

    subject: Subject
    baseline: Baseline
    trace_dir: str
    model: str
    first: int = 0
    last: int = -1
    seed: int = 0
    bound: int = DEFAULT_BOUND
    equal_reads: bool = True
    presume: bool = False
    filter: str | None = None
    plenty: int | None = PLENTY
    fail_fast: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A state that broke invariants.

    Where no cause was sought, ``needs`` and ``holds_if`` are empty, and ``cause`` and ``site`` are
    those of the last state that failed alike.
    """

    descriptor: str
    place: str
    findings: tuple[Finding, ...]
    needs: str = ""
    lost: str = ""
    crash: str = ""
    holds_if: str = ""
    site: str = ""
    cause: str = ""


@dataclass(frozen=True, slots=True)
class Explored:
    """Counts and failures. ``places`` has the number of distinct states at each crash place.

    ``cases`` counts what was looked at, ``states`` what was distinct; ``failed`` may be more than
    ``failures`` holds. ``singled`` are the cases that hold and that a filter named one by one:
    these are not among ``places``. ``passed_over`` were not judged, being of places where plenty
    had failed. ``cut`` says why it was stopped, when all this is of the beginning only;
    ``contradictions`` what makes the rest uncertain.
    """

    model: str
    cases: int
    states: int
    judged: int
    equal_reads: int
    checked: int
    sampled: bool
    failed: int
    failures: tuple[Failure, ...]
    places: tuple[tuple[str, int], ...]
    singled: tuple[Case, ...] = ()
    passed_over: int = 0
    cut: str = ""
    contradictions: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(slots=True)
class _Prepared:
    trace: Trace
    outputs: tuple[int, ...]
    judge: Judge
    _enumerated: dict[tuple[str, int, int], Enumerated] = field(default_factory=dict)

    def enumerated(self, exploration: Exploration) -> Enumerated:
        """The states of the whole run, of which an exploration has a stretch."""
        key = (exploration.model, exploration.seed, exploration.bound)
        found = self._enumerated.get(key)
        if found is None:
            found = self._enumerated[key] = Enumerated(self.trace, *key, self.outputs)
        return found

    def forget_states(self) -> None:
        """Enumerate anew when they are asked for again."""
        self._enumerated.clear()


_prepared: dict[tuple[str, bool, bool, int], _Prepared] = {}


def prepare(exploration: Exploration, scratch: Path) -> _Prepared:
    """This worker's judge for the subject; made once."""
    number = exploration.baseline.number
    how = (exploration.trace_dir, exploration.equal_reads, exploration.presume)
    key = (*how, number)
    found = _prepared.get(key)
    if found is None:
        trace = load_trace(trace_of(exploration.trace_dir, number))
        shown, outputs = shown_events(exploration.baseline.shown)
        judge = Judge(
            subject=exploration.subject,
            baseline=exploration.baseline,
            scratch=scratch,
            shown=shown,
            equal_reads=exploration.equal_reads,
            presume=exploration.presume,
            check=True,
            seed=exploration.seed,
        )
        for (*other, _), earlier in _prepared.items():
            if tuple(other) == how:
                # How a tree is resumed on does not depend on the recording that it is a state of.
                judge.known, judge.removals = earlier.judge.known, earlier.judge.removals
        if exploration.subject.format == "tinyllm":
            everything = enumerate_states(trace, model="kill", outputs=outputs)
            judge.know_complete(state.tree() for state in everything)
        while len(_prepared) >= MOST_PREPARED:
            del _prepared[next(iter(_prepared))]
        for earlier in _prepared.values():
            earlier.forget_states()  # they are many, and a worker is seldom given two runs in turn
        found = _prepared[key] = _Prepared(trace, outputs, judge)
    return found


def explore(
    exploration: Exploration, scratch: Path, *, told: Told | None = None, before: int = 0
) -> Explored:
    """Judge the states first found at the crash places of the exploration.

    ``told`` is told how many were judged, ``before`` and now, and may stop it.
    """
    told = told or Told()
    began = time.monotonic()
    prepared = prepare(exploration, scratch)
    judge, known = prepared.judge, prepared.judge.counts
    judge.presume_nothing()
    judge.contradictions.clear()
    judged, equal, checked = known.judged, known.equal_reads, known.checked
    counts: list[PlaceCount] = []
    told_of = _Failures(judge, exploration.plenty)
    states = passed_over = 0
    cut = ""
    of_place: dict[str, int] = {}
    singled: list[Case] = []
    enumerated = prepared.enumerated(exploration)
    for state in enumerated.stretch(exploration.first, exploration.last, counts):
        label = state.place_label
        by_place = _lets_through(exploration, place_case(exploration, label))
        if not by_place and not _lets_through(exploration, case_of(exploration, state)):
            continue
        if told_of.plenty_at(label):
            passed_over += 1
            continue
        if told.count(before + states):
            cut = "the budget was used up" if told.out_of_time else "the run was interrupted"
            break
        states += 1
        findings = judge.findings(state)
        if by_place:
            of_place[label] = of_place.get(label, 0) + 1
        elif not findings:
            singled.append(case_of(exploration, state))
        if findings:
            told_of.add(state, findings)
            if exploration.fail_fast:
                told.must_stop, cut = True, "--fail-fast"
                break
    while doubted := judge.doubted():
        for state in doubted:
            if findings := judge.findings(state):
                told_of.add(state, findings)
                singled = [case for case in singled if case != case_of(exploration, state)]
    narrowed = exploration.filter is not None or bool(cut) or passed_over > 0
    return Explored(
        model=exploration.model,
        cases=states if narrowed else sum(c.states for c in counts),
        states=states,
        judged=judge.counts.judged - judged,
        equal_reads=judge.counts.equal_reads - equal,
        checked=judge.counts.checked - checked,
        sampled=any(c.sampled for c in counts),
        failed=told_of.failed,
        failures=tuple(told_of.kept),
        places=tuple(of_place.items()),
        singled=tuple(singled),
        passed_over=passed_over,
        cut=cut,
        contradictions=tuple(judge.contradictions),
        seconds=time.monotonic() - began,
    )


def case_of(exploration: Exploration, state: State) -> Case:
    """The case of one crash state."""
    place = place_case(exploration, state.place_label)
    return at_state(place, state.descriptor())


def place_case(exploration: Exploration, label: str) -> Case:
    """What the states of a crash place are recorded as together, those that hold."""
    case = Case(subject=exploration.subject.name, layer=f"power/{exploration.model}", place=label)
    return in_recording(case, exploration.baseline.number)


def _lets_through(exploration: Exploration, case: Case) -> bool:
    pattern = exploration.filter
    return pattern is None or fnmatch.fnmatchcase(case.id, pattern)


_Kind = tuple[tuple[str, str], ...]  # the invariants that were broken, and what was said of each


@dataclass(slots=True)
class _Failures:
    """The states that failed. To seek a cause takes many runs: it is done for some of each kind."""

    judge: Judge
    plenty: int | None
    failed: int = 0
    kept: list[Failure] = field(default_factory=list)
    _explained: dict[_Kind, list[Failure]] = field(default_factory=dict)
    _nothing_new: dict[str, int] = field(default_factory=dict)  # by place

    def plenty_at(self, place: str) -> bool:
        """Whether so many failed at a place, all in known ways, that more say nothing."""
        return self.plenty is not None and self._nothing_new.get(place, 0) >= self.plenty

    def add(self, state: State, findings: Sequence[Finding]) -> None:
        """Take down a state that failed."""
        self.failed += 1
        kind = tuple((finding.invariant, finding.message) for finding in findings)
        alike = self._explained.setdefault(kind, [])
        place = state.place_label
        self._nothing_new[place] = self._nothing_new.get(place, 0) + 1 if alike else 0
        if len(self.kept) >= FAILURES:
            return
        total = sum(len(explained) for explained in self._explained.values())
        if len(alike) < CAUSES_OF_A_KIND and (total < CAUSES or not alike):
            failure = _failure(state, findings, self.judge, explain=True)
            alike.append(failure)
        else:
            failure = replace(
                _failure(state, findings, self.judge, explain=False),
                site=alike[-1].site,
                cause=alike[-1].cause,
            )
        self.kept.append(failure)


def _failure(state: State, findings: Sequence[Finding], judge: Judge, *, explain: bool) -> Failure:
    reason = reason_of(
        state,
        cause_of(state, judge.is_good) if explain else None,
        names=judge.baseline.stable_names,
        acknowledged=judge.acknowledged,
    )
    return Failure(
        descriptor=state.descriptor(),
        place=state.place_label,
        findings=tuple(findings),
        needs=reason.needs,
        lost=lost_words(reason.lost),
        crash=reason.crash,
        holds_if=reason.holds_if,
        site=reason.site,
        cause=reason.signature,
    )
