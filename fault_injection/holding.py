"""Which threads wait for one another: found by making one of them slow and looking who goes on.

That a sync of one thread returned before another thread's rename is no order between them when
nobody waited: another time it is the other way round, and what the rename shows is not durable.
Whether somebody waits (a join, a lock, a pipe, a child's end) cannot be seen from outside, but it
can be tried: the scheduling by priorities of "A Randomized Scheduler with Probabilistic Guarantees
of Finding Bugs" (Burckhardt et al., 2010), for faults that one slow thread shows. The calls of one
thread are held back while the others go on. When none of them has done anything for a moment, they
wait for it, or have nothing to do, and it goes on. A program whose threads wait for one another
does what it always does; in one whose threads do not, the others are first, and the recording says
so. It takes a run for each thread that there is at one time, the main thread among them.

Not covered: what only two slow threads show together; what threads do with memory alone.
"""

import os
from collections.abc import Callable

from fault_injection.seccomp import Notification
from fault_injection.syscalls import NUMBERS

QUIET_S = 0.2  # without a call of any other thread
LONGEST_S = 1.0  # of one call, when the others never stop
BUDGET_S = 6.0  # of all of an attempt
MAIN, ALL_OTHERS = 0, -1


def _numbers(*names: str) -> frozenset[int]:
    return frozenset(NUMBERS[name] for name in names if name in NUMBERS)


_WRITES = _numbers("write", "pwrite64", "writev", "pwritev", "pwritev2", "sendfile")
_SYNCS = _numbers("fsync", "fdatasync", "sync", "syncfs")
_NAMES = _numbers("rename", "renameat", "renameat2", "link", "linkat", "unlink", "unlinkat")


class Holder:
    """The calls that are held back in one attempt. Times are of the caller's clock.

    The slow thread is the main one (``slow`` MAIN), or of the ``others`` number ``slow``, then the
    one that is ``others`` further, and so on: a program may start as many for each save. With
    ALL_OTHERS each but the main one waits once, at its first call, so that ``at_once`` tells how
    many there can be. ``in_part``: the budget did not last. ``is_main`` tells the main thread;
    ``is_alone`` whether there is no other.
    """

    def __init__(
        self,
        slow: int,
        *,
        others: int,
        is_main: Callable[[int], bool],
        is_alone: Callable[[], bool],
    ) -> None:
        self.at_once = 0
        self.in_part = False
        self._slow = slow
        self._others = others
        self._is_main = is_main
        self._is_alone = is_alone
        self._held: list[tuple[float, Notification]] = []  # with the time since when
        self._heard_s = 0.0  # of the others, or when the last one was released
        self._waited_s = 0.0
        self._spent_s = 0.0
        self._went_on = True
        self._number: dict[int, int] = {}
        self._living: set[int] = set()
        self._called: set[int] = set()

    def takes(self, note: Notification, *, now_s: float) -> bool:
        """Whether to hold this call back: it is not to be answered until :meth:`due` gives it."""
        if note.foreign:
            return False
        is_first = note.tid not in self._called
        self._called.add(note.tid)
        role = self._role(note.tid)
        if self._slow == ALL_OTHERS:
            if role == MAIN or not is_first or self._is_over():
                return False
            self._hold(note, now_s)
            return True
        if role != self._slow:
            return False
        if note.nr in _WRITES:
            # A file in many writes is late as a whole when the first one is.
            if not self._went_on:
                return False
        elif note.nr not in _SYNCS and (note.nr not in _NAMES or self._slow == MAIN):
            return False
        if (self._slow == MAIN and self._is_alone()) or self._is_over():
            return False
        self._hold(note, now_s)
        return True

    def _is_over(self) -> bool:
        """Whether the budget is spent; that something was not held is remembered."""
        over = self._spent_s >= BUDGET_S
        self.in_part |= over
        return over

    def _hold(self, note: Notification, now_s: float) -> None:
        if not self._held:
            self._waited_s = now_s
            self._went_on = False
        self._heard_s = now_s
        self._held.append((now_s, note))

    def _role(self, tid: int) -> int:
        if self._is_main(tid):
            return MAIN
        if tid not in self._number:
            self._add(tid)
        return 1 + self._number[tid] % self._others

    def _add(self, tid: int) -> None:
        """Threads are numbered as they were started, as far as that is known."""
        try:
            group = sorted(map(int, os.listdir(f"/proc/{tid}/task")))
        except OSError:
            group = []
        for one in (*group, tid):
            if not self._is_main(one) and one not in self._number:
                self._number[one] = len(self._number)
                self._living.add(one)
        self._living = {one for one in self._living if os.path.exists(f"/proc/{one}")}
        self.at_once = max(self.at_once, len(self._living))

    def has_new(self) -> None:
        """A thread or process is started."""
        self._went_on = True

    def went_on(self, tid: int, now_s: float) -> None:
        """A thread has done something that is seen."""
        if not self._is_slow(self._role(tid)):
            self._heard_s = now_s
            self._went_on = True

    def _is_slow(self, role: int) -> bool:
        return role != MAIN if self._slow == ALL_OTHERS else role == self._slow

    def due_s(self) -> float | None:
        """When a held call is to go on, as far as is known now; None: nothing is held."""
        if not self._held:
            return None
        return min(self._heard_s + QUIET_S, self._held[0][0] + LONGEST_S)

    def due(self, now_s: float) -> Notification | None:
        """A call that is to go on now, and is not held any more."""
        due_s = self.due_s()
        if due_s is None or now_s < due_s:
            return None
        _, note = self._held.pop(0)
        self._spent_s += now_s - self._waited_s
        self._waited_s = now_s
        if self._slow != ALL_OTHERS:
            self._heard_s = now_s
        return note
