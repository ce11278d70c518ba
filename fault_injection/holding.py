"""Which threads wait for one another: found by holding one back and looking who goes on.

That a sync of one thread returned before another thread's rename is no order between them when
nobody waited: another time it is the other way round, and what the rename shows is not durable.
Whether somebody waits (a join, a lock, a pipe, a child's end) cannot be seen from outside, but it
can be tried. A sync, or a write of a thread that is not the main one, is held back while the others
go on. When none of them has done anything for a moment, they wait for it, or have nothing to do,
and the one that was started first goes on. A program whose threads wait for one another does what
it always does; in one whose threads do not, the others are first, and the recording says so.

Of threads that do the same, one time this one and another time that one is late: two of three
threads are, and of one thread two of three calls after another.
"""

import os
from collections import Counter

from fault_injection.seccomp import Notification
from fault_injection.syscalls import NUMBERS

QUIET_S = 0.2  # without a call of any other thread
LONGEST_S = 1.0  # of one call, when the others never stop
BUDGET_S = 6.0  # of all of an attempt
_AT_ONCE = 8
_IN_A_ROW = 3  # calls of one thread that are treated alike

_SYNCS = frozenset(
    NUMBERS[name] for name in ("fsync", "fdatasync", "sync", "syncfs") if name in NUMBERS
)
_WRITES = frozenset(
    NUMBERS[name]
    for name in ("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile")
    if name in NUMBERS
)


class Holder:
    """The calls that are held back in one attempt. Times are of the caller's clock."""

    def __init__(self) -> None:
        self._held: list[tuple[int, float, Notification]] = []  # the thread's number, since when
        self._quiet_since_s = 0.0
        self._spent_s = 0.0
        self._numbers: dict[int, int] = {}
        self._calls: Counter[int] = Counter()

    def takes(self, note: Notification, *, of_main: bool, now_s: float) -> bool:
        """Whether to hold this call back: it is not to be answered until :meth:`due` gives it."""
        thread = self._number(note.tid)
        if note.foreign or not (note.nr in _SYNCS or (note.nr in _WRITES and not of_main)):
            return False
        turn = thread + self._calls[thread] // _IN_A_ROW
        self._calls[thread] += 1
        if turn % 3 == 2 or len(self._held) >= _AT_ONCE or self._spent_s >= BUDGET_S:
            return False
        self._held.append((thread, now_s, note))
        self._quiet_since_s = now_s
        return True

    def _number(self, tid: int) -> int:
        """Threads are numbered as they were started, as far as that is known."""
        if tid not in self._numbers:
            try:
                group = sorted(map(int, os.listdir(f"/proc/{tid}/task")))
            except OSError:
                group = []
            for one in (*group, tid):
                self._numbers.setdefault(one, len(self._numbers))
        return self._numbers[tid]

    def went_on(self, now_s: float) -> None:
        """Another thread has done something."""
        self._quiet_since_s = now_s

    def due_s(self) -> float | None:
        """When a held call is to go on, as far as is known now; None: nothing is held."""
        if not self._held:
            return None
        longest_s = min(since_s for _, since_s, _ in self._held) + LONGEST_S
        return min(self._quiet_since_s + QUIET_S, longest_s)

    def due(self, now_s: float) -> Notification | None:
        """A call that is to go on now, and is not held any more."""
        due_s = self.due_s()
        if due_s is None or now_s < due_s:
            return None
        _, since_s, note = chosen = min(self._held, key=lambda held: held[0])
        self._held.remove(chosen)
        self._spent_s += now_s - since_s
        self._quiet_since_s = now_s
        return note
