"""Starting one attempt: a fork, its own session, pipes, the filter, then the program.

The child leaves the parent's session, is killed when the parent dies, gets ``/dev/null`` and two
pipes for its standard streams, drops every other descriptor, and then either executes the command
or, with a plan of :mod:`fault_injection.forkstart`, becomes the program itself, or calls a function
(:mod:`fault_injection.forkcall`, with all descriptors). Under supervision it installs the seccomp
filter last and hands its listener to the parent.

What goes wrong before the program runs comes back in words, over a socket that the program never
sees; it is an error of the start, not of the program.
"""

import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys
import warnings
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from fault_injection import forkcall, forkstart, points, processes
from fault_injection.settings import Command

if TYPE_CHECKING:
    from fault_injection.seccomp import Match

_START_TIMEOUT_S = 60.0
# Above what a program uses by itself, so that its own descriptors keep their usual numbers.
_FIRST_FD_OF_OURS = 200


@dataclass(frozen=True, slots=True)
class Arming:
    """Which failpoint is armed: ``chosen`` is (name, hit) or None; ``report`` every hit."""

    chosen: tuple[str, int] | None = None
    report: bool = False


@dataclass(slots=True)
class Started:
    """A started program. Descriptors that do not exist are -1; all are closed by the caller.

    ``handshake`` ends when the program has begun, and carries words when it could not begin.
    """

    pid: int = -1
    pidfd: int = -1
    stdout: int = -1
    stderr: int = -1
    listener: int = -1
    control: socket.socket | None = None
    handshake: socket.socket | None = None

    def close(self) -> None:
        """Close every descriptor. Only once nothing runs under the listener any more."""
        for fd in (self.pidfd, self.stdout, self.stderr, self.listener):
            if fd >= 0:
                os.close(fd)
        for sock in (self.control, self.handshake):
            if sock is not None:
                sock.close()


class StartError(Exception):
    """The program could not be started; the text says why."""


def start(
    command: Command,
    *,
    plan: forkstart.Plan | None = None,
    notify: Collection["int | Match"] | None = None,
    arming: Arming | None = None,
    file_limit_bytes: int | None = None,
) -> Started:
    """Start ``command``; ``notify`` are the calls to supervise (None: no supervision).

    Raises StartError, and leaves nothing behind then, when the child cannot be made or supervised.
    A command that cannot be executed is told over ``handshake`` later.
    """
    if plan is not None or command.call is not None:
        for stream in (sys.stdout, sys.stderr):
            # What is buffered here must not be written once more by the child.
            if stream is not None and not stream.closed:
                stream.flush()
    filter_program: bytes | None = None
    if notify is not None:
        from fault_injection import seccomp

        filter_program = seccomp.prepare(notify)
    if plan is not None:
        plan = forkstart.ready(plan)
    child = _Child(command, plan, filter_program, arming, file_limit_bytes)
    started = Started()
    try:
        with contextlib.ExitStack() as childs_ends:
            _fork_into(started, child, childs_ends)
        if hasattr(os, "pidfd_open"):
            started.pidfd = os.pidfd_open(started.pid)
        assert started.handshake is not None
        if notify is not None:
            started.listener = _receive_listener(started.handshake)
        for fd in (started.stdout, started.stderr):
            os.set_blocking(fd, False)
        for sock in (started.handshake, started.control):
            if sock is not None:
                sock.setblocking(False)
    except BaseException:
        if started.pid > 0:
            os.kill(started.pid, signal.SIGKILL)
            os.waitpid(started.pid, 0)
        started.close()
        raise
    return started


def _fork_into(started: Started, child: "_Child", childs_ends: contextlib.ExitStack) -> None:
    """Make what connects the two, and the child. Each end is owned the moment it exists."""
    started.stdout, out = os.pipe()
    childs_ends.callback(os.close, out)
    started.stderr, err = os.pipe()
    childs_ends.callback(os.close, err)
    started.handshake, said = socket.socketpair()
    childs_ends.enter_context(said)
    control = None
    if child.arming is not None:
        started.control, control = socket.socketpair()
        childs_ends.enter_context(control)
    parent = os.getpid()
    started.pid = fork()
    if started.pid == 0:
        _be_the_child(child, parent, said, control, out, err)


def fork() -> int:
    """``os.fork`` that says nothing of the parent's threads."""
    if sys.version_info >= (3, 12):
        with warnings.catch_warnings():
            # A fork beside threads warns there; the child here runs none of their code.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork()
    return os.fork()


def _receive_listener(ours: socket.socket) -> int:
    ours.settimeout(_START_TIMEOUT_S)
    data, fds, _, _ = socket.recv_fds(ours, 4096, 1, socket.MSG_CMSG_CLOEXEC)
    if fds:
        return fds[0]
    raise StartError(data.decode(errors="replace") or "the child ended before it had started")


@dataclass(frozen=True, slots=True)
class _Child:
    command: Command
    plan: forkstart.Plan | None
    filter_program: bytes | None
    arming: Arming | None
    file_limit_bytes: int | None


def _be_the_child(
    child: _Child,
    parent: int,
    handshake: socket.socket,
    control: socket.socket | None,
    stdout: int,
    stderr: int,
) -> NoReturn:
    """Everything between the fork and the program's first instruction."""
    said = handshake.fileno()
    try:
        os.setsid()
        processes.die_with_parent(parent)
        said = fcntl.fcntl(said, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD_OF_OURS)
        control_fd = -1
        if control is not None:
            control_fd = fcntl.fcntl(control.fileno(), fcntl.F_DUPFD, _FIRST_FD_OF_OURS)
        null = os.open(os.devnull, os.O_RDONLY)
        # The pipes may themselves be 0 to 2 when the parent runs without standard streams.
        out = fcntl.fcntl(stdout, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD_OF_OURS)
        err = fcntl.fcntl(stderr, fcntl.F_DUPFD_CLOEXEC, _FIRST_FD_OF_OURS)
        os.dup2(null, 0)
        os.dup2(out, 1)
        os.dup2(err, 2)
        if child.command.call is None:
            _close_all_but({0, 1, 2, said, control_fd})
        else:
            for fd in {handshake.detach(), stdout, stderr, null, out, err} - {0, 1, 2}:
                os.close(fd)
        os.chdir(child.command.cwd)
        if child.file_limit_bytes is not None:
            limits = (child.file_limit_bytes, child.file_limit_bytes)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        if child.command.call is not None:
            _supervise(child.filter_program, said)
            os.close(said)
            forkcall.run(child.command.call)
        if child.plan is None:
            _execute(child, said, control_fd)
        _become(child, child.plan, said, control_fd)
    except BaseException as error:
        with contextlib.suppress(OSError):
            os.write(said, f"{type(error).__name__}: {error}".encode())
        os._exit(127)


def _close_all_but(keep: set[int]) -> None:
    low = 0
    for fd in sorted(keep - {-1}):
        if low < fd:  # an empty range from 0 would close everything
            os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, 1 << 30)


def _supervise(filter_program: bytes | None, said: int) -> None:
    if filter_program is None:
        return
    from fault_injection import seccomp

    listener = seccomp.install_program(filter_program)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, fileno=said)
    socket.send_fds(sock, [b"F"], [listener])
    sock.detach()
    os.close(listener)


def _execute(child: _Child, said: int, control_fd: int) -> NoReturn:
    env = dict(child.command.env)
    if child.arming is not None:
        env[points.ENV_CONTROL_FD] = str(control_fd)
        if child.arming.chosen is not None:
            env[points.ENV_POINT] = "{}#{}".format(*child.arming.chosen)
        if child.arming.report:
            env[points.ENV_REPORT] = "1"
    for number in (signal.SIGPIPE, getattr(signal, "SIGXFSZ", signal.SIGPIPE)):
        signal.signal(number, signal.SIG_DFL)
    for number in signal.valid_signals():
        if signal.getsignal(number) == signal.SIG_IGN:
            with contextlib.suppress(OSError):
                signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    _supervise(child.filter_program, said)
    os.execvpe(child.command.argv[0], child.command.argv, env)


def _become(child: _Child, plan: forkstart.Plan, said: int, control_fd: int) -> NoReturn:
    if child.arming is not None:
        points.arm(chosen=child.arming.chosen, report=child.arming.report, control_fd=control_fd)
    else:
        points.disarm()
    _supervise(child.filter_program, said)
    os.close(said)
    forkstart.run(plan, env=dict(child.command.env), cwd=child.command.cwd)
