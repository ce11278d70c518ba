"""The loop around one running attempt: it watches, answers, strikes, and bounds.

One thread polls the seccomp listener, the end of the main process (pidfd), its pipes and the
control channel of the failpoints. Each supervised call waits until it is answered here, which is
what makes a kill before a call exact: it is decided while the call has not run, and nothing that
changes the tree runs between the decision and the death, since nobody is answered any more.
"""

import contextlib
import os
import re
import select
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from fault_injection import processes, striking
from fault_injection.aim import Aim
from fault_injection.filetree import allocated_bytes
from fault_injection.output import Kept
from fault_injection.settings import IN_THE_TREE, ON_THE_DISK, Seen, Settings
from fault_injection.start import Started
from fault_injection.striking import Striker, Watched

if sys.platform == "linux":
    from fault_injection import seccomp, syscalls
    from fault_injection.holding import Holder

if TYPE_CHECKING:
    from fault_injection.recorder import Recorder

TASKS_BETWEEN_CHECKS = 32
_TICK_S = 0.05
_PAUSE_TICK_S = 0.001
_OUTPUT_AT_ONCE_BYTES = 1 << 13  # an eighth of a pipe
_RESERVE_BYTES = 256 << 20
_LINE_LIMIT_BYTES = 1 << 16
_READ_BYTES = 1 << 16
_POINT = re.compile(r"(hit|at) ([^\s#]+) ([1-9][0-9]{0,9})", re.ASCII)


class Supervision:
    """One attempt under way. ``spare`` are children of this process that were there before."""

    def __init__(
        self,
        settings: Settings,
        *,
        started: Started,
        aim: Aim,
        recorder: "Recorder | None",
        spare: frozenset[int],
        began_s: float,
    ) -> None:
        limit = settings.output_limit_bytes
        self.watched = Watched(Kept(limit), Kept(limit))
        self._settings = settings
        self._started = started
        self._aim = aim
        self._recorder = recorder
        self._spare = spare
        self._striker = Striker(
            settings,
            started=started,
            aim=aim,
            recorder=recorder,
            spare=spare,
            watched=self.watched,
        )
        self._began_s = began_s
        self._deadline_s = began_s + settings.timeout_s
        wait_s = aim.time_s()
        self._strike_s = None if wait_s is None else began_s + wait_s
        self._tick_s = began_s + _TICK_S
        self._tasks_started = 0
        self._holder = self._make_holder() if settings.hold_back is not None else None
        self._free_at_first = self._free_bytes()
        self._control = b""
        self._output_bytes = 0
        self._poller = select.poll()
        self._handlers: dict[int, Callable[[], bool]] = {}
        # To be woken for each output is dear. Where they are read before each call anyway, that
        # and a look now and then is enough, until there is more than a pipe can hold meanwhile.
        self._polls_outputs = False
        if recorder is None or settings.follow_outputs:
            self._poll_outputs()
        if started.listener >= 0:
            self._register(started.listener, self._on_call)
        if started.pidfd >= 0:
            self._register(started.pidfd, self._on_end)
        if started.control is not None:
            self._register(started.control.fileno(), self._on_control)
        if started.handshake is not None:
            self._register(started.handshake.fileno(), self._on_handshake)

    def _make_holder(self) -> "Holder":
        assert self._settings.hold_back is not None
        slow, others = self._settings.hold_back
        main = self._started.pid
        return Holder(
            slow,
            others=others,
            is_main=lambda tid: tid == main,
            is_alone=lambda: not processes.has_company(main),
        )

    # The loop.

    def run(self) -> Watched:
        """Until the main process has ended, its children too, and all that it said is read."""
        while self.watched.status is None:
            self._step(self._wait_s())
            self._on_time()
        self.watched.ended_s = time.monotonic()
        self._settle()
        self._drain()
        return self.watched

    def _step(self, wait_s: float) -> None:
        for fd, events in self._poller.poll(wait_s * 1000):
            handler = self._handlers.get(fd)
            if handler is None:
                continue
            readable = events & select.POLLIN and handler()
            if not readable and (events & ~select.POLLIN or events & select.POLLIN):
                self._unregister(fd)
            if self.watched.status is not None:
                return

    def _register(self, fd: int, handler: Callable[[], bool]) -> None:
        """``handler`` is called when there is something to read; false: there will be no more."""
        self._poller.register(fd, select.POLLIN)
        self._handlers[fd] = handler

    def _poll_outputs(self) -> None:
        if not self._polls_outputs:
            self._polls_outputs = True
            self._register(self._started.stdout, self._on_stdout)
            self._register(self._started.stderr, self._on_stderr)

    def _read_outputs(self) -> None:
        before = self._output_bytes
        self._on_stdout()
        self._on_stderr()
        if self._output_bytes - before > _OUTPUT_AT_ONCE_BYTES:
            self._poll_outputs()

    def _unregister(self, fd: int) -> None:
        if self._handlers.pop(fd, None) is not None:
            self._poller.unregister(fd)

    def _wait_s(self) -> float:
        until = min(self._deadline_s, self._tick_s)
        if self._strike_s is not None:
            until = min(until, self._strike_s)
        held_s = self._holder.due_s() if self._holder is not None else None
        if held_s is not None:
            until = min(until, held_s)
        wait_s = max(0.0, until - time.monotonic())
        hurried = self._striker.pausing or self._started.pidfd < 0
        return min(wait_s, _PAUSE_TICK_S) if hurried else wait_s

    def _on_time(self) -> None:
        now = time.monotonic()
        if self._started.pidfd < 0:
            self._on_end()
        if self.watched.status is not None:
            return
        if self._holder is not None and (note := self._holder.due(now)) is not None:
            self._pass(note)
        if self._striker.pausing:
            self._striker.look_whether_stopped()
        if self._strike_s is not None and now >= self._strike_s:
            self._strike_s = None
            self._striker.strike(f"after {self._settings.fault.place} s", striking.nothing)  # type: ignore[union-attr]
        elif now >= self._deadline_s:
            self.watched.timed_out = True
            self._striker.kill()
        elif now >= self._tick_s:
            self._tick_s = now + _TICK_S
            if not self._polls_outputs:
                self._read_outputs()
            self._check_bounds()

    def _free_bytes(self) -> int:
        try:
            found = os.statvfs(self._settings.root)
        except OSError:
            return 0
        return found.f_bavail * found.f_frsize

    def _check_bounds(self) -> None:
        count = sum(1 for _ in self._striker.tree())
        if count > self._settings.process_limit:
            self.watched.bounded = f"more than {self._settings.process_limit} processes at once"
            self._striker.kill()
        elif self._free_bytes() < min(_RESERVE_BYTES, self._free_at_first // 20):
            self.watched.bounded = f"nearly no space left {ON_THE_DISK}"
            self._striker.kill()
        elif self._tree_is_too_large():
            limit = self._settings.tree_limit_bytes
            self.watched.bounded = f"more than {limit:,} bytes {IN_THE_TREE}"
            self._striker.kill()

    def _tree_is_too_large(self) -> bool:
        limit = self._settings.tree_limit_bytes
        # Only where this much has been used since, by whomever, are the tree's files added up.
        if limit is None or self._free_at_first - self._free_bytes() <= limit:
            return False
        return allocated_bytes(self._settings.root) > limit

    # What comes in.

    def _on_stdout(self) -> bool:
        return self._take(self._started.stdout, "stdout", self.watched.stdout)

    def _on_stderr(self) -> bool:
        return self._take(self._started.stderr, "stderr", self.watched.stderr)

    def _take(self, fd: int, source: str, kept: Kept) -> bool:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return True
        self._output_bytes += len(data)
        part = kept.add(data)
        if part and self._recorder is None:
            self.watched.chunks.append(Seen(source, part))
        elif part and not self._settings.follow_outputs:
            assert self._recorder is not None
            self._recorder.told(source, part)
        return bool(data)

    def _on_handshake(self) -> bool:
        assert self._started.handshake is not None
        try:
            data = self._started.handshake.recv(4096)
        except BlockingIOError:
            return True
        self.watched.start_error += data.decode(errors="replace")
        return bool(data)

    def _on_end(self) -> bool:
        return not self._striker.has_ended()

    def _on_control(self) -> bool:
        assert self._started.control is not None
        try:
            data = self._started.control.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except ConnectionResetError:
            return False
        *lines, rest = (self._control + data).split(b"\n")
        self._control = rest[-_LINE_LIMIT_BYTES:]
        for line in lines:
            # The program could write here too: what is no such line is passed over.
            found = _POINT.fullmatch(line.decode(errors="replace"))
            if found is not None:
                what, name, hit = found.groups()
                self.watched.append(self.watched.points, f"{name}#{hit}", "points")
                if what == "at":
                    self._on_point(f"{name}#{hit}")
        return bool(data)

    def _on_point(self, place: str) -> None:
        if self._aim.hits_point(place):
            self._striker.strike(f"at {place}", self._let_go)
        else:
            self._let_go()  # another process at a hit of the same name

    def _let_go(self) -> None:
        assert self._started.control is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._started.control.send(b"\n")

    def _on_call(self) -> bool:
        note = seccomp.receive(self._started.listener)
        if note is None:
            return True
        if note.nr == syscalls.NUMBERS["exit_group"] and self._aim.hits_end():
            if not note.foreign and self._striker.is_main(note.tid):
                self._striker.strike("after the last call", striking.nothing)
                if self.watched.status is not None:
                    return True
            seccomp.respond_continue(self._started.listener, note.id)
            return True
        if note.nr in syscalls.STARTS_TASK and not note.foreign:
            # Counted here and not by the clock: what forks without end forks faster than that.
            self._tasks_started += 1
            if self._holder is not None:
                self._holder.has_new()
            if self._tasks_started % TASKS_BETWEEN_CHECKS == 0:
                self._check_bounds()
            seccomp.respond_continue(self._started.listener, note.id)
            return True
        if self._holder is not None and self._tasks_started:
            taken = self._holder.takes(note, now_s=time.monotonic())
            self.watched.at_once = self._holder.at_once
            self.watched.held_in_part = self._holder.in_part
            if taken:
                return True
        self._pass(note)
        return True

    def _pass(self, note: "seccomp.Notification") -> None:
        """Let a call go on, or strike."""
        assert self._recorder is not None
        if not self._settings.follow_outputs:
            self._read_outputs()
        call = self._recorder.on_call(note)
        if call.untraceable and not self.watched.untraceable:
            self.watched.untraceable = call.untraceable
        if call.place:
            self.watched.append(self.watched.places, call.place, "places")
            if self._holder is not None:
                self._holder.went_on(note.tid, time.monotonic())
            if self._aim.hits_call(call.place):
                self._striker.strike_call(note, call)
                return
        went_on = seccomp.respond_continue(self._started.listener, note.id)
        self._recorder.answered(call, "continued" if went_on else "failed")

    # The end.

    def _settle(self) -> None:
        """Give children a moment to end by themselves, then kill them and everything below."""
        self._poll_outputs()
        killed = self._striker.was_killed()
        grace_s = 0.0 if killed else self._settings.leftover_grace_s
        deadline = time.monotonic() + grace_s
        wait_s = 0.001
        while processes.has_children():
            below = list(self._striker.tree())
            processes.reap(below)
            left = processes.living(below)
            if not left:
                break
            if time.monotonic() >= deadline or self._will_last(left):
                if not killed:
                    self.watched.left_behind = tuple(sorted(map(processes.describe, left)))
                break
            self._step(wait_s)
            wait_s = min(wait_s * 2, 0.02)
        if not processes.kill_descendants(spare=self._spare, timeout_s=striking.KILL_TIMEOUT_S):
            names = ", ".join(map(processes.describe, self._striker.tree()))
            raise processes.DidNotDie(f"processes that did not die of SIGKILL: {names}")

    def _will_last(self, left: Iterable[int]) -> bool:
        """Whether only such processes are left as are known to outlive the program."""
        lasting = Counter(self._settings.lasting)
        if not lasting:
            return False
        root = self._settings.root
        return Counter(processes.describe(pid).replace(root, "{root}") for pid in left) <= lasting

    def _drain(self) -> None:
        """Read what is left in the pipes; nobody writes any more."""
        for fd in list(self._handlers):
            if fd in (self._started.listener, self._started.pidfd):
                continue
            # A pipe holds at most its size; the bound is against a reader outside of the tree.
            for _ in range(1024):
                readable = select.poll()
                readable.register(fd, select.POLLIN)
                if not readable.poll(0) or not self._handlers[fd]():
                    break
