"""Runs a small program under the recorder, and rebuilds from its trace what it left behind.

The supervisor here is as plain as can be: every call is let run, or answered by the test.
"""

import contextlib
import os
import pickle
import select
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_injection import seccomp
from fault_injection.recorder import Call, Outcome, Recorder
from fault_injection.seccomp import Notification
from fault_injection.spool import Spool
from fault_injection.trace import FileType, Kind, Operation, Trace

# What the child runs: it installs the filter with the supervisor's own set and becomes the program.
_STARTER = """
import os, pickle, socket, sys
from fault_injection import seccomp
sock = socket.socket(fileno=int(sys.argv[1]))
size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "little")
notify, kind, text, args = pickle.loads(sock.recv(size, socket.MSG_WAITALL))
if kind == "code":
    program = compile(text, "program.py", "exec")
listener = seccomp.install_filter(notify)
seccomp.send_fd(sock, listener)
os.close(listener)
sock.close()
if kind == "code":
    sys.argv = ["program.py", *args]
    exec(program, {"__name__": "__main__"})
else:
    os.execv(text, [text, *args])
"""

Answer = Callable[[Notification, Call, int], Outcome | None]


@dataclass(slots=True)
class Recorded:
    """One finished run."""

    recorder: Recorder
    calls: list[Call]
    exit_code: int
    stdout: bytes
    stderr: bytes
    seconds: float

    @property
    def places(self) -> list[str]:
        return [call.place for call in self.calls if call.place]

    @property
    def trace(self) -> Trace:
        return self.recorder.trace()

    def kinds(self) -> list[str]:
        return [str(op.kind) for op in self.trace.operations]

    def ops(self, *kinds: Kind) -> list[Operation]:
        return [op for op in self.trace.operations if op.kind in kinds]


def require_supervision() -> None:
    """Skip, with the reason, where the kernel or a sandbox does not let a child be supervised."""
    reason = seccomp.unavailable()
    if reason is not None:
        import pytest  # not at the top: plain users run this module without the test environment

        pytest.skip(reason)


def supervise(
    recorder: Recorder,
    *,
    code: str = "",
    program: str = "",
    args: tuple[str, ...] = (),
    cwd: Path | None = None,
    answer: Answer | None = None,
) -> Recorded:
    """Run Python ``code`` or an executable ``program`` to its end, and finish the recorder."""
    job = pickle.dumps((recorder.notify, "code" if code else "exec", code or program, (*args,)))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", _STARTER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=cwd,
        )
        theirs.close()
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            recorder.watch_output(child.stdout.fileno(), "stdout")
            recorder.watch_output(child.stderr.fileno(), "stderr")
            ours.sendall(len(job).to_bytes(4, "little") + job)
            try:
                listener = seccomp.receive_fd(ours)
            except EOFError:
                raise AssertionError(child.communicate(timeout=30)[1].decode()) from None
            started = time.monotonic()
            try:
                calls, out = _serve(recorder, child, listener, answer)
            finally:
                os.close(listener)
            seconds = time.monotonic() - started
            recorder.finish()
            return Recorded(recorder, calls, child.wait(), out[0], out[1], seconds)
        finally:
            child.kill()
            child.wait()
            child.stdout.close()
            child.stderr.close()


def _serve(
    recorder: Recorder,
    child: "subprocess.Popen[bytes]",
    listener: int,
    answer: Answer | None,
) -> tuple[list[Call], tuple[bytes, bytes]]:
    """Answer calls until the program and all its children have let go of the listener."""
    calls: list[Call] = []
    pipes = {pipe.fileno(): bytearray() for pipe in (child.stdout, child.stderr) if pipe}
    order = list(pipes)
    poll = select.poll()
    poll.register(listener, select.POLLIN)
    for fd in pipes:
        poll.register(fd, select.POLLIN)
    open_fds = {listener, *pipes}
    deadline = time.monotonic() + 60
    while open_fds:
        assert time.monotonic() < deadline, "the program did not end"
        for fd, events in poll.poll(1000):
            if fd != listener:
                data = os.read(fd, 1 << 16)
                pipes[fd] += data
                if not data:
                    poll.unregister(fd)
                    open_fds.discard(fd)
            elif events & select.POLLIN:
                note = seccomp.receive(listener)
                if note is not None:
                    calls.append(_one(recorder, note, listener, answer))
            else:
                poll.unregister(listener)
                open_fds.discard(listener)
    return calls, (bytes(pipes[order[0]]), bytes(pipes[order[1]]))


def _one(recorder: Recorder, note: Notification, listener: int, answer: Answer | None) -> Call:
    call = recorder.on_call(note)
    outcome = answer(note, call, listener) if answer is not None else None
    if outcome is None:
        seccomp.respond_continue(listener, note.id)
        outcome = "continued"
    recorder.answered(call, outcome)
    return call


def record(
    tmp_path: Path,
    code: str = "",
    *,
    program: str = "",
    args: tuple[str, ...] = (),
    watch: tuple[str, ...] = (),
    answer: Answer | None = None,
    check: bool = True,
    stable_names: frozenset[bytes] | None = None,
) -> Recorded:
    """Record a program in ``tmp_path/root`` (its working directory; argument 1 is its path).

    With ``check`` it must succeed, be traceable, and leave just what its trace says.
    """
    require_supervision()
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    spool = tmp_path / "spool"
    shutil.rmtree(spool, ignore_errors=True)
    recorder = Recorder(root, spool=Spool(str(spool)), watch=watch, stable_names=stable_names)
    run = supervise(
        recorder,
        code=code,
        program=program,
        args=(str(root), *args),
        cwd=root,
        answer=answer,
    )
    if check:
        assert run.exit_code == 0, run.stderr.decode()
        assert recorder.untraceable == ""
        assert rebuilt(run.trace) == real_tree(root)
    return run


def light(tmp_path: Path, code: str, *, watch: tuple[str, ...] = ()) -> Recorded:
    """Run a program under the light recorder in ``tmp_path/root``, which is emptied first."""
    require_supervision()
    root = tmp_path / "root"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir()
    run = supervise(Recorder(root, watch=watch), code=code, args=(str(root),), cwd=root)
    assert run.exit_code == 0, run.stderr.decode()
    return run


# What is in a tree, and what a trace says is in it.

Content = dict[str, bytes | str]


def real_tree(root: Path) -> Content:
    """Every path: the bytes of files, ``-> target`` of links, a word for all else."""
    found: Content = {}
    for path in sorted(root.rglob("*")):
        name = os.fsencode(path.relative_to(root)).decode("latin-1")
        if path.is_symlink():
            found[name] = "-> " + os.fsencode(os.readlink(path)).decode("latin-1")
        elif path.is_dir():
            found[name] = "directory"
        elif path.is_file():
            found[name] = path.read_bytes()
        else:
            found[name] = "other"
    return found


def rebuilt(trace: Trace) -> Content:
    """The tree that the trace's operations make of its starting tree, done one by one."""
    types = {inode: node.type for inode, node in trace.start.items()}
    entries = {inode: dict(node.entries) for inode, node in trace.start.items()}
    data = {i: bytearray(trace.blobs.read(n.blob)) for i, n in trace.start.items()}
    targets = {inode: node.target for inode, node in trace.start.items()}
    for op in trace.operations:
        _apply(trace, op, types, entries, data, targets)
    found: Content = {}
    queue = [("", 0)]
    while queue:
        path, inode = queue.pop()
        for name, child in entries[inode].items():
            below = (path + "/" if path else "") + name.decode("latin-1")
            kind = types[child]
            if kind is FileType.DIRECTORY:
                found[below] = "directory"
                queue.append((below, child))
            elif kind is FileType.SYMLINK:
                found[below] = "-> " + targets[child].decode("latin-1")
            else:
                found[below] = bytes(data[child]) if kind is FileType.FILE else "other"
    return found


def _apply(
    trace: Trace,
    op: Operation,
    types: dict[int, FileType],
    entries: dict[int, dict[bytes, int]],
    data: dict[int, bytearray],
    targets: dict[int, bytes],
) -> None:
    made = {
        Kind.CREATE: FileType.OTHER if op.mode & 0o170000 else FileType.FILE,
        Kind.MKDIR: FileType.DIRECTORY,
        Kind.SYMLINK: FileType.SYMLINK,
    }
    if op.kind in made:
        assert op.inode not in types
        types[op.inode] = made[op.kind]
        entries[op.inode], data[op.inode], targets[op.inode] = {}, bytearray(), op.target
    if op.kind in (*made, Kind.LINK):
        if op.name:
            assert op.name not in entries[op.parent]
            entries[op.parent][op.name] = op.inode
    elif op.kind in (Kind.UNLINK, Kind.RMDIR):
        assert entries[op.parent].pop(op.name) == op.inode
    elif op.kind is Kind.RENAME:
        assert entries[op.parent].pop(op.name) == op.inode
        assert entries[op.new_parent].get(op.new_name, -1) == op.replaced
        entries[op.new_parent][op.new_name] = op.inode
    elif op.kind is Kind.EXCHANGE:
        assert entries[op.parent][op.name] == op.inode
        assert entries[op.new_parent][op.new_name] == op.replaced
        entries[op.parent][op.name] = op.replaced
        entries[op.new_parent][op.new_name] = op.inode
    else:
        _apply_content(trace, op, data)


def _apply_content(trace: Trace, op: Operation, data: dict[int, bytearray]) -> None:
    end = op.offset + op.size
    if op.kind is Kind.OUTPUT or op.inode not in data:
        return
    file = data[op.inode]
    if op.kind is Kind.WRITE:
        blob = trace.blobs.read(op.blob)
        assert len(blob) == op.size
        file.extend(bytes(max(0, op.offset - len(file))))
        file[op.offset : end] = blob
    elif op.kind is Kind.TRUNCATE:
        del file[op.size :]
        file.extend(bytes(op.size - len(file)))
    elif op.kind is Kind.ALLOCATE and not op.keep_size:
        file.extend(bytes(max(0, end - len(file))))
    elif op.kind is Kind.PUNCH:
        if not op.keep_size:
            file.extend(bytes(max(0, end - len(file))))
        stop = min(end, len(file))
        file[op.offset : stop] = bytes(max(0, stop - op.offset))
    elif op.kind is Kind.COLLAPSE:
        del file[op.offset : end]
    elif op.kind is Kind.INSERT:
        file[op.offset : op.offset] = bytes(op.size)


def killed_at(place: str) -> Answer:
    """Kill the calling process before the call at ``place`` runs."""

    def answer(note: Notification, call: Call, _listener: int) -> Outcome | None:
        if call.place != place:
            return None
        with contextlib.suppress(ProcessLookupError):
            os.kill(seccomp.thread_group(note.tid), 9)
        return "failed"

    return answer


def spell(op: Operation) -> str:
    """An operation in a few words, for exact comparisons: inodes as numbers, names as text."""
    name, new_name = op.name.decode("latin-1"), op.new_name.decode("latin-1")
    match op.kind:
        case Kind.CREATE | Kind.MKDIR | Kind.LINK | Kind.UNLINK | Kind.RMDIR:
            return f"{op.kind} {op.inode} at {op.parent}/{name}"
        case Kind.SYMLINK:
            return f"symlink {op.inode} at {op.parent}/{name} to {op.target.decode('latin-1')}"
        case Kind.RENAME | Kind.EXCHANGE:
            word = "with" if op.kind is Kind.EXCHANGE else "over"
            other = f" {word} {op.replaced}" if op.replaced >= 0 else ""
            where = f"{op.parent}/{name} to {op.new_parent}/{new_name}"
            return f"{op.kind} {op.inode} from {where}{other}"
        case Kind.WRITE:
            synced = f" synced {op.synced}" if op.synced else ""
            return f"write {op.inode} {op.offset}+{op.size}{synced}"
        case Kind.TRUNCATE:
            return f"truncate {op.inode} to {op.size}"
        case Kind.ALLOCATE | Kind.PUNCH | Kind.COLLAPSE | Kind.INSERT:
            return f"{op.kind} {op.inode} {op.offset}+{op.size}{' keep' if op.keep_size else ''}"
        case Kind.OUTPUT:
            return f"output {op.stream} {op.size}"
        case Kind.SYNC:
            return "sync"
        case _:
            return f"{op.kind} {op.inode}"


def spelled(run: Recorded) -> list[str]:
    """All operations of a run in words."""
    return [spell(op) for op in run.trace.operations]


# For programs under test: system calls that Python has no function for.
SYSCALL = """
import ctypes, os
from fault_injection.syscalls import NUMBERS
_libc = ctypes.CDLL(None, use_errno=True)
def call(name, *args):
    args = [ctypes.c_long(a) if isinstance(a, int) else a for a in args]
    result = _libc.syscall(ctypes.c_long(NUMBERS[name]), *args)
    return result if result >= 0 else -ctypes.get_errno()
"""
