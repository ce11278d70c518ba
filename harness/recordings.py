"""Recordings of a program of several threads, each with another of them made slow.

What only was in time by luck comes late in one of them (:mod:`fault_injection.holding`). Recordings
in which each call found the same done by the other threads have the same crash states: of these one
is kept. A program whose threads wait for one another mostly has a single one.
"""

from collections.abc import Callable
from typing import TypeVar

from fault_injection.attempt import Attempt
from fault_injection.crash_states.history import DATA_KINDS, SYNC_KINDS
from fault_injection.holding import ALL_OTHERS, BUDGET_S, MAIN
from fault_injection.trace import Kind, Trace
from harness.errors import CannotJudge, UsageError

MOST_OTHERS = 6
MOST_BYTES = 2 << 30  # of all recordings
_PUBLISHING = (Kind.RENAME, Kind.LINK, Kind.EXCHANGE, Kind.UNLINK, Kind.RMDIR, Kind.OUTPUT)

R = TypeVar("R")
Found = frozenset[tuple[str, int]]


def recorded(
    run: Callable[[tuple[int, int]], R],
    *,
    attempt_of: Callable[[R], Attempt],
    written_bytes: int = 0,
) -> tuple[list[R], tuple[str, ...]]:
    """The recordings that differ, and what is to be said of those that were not made.

    ``run`` records the program with ``hold_back`` as it is told; what it raises the first time is
    raised, afterwards it is said. ``written_bytes`` is what one recording takes up.
    """
    first = run((ALL_OTHERS, 1))
    others = attempt_of(first).at_once
    if not others:
        return [first], ()
    most = max(1, min(MOST_OTHERS, MOST_BYTES // max(1, written_bytes) - 2))
    said: list[str] = []
    if others > most:
        said.append(
            f"{others} threads and processes were at work at one time; who waits for whom was "
            f"tried with {most} of them"
        )
    runs: list[R] = []
    for slow in (*range(1, min(others, most) + 1), MAIN):
        try:
            runs.append(run((slow, others)))
        except (UsageError, CannotJudge) as error:
            said.append(f"a recording with another thread slow could not be used: {error}")
    if any(attempt_of(one).held_in_part for one in runs):
        said.append(
            f"threads were held back for {BUDGET_S:g} s of a run; who waits for whom was not tried "
            "in what it did later"
        )
    kept: list[R] = []
    known: set[Found] = set()
    # With another thread late what nobody waits for shows: most that is wrong is that.
    for one in (*runs, first):
        trace = attempt_of(one).trace
        assert trace is not None
        found = what_was_found(trace)
        if found not in known:
            known.add(found)
            kept.append(one)
    return kept, tuple(dict.fromkeys(said))


def trace_of(trace_dir: str, number: int) -> str:
    """Where the trace of a subject's recording ``number`` is, by where its first one is."""
    return trace_dir if number == 0 else f"{trace_dir}@{number}"  # no subject's name has that sign


def what_was_found(trace: Trace) -> Found:
    """For each call that publishes or syncs: what the other threads had done by then.

    Of a sync those that change data count, and names: it makes durable what it finds.
    """
    done: dict[int, int] = {}  # by thread: its operations, in any order
    found: list[tuple[str, int]] = []
    for op in trace.operations:
        if op.kind in _PUBLISHING or op.kind in SYNC_KINDS:
            others = 0
            for thread, sum_of_hashes in done.items():
                if thread != op.thread:
                    others ^= sum_of_hashes
            found.append((op.place, others))
        if op.kind in DATA_KINDS or op.kind in SYNC_KINDS or op.kind in _PUBLISHING[:-1]:
            done[op.thread] = done.get(op.thread, 0) ^ hash(op.place)
    return frozenset(found)
