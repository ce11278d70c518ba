"""What a fault does to a running attempt: kill, signal, stop, or answer a call in its place.

A :class:`Striker` is told where the program stands (held at a point or before a call, or running)
and does the fault's action there, once or as often as the fault says. It writes the evidence, and
only what was seen: a death by SIGKILL, an answer that the kernel took, a process that stopped.
"""

import contextlib
import errno
import os
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fault_injection import processes
from fault_injection.aim import Aim
from fault_injection.faults import ActionKind
from fault_injection.output import Kept
from fault_injection.settings import Seen, Settings
from fault_injection.start import Started

if sys.platform == "linux":
    from fault_injection import seccomp, shortwrite

if TYPE_CHECKING:
    from fault_injection.recorder import Call, Recorder

KILL_TIMEOUT_S = 120.0  # a process that waits for a busy disk dies when that has answered
_PLACES_LIMIT = 1 << 20


@dataclass(slots=True)
class Watched:
    """What the loop has seen so far; read once it has ended."""

    stdout: Kept
    stderr: Kept
    chunks: list[Seen] = field(default_factory=list)
    points: list[str] = field(default_factory=list)
    places: list[str] = field(default_factory=list)
    status: int | None = None
    ended_s: float = 0.0
    timed_out: bool = False
    struck: bool = False
    evidence: str = ""
    untraceable: str = ""
    bounded: str = ""
    start_error: str = ""
    left_behind: tuple[str, ...] = ()
    at_once: int = 0
    held_in_part: bool = False
    cut: set[str] = field(default_factory=set)

    def append(self, places: list[str], place: str, what: str) -> None:
        """Add to ``points`` or ``places``, which an endless program must not grow for ever."""
        if len(places) < _PLACES_LIMIT:
            places.append(place)
        else:
            self.cut.add(what)


class Striker:
    """The fault of one attempt, and its hands on the processes."""

    def __init__(
        self,
        settings: Settings,
        *,
        started: Started,
        aim: Aim,
        recorder: "Recorder | None",
        spare: frozenset[int],
        watched: Watched,
    ) -> None:
        self._settings = settings
        self._started = started
        self._aim = aim
        self._recorder = recorder
        self._spare = spare
        self._watched = watched
        self._after_pause: Callable[[], None] | None = None
        self._pause_where = ""

    @property
    def pausing(self) -> bool:
        """Whether the tree was told to stop and has not been seen to."""
        return self._after_pause is not None

    def tree(self) -> Iterator[int]:
        """The pids of the attempt, those that left its session included."""
        return processes.walk(os.getpid(), spare=self._spare)

    def has_ended(self) -> bool:
        """Reap the main process if it has ended; its status is in ``watched`` then."""
        if self._watched.status is None:
            pid, status = os.waitpid(self._started.pid, os.WNOHANG)
            if pid != 0:
                self._watched.status = status
        return self._watched.status is not None

    def is_main(self, tid: int) -> bool:
        """Whether the thread belongs to the main process."""
        if tid == self._started.pid:
            return True
        with contextlib.suppress(OSError):
            return seccomp.thread_group(tid) == self._started.pid
        return False

    def strike(self, where: str, go_on: Callable[[], None]) -> None:
        """Do the fault's action to a program that is held, or to a running one.

        ``where`` is for the evidence; ``go_on`` lets a program go that is to live.
        """
        fault = self._settings.fault
        assert fault is not None
        self._hold()
        self._aim.strikes += 1
        if fault.action is ActionKind.KILL:
            self.kill()
            if self.was_killed():
                self._saw(f"SIGKILL of the process tree {where}")
        elif fault.action is ActionKind.SIGNAL:
            if self._signal_main(signal.Signals[fault.detail]):
                self._saw(f"{fault.detail} {where}")
            go_on()
        elif fault.action is ActionKind.PAUSE:
            processes.signal_all(self.tree(), signal.SIGSTOP)
            self._after_pause = go_on
            self._pause_where = where
        else:
            raise AssertionError(f"{fault.action} is no action on a process")

    def strike_call(self, note: "seccomp.Notification", call: "Call") -> None:
        """Strike at a call that waits: answer it, or do something to its process first."""
        fault = self._settings.fault
        assert fault is not None
        assert self._recorder is not None
        where = f"{call.place} (call {len(self._watched.places)})"
        if fault.action is ActionKind.ERRNO:
            self._hold()
            self._aim.strikes += 1
            number = getattr(errno, fault.detail)
            if seccomp.respond_errno(self._started.listener, note.id, number):
                self._saw_answer(fault.detail, where)
            self._recorder.answered(call, "failed")
            return
        if fault.action is ActionKind.SHORT_WRITE:
            if self._answer_half(note, call, where):
                return
        else:
            before = "before" if fault.action is ActionKind.KILL else "at"
            ends = self._ends_by_signal(note)
            self.strike(f"{before} {where}", nothing)
            if self._watched.status is not None or ends:
                # Answered, the call of a dying process would run, or not: as the threads happen to
                # be scheduled. Not answered, it never runs.
                return
        # Also one that is to stop: it stops on its way out of the call.
        went_on = seccomp.respond_continue(self._started.listener, note.id)
        self._recorder.answered(call, "continued" if went_on else "failed")

    def _answer_half(self, note: "seccomp.Notification", call: "Call", where: str) -> bool:
        """Do half of the write and answer so. False when it has no half: it is to run whole."""
        assert self._recorder is not None
        self._hold()
        short = shortwrite.write_half(note)
        if short is None:
            return False
        if short.errno:
            seccomp.respond_errno(self._started.listener, note.id, short.errno)
            self._recorder.answered(call, "failed")
            return True
        self._aim.strikes += 1
        if seccomp.respond_value(self._started.listener, note.id, short.wrote):
            self._saw_answer(f"a short write ({short.wrote} bytes)", where)
        self._recorder.answered(call, ("wrote", short.wrote))
        return True

    def _hold(self) -> None:
        if self._aim.strikes == 0 and self._settings.at_fault is not None:
            self._settings.at_fault()

    def _ends_by_signal(self, note: "seccomp.Notification") -> bool:
        fault = self._settings.fault
        if fault is None or fault.action is not ActionKind.SIGNAL or not self.is_main(note.tid):
            return False
        return processes.would_end(self._started.pid, signal.Signals[fault.detail])

    def _saw(self, evidence: str) -> None:
        self._watched.struck = True
        self._watched.evidence = evidence

    def _saw_answer(self, what: str, where: str) -> None:
        if not self._watched.struck:
            self._saw(f"{what} at {where}")
        elif self._aim.strikes > 1:
            first = self._watched.evidence.partition(", and ")[0]
            self._watched.evidence = f"{first}, and {self._aim.strikes - 1} more"

    def _signal_main(self, number: int) -> bool:
        """Whether a living main process got the signal (not reaped, so its pid is its own)."""
        if processes.state_of(self._started.pid) in ("Z", "X", ""):
            return False
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._started.pid, number)
            return True
        return False

    def look_whether_stopped(self) -> None:
        """Let a tree that was told to stop go on, once all of it is seen to have stopped."""
        if processes.state_of(self._started.pid) not in ("T", "t"):
            return
        if any(processes.state_of(pid) not in "TtZX" for pid in self.tree()):
            return
        go_on, self._after_pause = self._after_pause, None
        processes.signal_all(self.tree(), signal.SIGCONT)
        self._saw(f"SIGSTOP seen and SIGCONT {self._pause_where}")
        assert go_on is not None
        go_on()

    def kill(self) -> None:
        """Kill the whole tree, the main process first, and wait for the main one's end."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._started.pid, signal.SIGKILL)
        processes.signal_all(self.tree(), signal.SIGKILL)
        deadline = time.monotonic() + KILL_TIMEOUT_S
        while True:
            if self._started.pidfd >= 0:
                ended = select.poll()
                ended.register(self._started.pidfd, select.POLLIN)
                ended.poll((deadline - time.monotonic()) * 1000)
            if self.has_ended():
                return
            if time.monotonic() > deadline:
                pid = self._started.pid
                raise processes.DidNotDie(
                    f"process {pid} did not die of SIGKILL in {KILL_TIMEOUT_S:g} s;"
                    f" it is in state {processes.state_of(pid)!r}"
                )
            time.sleep(0.0001)

    def was_killed(self) -> bool:
        """Whether the main process was found dead by SIGKILL."""
        status = self._watched.status
        return status is not None and os.WIFSIGNALED(status) and os.WTERMSIG(status) == _SIGKILL


_SIGKILL = int(signal.SIGKILL)


def nothing() -> None:
    """Nothing has to be let go."""
