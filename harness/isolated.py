"""Running a function in a forked child and getting its result, whatever the function does.

The child has a session of its own and every module, closure and descriptor of this process. It is
bounded, killed with all that hangs below it, and reaped, on every way out. What it changed in
memory is gone with it.

Not covered: locks that other threads of this process held at the moment of the fork.
"""

import contextlib
import gc
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, NoReturn, TypeVar

from fault_injection import processes
from fault_injection.start import fork

T = TypeVar("T")

_BEAT, _RESULT, _ERROR = b".", b"R", b"E"
_READ_BYTES = 1 << 16
_KILL_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Ended(Generic[T]):
    """How a child ended: with a ``value``, or ``problem`` says in words why there is none.

    ``error`` is the exception that the function raised, when it could be sent.
    """

    value: T | None = None
    problem: str = ""
    error: BaseException | None = None


def in_fork(function: Callable[[Callable[[], None]], T], *, silence_s: float) -> Ended[T]:
    """``function(beat)`` in a child. It is killed when it does not beat for ``silence_s``.

    The value is pickled. Raises OSError when no child can be made.
    """
    for stream in (sys.stdout, sys.stderr):
        # What is buffered here must not be written once more by the child.
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    ours, theirs = os.pipe()
    parent = os.getpid()
    try:
        pid = fork()
    except OSError:
        os.close(ours)
        os.close(theirs)
        raise
    if pid == 0:
        os.close(ours)
        _be_the_child(function, theirs, parent)
    os.close(theirs)
    try:
        return _result(pid, ours, silence_s)
    finally:
        os.close(ours)


def _be_the_child(function: Callable[[Callable[[], None]], T], pipe: int, parent: int) -> NoReturn:
    status = 70
    try:
        os.setsid()
        processes.die_with_parent(parent)
        processes.become_subreaper()  # what hangs below stays below
        gc.freeze()  # garbage of the parent is not ours to finalize
        try:
            payload = _RESULT + pickle.dumps(function(lambda: _write(pipe, _BEAT)))
        except BaseException as error:
            payload = _ERROR + _pickled(error)
        _write(pipe, payload)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        status = 0
    finally:
        with contextlib.suppress(BaseException):
            processes.kill_descendants(timeout_s=_KILL_WAIT_S)
        os._exit(status)


def _pickled(error: BaseException) -> bytes:
    said = "".join(traceback.format_exception(error))
    try:
        data = pickle.dumps((error, said))
        pickle.loads(data)  # some exceptions can be written and not read
        return data
    except Exception:
        return pickle.dumps((None, said))


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


def _result(pid: int, pipe: int, silence_s: float) -> Ended[T]:
    received = bytearray()
    status: int | None = None
    silent = False
    pidfd = os.pidfd_open(pid)
    try:
        heard_s = time.monotonic()
        poller = select.poll()
        poller.register(pipe, select.POLLIN)
        poller.register(pidfd, select.POLLIN)
        os.set_blocking(pipe, False)
        while status is None and not silent:
            left_s = heard_s + silence_s - time.monotonic()
            events = dict(poller.poll(max(0.0, left_s) * 1000))
            if events.get(pipe) and _drain(pipe, received):
                heard_s = time.monotonic()
            elif events.get(pipe):
                poller.unregister(pipe)
            if pidfd in events:
                _, status = os.waitpid(pid, 0)
            silent = not events
        while _drain(pipe, received):
            pass
    finally:
        if status is None:
            _kill(pid)
        os.close(pidfd)
    if silent:
        return Ended(problem=f"did not end within {silence_s:g} s")
    assert status is not None
    return _decoded(bytes(received), status)


def _drain(pipe: int, received: bytearray) -> bool:
    """Read what is there; whether there was anything. Beats are not kept."""
    try:
        data = os.read(pipe, _READ_BYTES)
    except BlockingIOError:
        return False
    received += data.lstrip(_BEAT) if not received else data
    return bool(data)


def _decoded(data: bytes, status: int) -> Ended[T]:
    if os.WIFSIGNALED(status):
        return Ended(problem=killed_by(os.WTERMSIG(status)))
    try:
        kind, value = data[:1], pickle.loads(data[1:])
    except (EOFError, pickle.UnpicklingError):
        return Ended(problem=f"ended without an answer (exit {os.WEXITSTATUS(status)})")
    if kind == _RESULT:
        return Ended(value=value)
    error, said = value
    return Ended(problem=said, error=error)


def killed_by(number: int) -> str:
    """The words for the end by a signal."""
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(number).name}"
    return f"was killed by signal {number}"


def _kill(pid: int) -> None:
    """Stop the child, so that nothing new begins; kill what is below it, then itself; reap it."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        deadline = time.monotonic() + _KILL_WAIT_S
        while processes.living(processes.descendants(pid)) and time.monotonic() < deadline:
            processes.signal_all(processes.walk(pid), signal.SIGKILL)
            time.sleep(0.001)
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)
