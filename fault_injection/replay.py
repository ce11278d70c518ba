"""Doing again what a trace says, on a real directory: the same calls on the same tree, in order.

:func:`lay_out` makes the starting tree, a :class:`Replay` does operations one by one. Together with
:mod:`fault_injection.volumes` this cuts a real file system at any place of a recorded program
without running the program again, and it lets traces that nobody recorded (random ones, or edited
ones with an fsync added) be tried on real file systems.

Descriptors are opened when an inode is first used and held until :meth:`Replay.close`, so that an
unlinked file can still be written to; the file system never sees the close of the original program.

A rename that replaces a file makes ext4 *start* writing the data of the new one. Whether that ends
before the next commit is a race: of 80 directory fsyncs right after such a rename 20 left the new
name with its full length and zeros in it. ``settles`` waits for the writing that was started, as a
commit by the timer would find it.

Not covered: concurrency (a trace is done in its recorded order), modes, owners and times after
creation, special files.
"""

import ctypes
import os
from collections.abc import Callable
from typing import Self

from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation, Trace

_AT_FDCWD = -100
_AT_SYMLINK_FOLLOW = 0x400
_RENAME_EXCHANGE = 2
_KEEP_SIZE, _PUNCH_HOLE, _COLLAPSE_RANGE, _ZERO_RANGE, _INSERT_RANGE = 0x1, 0x2, 0x8, 0x10, 0x20
_SYNC_FILE_RANGE_WAIT_BEFORE = 1
_ALL = ctypes.c_int64(0)
_CHUNK_BYTES = 1 << 20


class ReplayError(Exception):
    """An operation could not be done again; the text names it."""


def lay_out(trace: Trace, root: str) -> None:
    """Make the starting tree of ``trace`` in the empty directory ``root``; hard links stay so."""
    made: dict[int, bytes] = {}
    todo = [(ROOT_INODE, os.fsencode(root))]
    while todo:
        directory, above = todo.pop()
        for name, inode in sorted(trace.start[directory].entries.items()):
            node, path = trace.start[inode], above + b"/" + name
            if node.type is FileType.DIRECTORY:
                os.mkdir(path)
                todo.append((inode, path))
            elif inode in made:
                os.link(made[inode], path, follow_symlinks=False)
            elif node.type is FileType.SYMLINK:
                os.symlink(node.target, path)
            elif node.type is FileType.FILE:
                with open(path, "wb") as file:
                    _copy_blob(trace, node.blob, node.size, file.fileno(), 0)
                os.chmod(path, node.mode & 0o7777)
            else:
                os.mkfifo(path)
            made.setdefault(inode, path)


def _copy_blob(trace: Trace, key: str, size: int, fd: int, at: int, flags: int = 0) -> None:
    """Bytes in pieces; what is synced as one call is written as one."""
    piece = max(size, 1) if flags else _CHUNK_BYTES
    for offset in range(0, size, piece):
        data = trace.blobs.read(key, offset, min(piece, size - offset))
        done = os.pwritev(fd, [data], at + offset, flags)
        if done != len(data):
            raise ReplayError(f"{done} of {len(data)} bytes were written")


class Replay:
    """A trace under way on ``root``, which holds its starting tree."""

    def __init__(self, trace: Trace, root: str, *, settles: bool = False) -> None:
        self._trace = trace
        self._settles = settles
        self._done = 0
        self._fds = {ROOT_INODE: os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)}
        self._slots: dict[int, tuple[int, bytes]] = {}  # a name of each inode that has one
        for node in trace.start.values():
            for name, inode in sorted(node.entries.items()):
                self._slots[inode] = (node.inode, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close every descriptor; the tree can then be unmounted."""
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()

    def run(self, until: int) -> None:
        """Do the operations up to, and without, index ``until``. Raises ReplayError."""
        while self._done < until:
            operation = self._trace.operations[self._done]
            try:
                action = _ACTIONS.get(operation.kind)
                if action is not None:
                    action(self, operation)
            except OSError as error:
                what = f"operation {operation.index}, {operation.place or operation.kind}"
                raise ReplayError(f"{what}: {error}") from error
            self._done += 1

    def _fd(self, inode: int) -> int:
        """An open descriptor of the inode, found by the name that it has now."""
        if inode not in self._fds:
            parent, name = self._slots[inode]
            above = self._fd(parent)
            try:
                fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            except IsADirectoryError:
                fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=above)
            self._fds[inode] = fd
        return self._fds[inode]

    def _create(self, op: Operation) -> None:
        mode = (op.mode or 0o644) & 0o7777
        if op.name:
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._fds[op.inode] = os.open(op.name, flags, mode, dir_fd=self._fd(op.parent))
            self._slots[op.inode] = (op.parent, op.name)
        else:
            root = f"/proc/self/fd/{self._fds[ROOT_INODE]}"
            self._fds[op.inode] = os.open(root, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, mode)

    def _mkdir(self, op: Operation) -> None:
        os.mkdir(op.name, (op.mode or 0o755) & 0o7777, dir_fd=self._fd(op.parent))
        self._slots[op.inode] = (op.parent, op.name)

    def _symlink(self, op: Operation) -> None:
        os.symlink(op.target, op.name, dir_fd=self._fd(op.parent))
        self._slots[op.inode] = (op.parent, op.name)

    def _link(self, op: Operation) -> None:
        source = os.fsencode(f"/proc/self/fd/{self._fd(op.inode)}")
        _call("linkat", _AT_FDCWD, source, self._fd(op.parent), op.name, _AT_SYMLINK_FOLLOW)
        self._slots.setdefault(op.inode, (op.parent, op.name))

    def _rename(self, op: Operation) -> None:
        self._open_before_it_goes(op.replaced)
        source, target = self._fd(op.parent), self._fd(op.new_parent)
        os.rename(op.name, op.new_name, src_dir_fd=source, dst_dir_fd=target)
        self._slots[op.inode] = (op.new_parent, op.new_name)
        if self._settles and op.replaced >= 0:
            _call("sync_file_range", self._fd(op.inode), _ALL, _ALL, _SYNC_FILE_RANGE_WAIT_BEFORE)

    def _exchange(self, op: Operation) -> None:
        source, target = self._fd(op.parent), self._fd(op.new_parent)
        _call("renameat2", source, op.name, target, op.new_name, _RENAME_EXCHANGE)
        self._slots[op.inode] = (op.new_parent, op.new_name)
        self._slots[op.replaced] = (op.parent, op.name)

    def _unlink(self, op: Operation) -> None:
        self._open_before_it_goes(op.inode)
        os.unlink(op.name, dir_fd=self._fd(op.parent))

    def _rmdir(self, op: Operation) -> None:
        os.rmdir(op.name, dir_fd=self._fd(op.parent))

    def _open_before_it_goes(self, inode: int) -> None:
        """Hold a file that loses a name, when a later operation still works on it.

        Other holders would keep its blocks alive, which a program without the file open does not.
        """
        later = self._trace.operations[self._done + 1 :]
        if inode >= 0 and any(other.inode == inode for other in later):
            self._fd(inode)

    def _write(self, op: Operation) -> None:
        flags = {"": 0, "data": os.RWF_DSYNC, "all": os.RWF_SYNC}[op.synced]
        _copy_blob(self._trace, op.blob, op.size, self._fd(op.inode), op.offset, flags)

    def _truncate(self, op: Operation) -> None:
        os.ftruncate(self._fd(op.inode), op.size)

    def _fallocate(self, op: Operation) -> None:
        mode = _KEEP_SIZE if op.keep_size else 0
        if op.kind is Kind.PUNCH:
            mode |= _PUNCH_HOLE if op.keep_size else _ZERO_RANGE
        elif op.kind is Kind.COLLAPSE:
            mode = _COLLAPSE_RANGE
        elif op.kind is Kind.INSERT:
            mode = _INSERT_RANGE
        offset, size = ctypes.c_int64(op.offset), ctypes.c_int64(op.size)
        _call("fallocate", self._fd(op.inode), mode, offset, size)

    def _fsync(self, op: Operation) -> None:
        os.fsync(self._fd(op.inode))

    def _fdatasync(self, op: Operation) -> None:
        os.fdatasync(self._fd(op.inode))

    def _sync(self, _op: Operation) -> None:
        # Of this file system only: the trace's sync is of no concern to the rest of the machine.
        _call("syncfs", self._fds[ROOT_INODE])


_ACTIONS: dict[Kind, Callable[[Replay, Operation], None]] = {
    Kind.CREATE: Replay._create,
    Kind.MKDIR: Replay._mkdir,
    Kind.SYMLINK: Replay._symlink,
    Kind.LINK: Replay._link,
    Kind.RENAME: Replay._rename,
    Kind.EXCHANGE: Replay._exchange,
    Kind.UNLINK: Replay._unlink,
    Kind.RMDIR: Replay._rmdir,
    Kind.WRITE: Replay._write,
    Kind.TRUNCATE: Replay._truncate,
    Kind.ALLOCATE: Replay._fallocate,
    Kind.PUNCH: Replay._fallocate,
    Kind.COLLAPSE: Replay._fallocate,
    Kind.INSERT: Replay._fallocate,
    Kind.FSYNC: Replay._fsync,
    Kind.FDATASYNC: Replay._fdatasync,
    Kind.SYNC: Replay._sync,
}


def _call(name: str, *arguments: object) -> None:
    """A libc function that Python has not; OSError when it fails."""
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
