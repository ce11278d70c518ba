"""Why power loss breaks a program and which fsyncs mend it; or which of its fsyncs nobody needs.

Fsyncs are spoken of as lines of the program, not as calls: what is added is added after every
operation like it (the same words but for the numbers, the same source line), and what is taken
away is taken away everywhere. So the answer is the same for three saves as for three hundred.

*Mending*: at the first crash place where a state fails, ``crash_states.mend`` finds the smallest
set of fsyncs for the run up to there; the whole run is explored with these, and so on until no
state fails. Then each that turns out not to be needed is dropped, and all smaller sets are tried
where they are few.

Everything is bounded, in time as well, and the answer says where a bound was met.
"""

import itertools
import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.crash_states import (
    PlaceCount,
    State,
    cause_of,
    enumerate_states,
    mend,
    rebuild,
    with_fsync,
    without,
)
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.history import SYNC_KINDS
from fault_injection.crash_states.space import space_of
from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation, Trace
from harness.cases import Case
from harness.errors import CannotJudge
from harness.evidence import Finding
from harness.power.explore import Exploration, prepare
from harness.power.judge import Judge
from harness.power.reasons import Reason, crash_words, paths_after, reason_of

ENOUGH = 40  # failing states to choose the one to show from
MAX_ROUNDS = 24
MAX_SMALLER = 120
_OF_NAMES = tuple(f"{kind} " for kind in (Kind.RENAME, Kind.CREATE, Kind.LINK, Kind.EXCHANGE))
_VARIES = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Why:
    """One crash state: the invariants it breaks, and the order that was needed."""

    findings: tuple[Finding, ...]
    reason: Reason


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync of the program, or one to add: of what, after or as which line, how often."""

    words: str
    site: str
    times: int


@dataclass(frozen=True, slots=True)
class Mending:
    """``add`` makes every explored state good when ``complete``.

    ``smallest``: no smaller set of lines does. ``beyond`` says, when nothing was found, what no
    fsync can mend.
    """

    add: tuple[Sync, ...] = ()
    complete: bool = False
    smallest: bool = False
    beyond: str = ""


@dataclass(frozen=True, slots=True)
class Explained:
    """One model: ``failed`` of ``states``, and then ``mending``, or else the syncs.

    Where many fail only the first are looked at: ``all_judged`` is false then, and both numbers
    are those of what was.

    ``spare`` are those without which, each by itself, no explored state fails; ``needed`` the
    others. ``all_spare``: nor without all of ``spare`` at once. ``stopped`` says which bound ended
    the search, and what is missing then.
    """

    model: str
    states: int
    failed: int
    sampled: bool
    all_judged: bool = True
    why: Why | None = None
    mending: Mending | None = None
    spare: tuple[Sync, ...] = ()
    needed: tuple[Sync, ...] = ()
    all_spare: bool = False
    stopped: str = ""


class _OutOfTime(Exception):
    pass


@dataclass(slots=True)
class _Search:
    """What is asked about: a recorded run under a model, and who judges its states until when."""

    exploration: Exploration
    trace: Trace
    outputs: frozenset[int]
    judge: Judge
    deadline_s: float

    def is_good(self, state: State) -> bool:
        if time.monotonic() > self.deadline_s:
            raise _OutOfTime
        return self.judge.is_good(state)

    def states(
        self, trace: Trace, outputs: frozenset[int], counts: list[PlaceCount] | None = None
    ) -> Iterable[State]:
        asked = self.exploration
        return enumerate_states(
            trace,
            model=asked.model,
            seed=asked.seed,
            bound=asked.bound,
            outputs=outputs,
            counts=counts,
        )

    def first_bad(self, trace: Trace, outputs: frozenset[int]) -> State | None:
        """The first failing state, at the earliest place."""
        return next((s for s in self.states(trace, outputs) if not self.is_good(s)), None)


def explain_state(exploration: Exploration, case: Case, scratch: Path) -> Why:
    """Why the crash state of a power case is bad. Raises CannotJudge when it is good, or gone."""
    prepared = prepare(exploration, scratch)
    descriptor = dict(case.state).get("state", "")
    try:
        state = rebuild(prepared.trace, exploration.model, descriptor, outputs=prepared.outputs)
    except ValueError as error:
        raise CannotJudge(f"{case.id}: this recording has no such crash state: {error}") from error
    return _why(state, prepared.judge, said=case.id)


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


def _why(state: State, judge: Judge, *, said: str) -> Why:
    findings = judge.findings(state)
    if not findings:
        raise CannotJudge(f"{said}: the crash state breaks no invariant now; nothing to explain")
    return Why(tuple(findings), reason_of(state, cause_of(state, judge.is_good)))


def explain_model(exploration: Exploration, scratch: Path, *, budget_s: float) -> Explained:
    """All that there is to say of a recorded run under the exploration's model."""
    prepared = prepare(exploration, scratch)
    search = _Search(
        exploration,
        prepared.trace,
        frozenset(prepared.outputs),
        prepared.judge,
        time.monotonic() + budget_s,
    )
    said = Explained(exploration.model, states=0, failed=0, sampled=False)
    counts: list[PlaceCount] = []
    failing: list[State] = []
    try:
        for state in search.states(search.trace, search.outputs, counts):
            said = replace(said, states=said.states + 1)
            if not search.is_good(state):
                failing.append(state)
            if len(failing) == ENOUGH:
                said = replace(said, all_judged=False)
                break
    except _OutOfTime:
        return replace(said, failed=len(failing), stopped="not every crash state was judged")
    said = replace(said, failed=len(failing), sampled=any(c.sampled for c in counts))
    try:
        if failing:
            smallest = min(failing, key=lambda s: (len(s.lost()) + len(s.data), s.place))
            said = replace(said, why=_why(smallest, search.judge, said=exploration.model))
            return replace(said, mending=_mended(search))
        return _without_syncs(search, said)
    except _OutOfTime:
        what = "the smallest set of fsyncs" if failing else "every fsync"
        return replace(said, stopped=f"{what} was not found out")


# Lines of the program: operations that are alike.


_Line = tuple[str, str, str]  # the words without numbers, the site, which inode of the operation


def _line_of(op: Operation, words: Sequence[str], role: str = "") -> _Line:
    return _VARIES.sub("N", words[op.index]), op.site, role


def _role(op: Operation, inode: int) -> str:
    """Which of its inodes an fsync after ``op`` is of."""
    for name in ("inode", "new_parent", "parent", "replaced"):
        if getattr(op, name) == inode:
            return name
    raise ValueError(f"operation #{op.index} has nothing to do with inode {inode}")


def _words(trace: Trace, model: str, outputs: frozenset[int]) -> list[str]:
    return operation_words(space_of(trace, model, outputs).history)


def _with_lines(search: _Search, lines: Iterable[_Line]) -> tuple[Trace, frozenset[int], int]:
    """The run with an fsync after each operation that is like one of ``lines``; how many."""
    trace, outputs, wanted = search.trace, search.outputs, frozenset(lines)
    words = _words(trace, search.exploration.model, outputs)
    pairs = [
        (op.index, getattr(op, role))
        for op in search.trace.operations
        for role in ("inode", "parent", "new_parent", "replaced")
        if _line_of(op, words, role) in wanted and getattr(op, role) >= 0
    ]
    for after, inode in sorted(set(pairs), reverse=True):
        trace = with_fsync(trace, after, inode)
        outputs = frozenset(i + (i > after) for i in outputs)
    return trace, outputs, len(set(pairs))


def _shown(search: _Search, line: _Line) -> Sync:
    """A line to add, by its first occurrence."""
    words = _words(search.trace, search.exploration.model, search.outputs)
    types = space_of(search.trace, search.exploration.model, search.outputs).history.types
    alike = [op for op in search.trace.operations if _line_of(op, words, line[2]) == line]
    first = alike[0]
    inode = getattr(first, line[2])
    path = paths_after(search.trace, first.index).get(inode, "the file")
    if types.get(inode) is FileType.DIRECTORY:
        path += " directory" if inode == ROOT_INODE else "/"
    said = f"fsync({path}) after #{first.index} {words[first.index]}"
    return Sync(said, first.site, len(alike))


# What mends a failing program.


def _mended(search: _Search) -> Mending:
    kept = enumerate_states(search.trace, model="kill", outputs=search.outputs)
    killed = next((state for state in kept if not search.is_good(state)), None)
    if killed is not None:
        return Mending(beyond=f"a kill does the same {crash_words(killed)}")
    lines: list[_Line] = []
    trace, outputs = search.trace, search.outputs
    for _ in range(MAX_ROUNDS):
        bad = search.first_bad(trace, outputs)
        if bad is None:
            return _smallest(search, lines)
        found = _lines_for(search, trace, outputs, bad.place)
        fresh = [line for line in found if line not in lines]
        if not fresh:
            return Mending(beyond=f"a state {crash_words(bad)} fails whatever is synced")
        lines += fresh
        trace, outputs, _ = _with_lines(search, lines)
    return Mending(beyond=f"more than {MAX_ROUNDS} rounds of adding fsyncs were not enough")


def _lines_for(search: _Search, trace: Trace, outputs: frozenset[int], place: int) -> list[_Line]:
    """The lines to add so that no state up to a crash place fails."""
    asked = search.exploration
    cut = Trace(start=trace.start, operations=trace.operations[:place], blobs=trace.blobs)
    seen = frozenset(i for i in outputs if i < place)
    done = mend(cut, asked.model, search.is_good, seed=asked.seed, bound=asked.bound, outputs=seen)
    words = _words(cut, asked.model, seen)
    found: list[_Line] = []
    for addition in done.additions if done.complete else ():
        op = cut.operations[addition.after]
        found.append(_line_of(op, words, _role(op, addition.inode)))
    return list(dict.fromkeys(found))


def _smallest(search: _Search, lines: list[_Line]) -> Mending:
    for line in list(lines):
        fewer = [other for other in lines if other != line]
        if search.first_bad(*_with_lines(search, fewer)[:2]) is None:
            lines = fewer
    proven = True
    everything = _all_lines(search)
    for size in range(1, len(lines)):
        for tried, some in enumerate(itertools.combinations(everything, size)):
            if tried >= MAX_SMALLER:
                proven = False
                break
            if search.first_bad(*_with_lines(search, some)[:2]) is None:
                return _settled(search, list(some), proven)
    return _settled(search, lines, proven)


def _settled(search: _Search, lines: list[_Line], proven: bool) -> Mending:
    """Where an fsync of the directory does as well as one of the file for a name, that one.

    It is what every model understands: under posix only it makes a name durable.
    """
    for number, (words, site, role) in enumerate(lines):
        if role != "inode" or not words.startswith(_OF_NAMES):
            continue
        for other in ("new_parent", "parent"):
            instead = [*lines[:number], (words, site, other), *lines[number + 1 :]]
            trace, outputs, added = _with_lines(search, instead)
            if added and search.first_bad(trace, outputs) is None:
                lines = instead
                break
    add = tuple(_shown(search, line) for line in lines)
    return Mending(add, complete=True, smallest=proven)


def _all_lines(search: _Search) -> list[_Line]:
    """Every line after which an fsync could be added."""
    words = _words(search.trace, search.exploration.model, search.outputs)
    found: dict[_Line, None] = {}
    for op in search.trace.operations:
        if op.kind in SYNC_KINDS or op.kind in (Kind.OUTPUT, Kind.META):
            continue
        for role in ("inode", "new_parent", "parent"):
            if getattr(op, role) >= 0:
                found.setdefault(_line_of(op, words, role))
    return list(found)


# Which syncs of a correct program nobody needs.


def _without_syncs(search: _Search, said: Explained) -> Explained:
    words = _words(search.trace, search.exploration.model, search.outputs)
    lines: dict[_Line, list[Operation]] = {}
    for op in search.trace.operations:
        if op.kind in SYNC_KINDS or op.synced:
            lines.setdefault(_line_of(op, words), []).append(op)
    spare: list[Sync] = []
    needed: list[Sync] = []
    gone: list[Operation] = []
    for operations in lines.values():
        first = operations[0]
        sync = Sync(f"#{first.index} {words[first.index]}", first.site, len(operations))
        if search.first_bad(*_removed(search, operations)) is None:
            spare.append(sync)
            gone += operations
        else:
            needed.append(sync)
    together = len(spare) > 1 and search.first_bad(*_removed(search, gone)) is None
    return replace(said, spare=tuple(spare), needed=tuple(needed), all_spare=together)


def _removed(search: _Search, operations: Iterable[Operation]) -> tuple[Trace, frozenset[int]]:
    trace, outputs = search.trace, search.outputs
    for op in sorted(operations, key=lambda op: op.index, reverse=True):
        fewer = without(trace, op.index)
        if len(fewer.operations) < len(trace.operations):
            outputs = frozenset(i - (i > op.index) for i in outputs)
        trace = fewer
    return trace, outputs
