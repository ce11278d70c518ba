"""A small process that outlives the harness by a moment, to leave nothing of it behind.

Between the harness and its workers stands the guardian: parent of the workers, subreaper of all
that they start, owner of the run's temporary directories. It watches the harness (by pidfd, and by
a socket that closes with it). When the harness leaves the ``with`` block or is gone, killed by
SIGKILL included, the guardian kills every descendant by parentage until none is left, removes the
directories and ends. When a worker dies it kills what that worker left.

Workers are executed anew, not forked, so that they inherit nothing of the harness's threads; they
themselves fork attempts. Each has a :class:`multiprocessing.connection.Connection` to the harness,
on which ``recv`` raises EOFError when the other side is gone.

Not covered: the guardian itself killed by SIGKILL. Its workers die with it, and orphans come back
to the harness, which kills them when it leaves the block; the directories are then removed by the
harness. Both killed at once leave what is in the directories, and daemons.
"""

import contextlib
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from fault_injection import leftovers, processes

_BOOT = (
    "import json, sys; told = json.loads(sys.argv[1]); sys.path[:] = told['path'];"
    " from importlib import import_module; import_module(told['main']).main(told)"
)
_LENGTH = struct.Struct("=I")
_MESSAGE_LIMIT_BYTES = 16 << 20
_ANSWER_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker process, and the harness's end of the connection to it."""

    pid: int
    connection: "Connection[Any, Any]"


@dataclass(slots=True)
class Guard:
    """The harness's handle. ``temp_dir`` exists until the guardian removes it.

    So does ``other_dir``, which is empty when none was asked for.
    """

    temp_dir: str
    other_dir: str
    pid: int
    _socket: socket.socket
    _workers: list[Worker] = field(default_factory=list)

    def start_workers(
        self,
        target: str,
        count: int,
        *,
        env: Mapping[str, str] | None = None,
        preload: Sequence[str] = (),
    ) -> list[Worker]:
        """Start ``count`` processes that run ``target(connection)``, and end when it returns.

        ``target`` is ``module:function``. ``env`` (default: this process's) should be that of the
        program under test, since a fork can only pass for a process of the same environment.
        ``preload`` are modules to import first; one that fails to import ends the worker, with the
        traceback on stderr and EOFError here. ``count`` is at least 1.
        """
        if count < 1 or ":" not in target:
            raise ValueError(f"cannot start {count} workers of {target!r} (module:function)")
        started = []
        for _ in range(count):
            ours, theirs = socket.socketpair()
            with theirs:
                told = {
                    "path": sys.path,
                    "main": "fault_injection.worker",
                    "target": target,
                    "preload": list(preload),
                    "env": dict(os.environ if env is None else env),
                }
                _send(self._socket, told, [theirs.fileno()])
                answer, _ = _receive(self._socket)
            if "pid" not in answer:
                ours.close()
                raise OSError(f"a worker could not be started: {answer.get('error')}")
            started.append(Worker(answer["pid"], Connection(ours.detach())))
        self._workers += started
        return started

    def close(self) -> None:
        """Have everything killed and removed; returns when that is done."""
        for worker in self._workers:
            with contextlib.suppress(OSError):
                worker.connection.close()
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


@contextlib.contextmanager
def guarded(*, temp_parent: str | None = None, other_parent: str | None = None) -> Iterator[Guard]:
    """Start a guardian; on leaving, whatever happened, everything below it is gone.

    ``temp_parent`` is where the temporary directory is made (default: the system's);
    ``other_parent`` where another one is, on another file system perhaps (default: none).
    """
    ours, theirs = socket.socketpair()
    told = {
        "path": sys.path,
        "main": "fault_injection.guardian",
        "socket": theirs.fileno(),
        "parent": os.getpid(),
        "temp_parent": os.path.realpath(temp_parent or tempfile.gettempdir()),
        "other_parent": os.path.realpath(other_parent) if other_parent else "",
    }
    adopts = processes.is_subreaper()
    processes.become_subreaper()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        )
    guard: Guard | None = None
    try:
        ours.settimeout(_ANSWER_TIMEOUT_S)
        answer, _ = _receive(ours)
        guard = Guard(answer["temp_dir"], answer["other_dir"], pid=process.pid, _socket=ours)
        yield guard
    finally:
        if guard is not None:
            guard.close()
        ours.close()
        _see_it_end(process, guard)
        if not adopts:
            processes.become_subreaper(False)


def _see_it_end(process: "subprocess.Popen[bytes]", guard: Guard | None) -> None:
    """Wait for the guardian; do its work when it has died of something."""
    try:
        if process.wait(timeout=2 * _KILL_TIMEOUT_S) == 0:
            return
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    # Its workers die with it; what they had started comes to us, in sessions of its own.
    deadline = time.monotonic() + _KILL_TIMEOUT_S
    while time.monotonic() < deadline:
        orphans = [pid for pid in processes.children(os.getpid()) if _is_of_another_session(pid)]
        if not orphans:
            break
        for orphan in orphans:
            below = [orphan, *processes.descendants(orphan)]
            processes.signal_all(below, signal.SIGKILL)
        processes.reap(orphans)
        time.sleep(0.001)
    if guard is not None:
        for directory in filter(None, (guard.temp_dir, guard.other_dir)):
            remove_tree(directory)


def _is_of_another_session(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) != os.getsid(0)
    return False


# Messages: a length, JSON, and descriptors.


def _send(sock: socket.socket, message: object, fds: Sequence[int] = ()) -> None:
    body = json.dumps(message).encode()
    socket.send_fds(sock, [_LENGTH.pack(len(body))], list(fds))
    sock.sendall(body)


def _receive(sock: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message; EOFError when the other side is gone."""
    head, fds, _, _ = socket.recv_fds(sock, _LENGTH.size, 4, socket.MSG_CMSG_CLOEXEC)
    head += _read_exactly(sock, _LENGTH.size - len(head)) if head else b""
    if len(head) < _LENGTH.size:
        raise EOFError("the other side of the guardian's socket is gone")
    (size,) = _LENGTH.unpack(head)
    if size > _MESSAGE_LIMIT_BYTES:
        raise ValueError(f"a message of {size} bytes")
    message = json.loads(_read_exactly(sock, size))
    assert isinstance(message, dict)
    return message, list(fds)


def _read_exactly(sock: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = sock.recv(size - len(data))
        if not part:
            raise EOFError("the other side of the guardian's socket is gone")
        data += part
    return data


# The guardian's own side.


class _Stop(BaseException):
    """A signal asks the guardian to end everything now."""


def _stop(_number: int, _frame: object) -> NoReturn:
    raise _Stop


def main(told: dict[str, Any]) -> None:
    """Be the guardian until the harness is gone; then end everything below."""
    processes.become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _stop)
    sock = socket.socket(fileno=told["socket"])
    parent_fd = _watch_parent(told["parent"])
    made = []
    try:
        for parent in (told["temp_parent"], told["other_parent"]):
            made.append(tempfile.mkdtemp(prefix="durability-", dir=parent) if parent else "")
            if parent:
                leftovers.mark(made[-1])
        _send(sock, {"temp_dir": made[0], "other_dir": made[1]})
        _guard(sock, parent_fd)
    except (_Stop, OSError, EOFError):
        pass
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        gone = processes.kill_descendants(timeout_s=_KILL_TIMEOUT_S)
        for directory in filter(None, made):
            remove_tree(directory)
    os._exit(0 if gone else 1)


def _watch_parent(parent: int) -> int:
    """A pidfd of the harness, or -1 where there is none; ends at once when it is gone already."""
    fd = os.pidfd_open(parent) if hasattr(os, "pidfd_open") else -1
    if os.getppid() != parent:
        os._exit(0)
    return fd


def _guard(sock: socket.socket, parent_fd: int) -> None:
    """Serve requests until the harness is gone."""
    poller = select.poll()
    poller.register(sock, select.POLLIN)
    if parent_fd >= 0:
        poller.register(parent_fd, select.POLLIN)
    workers: dict[int, subprocess.Popen[bytes]] = {}
    while True:
        for fd, _ in poller.poll(1000):
            if fd == parent_fd:
                return
            if fd == sock.fileno():
                _serve(sock, poller, workers)
        for fd in [fd for fd, worker in workers.items() if worker.poll() is not None]:
            if fd >= 0:
                poller.unregister(fd)
                os.close(fd)
            del workers[fd]
            # What hung below the dead worker hangs below us now.
            spare = frozenset(worker.pid for worker in workers.values())
            processes.kill_descendants(spare=spare, timeout_s=_KILL_TIMEOUT_S)
        if os.getppid() == 1 and parent_fd < 0:
            return


def _serve(
    sock: socket.socket, poller: "select.poll", workers: dict[int, "subprocess.Popen[bytes]"]
) -> None:
    told, fds = _receive(sock)
    env = told.pop("env")
    try:
        worker = subprocess.Popen(
            [
                sys.executable,
                "-c",
                _BOOT,
                json.dumps({**told, "fd": fds[0], "parent": os.getpid()}),
            ],
            stdin=subprocess.DEVNULL,
            stdout=2,
            env=env,
            pass_fds=fds,
        )
    except OSError as error:
        _send(sock, {"error": str(error)})
        return
    finally:
        for fd in fds:
            os.close(fd)
    pidfd = os.pidfd_open(worker.pid) if hasattr(os, "pidfd_open") else -worker.pid
    if pidfd >= 0:
        poller.register(pidfd, select.POLLIN)
    workers[pidfd] = worker
    _send(sock, {"pid": worker.pid})


def remove_tree(path: str) -> None:
    """Remove a directory with all in it, whatever its modes; other file systems are left alone.

    What cannot be removed stays: there is nobody left to tell.
    """
    device = _device(path)
    if device is None:
        return
    _open_up(path)
    found = [path]
    for directory, names, files in os.walk(path):
        inside = [os.path.join(directory, name) for name in names]
        links = [name for name in inside if os.path.islink(name)]
        # os.walk goes down into what stays in ``names``, after this.
        names[:] = [n for n in names if _is_ours(os.path.join(directory, n), device)]
        below = [os.path.join(directory, name) for name in names]
        found += below
        for name in below:
            _open_up(name)
        for name in [*links, *(os.path.join(directory, name) for name in files)]:
            with contextlib.suppress(OSError):
                os.unlink(name)
    for directory in reversed(found):
        with contextlib.suppress(OSError):
            os.rmdir(directory)


def _is_ours(path: str, device: int) -> bool:
    return not os.path.islink(path) and _device(path) == device


def _open_up(directory: str) -> None:
    """A plain user needs all three rights on a directory to empty it."""
    with contextlib.suppress(OSError):
        os.chmod(directory, stat.S_IRWXU)


def _device(path: str) -> int | None:
    with contextlib.suppress(OSError):
        return os.lstat(path).st_dev
    return None
