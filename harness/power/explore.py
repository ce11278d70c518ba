"""Exploring: all crash states of a recorded run under one model, judged; what failed and why.

A run's states are shared out among workers by crash place. Each worker keeps one judge a subject,
so that what one model's states taught answers those of the next.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_injection.crash_states import (
    DEFAULT_BOUND,
    PlaceCount,
    State,
    cause_of,
    describe,
    enumerate_states,
)
from fault_injection.crash_states.describe import operation_words
from fault_injection.trace import ROOT_INODE, Kind, Trace
from fault_injection.tracestore import load_trace
from harness.baseline import Baseline
from harness.evidence import Finding
from harness.power.judge import Judge, shown_events
from harness.subjects import Subject

CHECK_EVERY = 50
CAUSES = 60
FAILURES = 2000
_VARIES = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Exploration:
    """A recorded run under a model, at the crash places ``first`` to ``last`` (-1: to the end)."""

    subject: Subject
    baseline: Baseline
    trace_dir: str
    model: str
    first: int = 0
    last: int = -1
    seed: int = 0
    bound: int = DEFAULT_BOUND
    equal_reads: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A state that broke invariants. The last five fields are empty when no cause was sought."""

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
    ``failures`` holds.
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


@dataclass(slots=True)
class _Prepared:
    trace: Trace
    outputs: tuple[int, ...]
    judge: Judge


_prepared: dict[tuple[str, bool], _Prepared] = {}


def prepare(exploration: Exploration, scratch: Path) -> _Prepared:
    """This worker's judge for the subject; made once."""
    key = (exploration.trace_dir, exploration.equal_reads)
    found = _prepared.get(key)
    if found is None:
        trace = load_trace(exploration.trace_dir)
        shown, outputs = shown_events(exploration.baseline.shown)
        judge = Judge(
            subject=exploration.subject,
            baseline=exploration.baseline,
            scratch=scratch,
            shown=shown,
            equal_reads=exploration.equal_reads,
            check_every=CHECK_EVERY,
            seed=exploration.seed,
        )
        if exploration.subject.format == "tinyllm":
            everything = enumerate_states(trace, model="kill", outputs=outputs)
            judge.know_complete(state.tree() for state in everything)
        found = _prepared[key] = _Prepared(trace, outputs, judge)
    return found


def explore(exploration: Exploration, scratch: Path) -> Explored:
    """Judge the states first found at the crash places of the exploration."""
    prepared = prepare(exploration, scratch)
    judge, before = prepared.judge, prepared.judge.counts
    judged, equal, checked = before.judged, before.equal_reads, before.checked
    counts: list[PlaceCount] = []
    failures: list[Failure] = []
    failed = states = 0
    of_place: dict[str, int] = {}
    for state in enumerate_states(
        prepared.trace,
        model=exploration.model,
        seed=exploration.seed,
        bound=exploration.bound,
        outputs=prepared.outputs,
        counts=counts,
    ):
        if not _within(exploration, state.place):
            continue
        states += 1
        label = state.place_label
        of_place[label] = of_place.get(label, 0) + 1
        findings = judge.findings(state)
        if findings:
            failed += 1
            if len(failures) < FAILURES:
                failures.append(_failure(state, findings, judge, explain=len(failures) < CAUSES))
    here = [c for c in counts if _within(exploration, c.place)]
    return Explored(
        model=exploration.model,
        cases=sum(c.states for c in here),
        states=states,
        judged=judge.counts.judged - judged,
        equal_reads=judge.counts.equal_reads - equal,
        checked=judge.counts.checked - checked,
        sampled=any(c.sampled for c in here),
        failed=failed,
        failures=tuple(failures),
        places=tuple(of_place.items()),
    )


def _within(exploration: Exploration, place: int) -> bool:
    return place >= exploration.first and (exploration.last < 0 or place <= exploration.last)


def _failure(state: State, findings: Sequence[Finding], judge: Judge, *, explain: bool) -> Failure:
    cause = cause_of(state, judge.is_good) if explain else None
    lost = describe(state)
    crash = _crash_words(state)
    if cause is None:
        return Failure(
            descriptor=state.descriptor(),
            place=state.place_label,
            findings=tuple(findings),
            lost="; ".join(lost[:4]),
            crash=crash,
        )
    trace = state.space.history.trace
    words = operation_words(state.space.history)
    first = trace.operations[cause.needed[0]] if cause.needed else None
    needed_words = [words[i] for i in cause.needed]
    return Failure(
        descriptor=state.descriptor(),
        place=state.place_label,
        findings=tuple(findings),
        needs=missing_sync(trace, cause.needed, cause.before, words),
        lost="; ".join(f"#{i} {words[i]}   not durable at the crash" for i in cause.needed[:4]),
        crash=crash,
        holds_if=cause.good.descriptor(),
        site=first.site if first else "",
        cause=_VARIES.sub(
            "N",
            f"{' and '.join(needed_words[:3])} before "
            f"{words[cause.before] if cause.before >= 0 else 'the crash'}",
        ),
    )


def _crash_words(state: State) -> str:
    if state.place == 0:
        return "before the first operation"
    words = operation_words(state.space.history)
    return f"after #{state.place - 1} {words[state.place - 1]}"


def missing_sync(trace: Trace, needed: Sequence[int], before: int, words: Sequence[str]) -> str:
    """Which fsync would have given the order, in words: of what, after what, before what."""
    if not needed:
        return ""
    paths = last_paths(trace)
    wanted: list[str] = []
    for index in needed:
        op = trace.operations[index]
        if op.kind in (Kind.RENAME, Kind.EXCHANGE) and op.new_parent != op.parent:
            targets = [op.new_parent, op.parent]
        elif op.kind in (Kind.RENAME, Kind.EXCHANGE):
            targets = [op.new_parent]
        elif op.kind in (Kind.CREATE, Kind.MKDIR, Kind.LINK, Kind.SYMLINK, Kind.UNLINK, Kind.RMDIR):
            targets = [op.parent]
        else:
            targets = [op.inode]
        for target in targets:
            name = f"fsync({paths.get(target, 'the file')})"
            if name not in wanted:
                wanted.append(name)
    when = f"before `{words[before]}`" if before >= 0 else "before the crash"
    return f"{' and '.join(wanted[:3])} after `{words[needed[-1]]}`, {when}"


def last_paths(trace: Trace) -> dict[int, str]:
    """The last name of each inode as a path relative to the root; the root is "the root"."""
    names: dict[int, tuple[int, bytes]] = {}
    for node in trace.start.values():
        for name, inode in node.entries.items():
            names[inode] = (node.inode, name)
    for op in trace.operations:
        if op.kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK, Kind.LINK) and op.name:
            names[op.inode] = (op.parent, op.name)
        elif op.kind is Kind.RENAME:
            names[op.inode] = (op.new_parent, op.new_name)
        elif op.kind is Kind.EXCHANGE:
            names[op.inode] = (op.new_parent, op.new_name)
            names[op.replaced] = (op.parent, op.name)
    paths = {ROOT_INODE: "the root"}
    for inode in names:
        parts: list[str] = []
        current = inode
        while current != ROOT_INODE and current in names and len(parts) < 64:
            current, name = names[current]
            parts.append(name.decode("utf-8", "backslashreplace"))
        paths[inode] = "/".join(reversed(parts))
    return paths
