"""The few things the checkpoint protocol asks of a disk, each failing by name.

Everything is done relative to an open directory, so that a path is walked once and nothing can be
swapped in between. Every ``OSError`` becomes a :class:`StorageFailed` that names the file and what
was being done. An fsync that fails is final: the kernel may have dropped the dirty pages, and a
second fsync would then report success over lost data.

Not covered: file systems that lie about fsync.
"""

import errno
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import cast

from tinyllm.errors import StorageFailed, storage_failed

Bytes = bytes | memoryview

# How file systems say that a directory cannot be synced (CIFS, sshfs, shared folders of VMs).
_NO_DIRECTORY_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.EBADF, errno.ENOSYS})
_IOV_MAX = 1024
_SYNC_FILE_RANGE_WRITE = 2


@dataclass(frozen=True, slots=True)
class Directory:
    """An open directory: its descriptor, and its path for messages."""

    fd: int
    path: str

    def at(self, name: str) -> str:
        """The path of ``name`` in it, for messages."""
        return os.path.join(self.path, name)


@contextmanager
def doing(action: str, path: str) -> Iterator[None]:
    """Turn an OSError of the body into ``<path>: cannot <action>: ...``."""
    try:
        yield
    except OSError as error:
        raise storage_failed(path, action, error) from error


@contextmanager
def open_directory(path: str, *, parent: Directory | None = None) -> Iterator[Directory]:
    """Open ``path`` (a name in ``parent`` where one is given); a symbolic link is not followed."""
    full = path if parent is None else parent.at(path)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    if parent is not None:
        flags |= os.O_NOFOLLOW
    with doing("open the directory", full):
        fd = os.open(path, flags, dir_fd=None if parent is None else parent.fd)
    try:
        yield Directory(fd, full)
    finally:
        os.close(fd)


def make_directory(parent: Directory, name: str) -> None:
    """mkdir; it must not exist."""
    with doing("make the directory", parent.at(name)):
        os.mkdir(name, dir_fd=parent.fd)


def sync_directory(directory: Directory, *, unsupported: Callable[[str, str], None]) -> None:
    """fsync a directory.

    Where the file system has no such thing, ``unsupported(path, reason)`` is called and the work
    goes on, with less of a promise. Any other error is a failed save.
    """
    try:
        os.fsync(directory.fd)
    except OSError as error:
        if error.errno not in _NO_DIRECTORY_SYNC:
            raise storage_failed(directory.path, "fsync the directory", error) from error
        unsupported(
            directory.path,
            "this file system cannot fsync a directory: durability is not guaranteed here",
        )


def rename(directory: Directory, old: str, new: str) -> None:
    """Rename within one directory; an existing file under ``new`` is replaced."""
    with doing(f"rename it to {new}", directory.at(old)):
        os.rename(old, new, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)


@contextmanager
def created_file(directory: Directory, name: str) -> Iterator[int]:
    """A new, empty file to write to; the close is checked, as it may report a failed write."""
    path = directory.at(name)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with doing("create", path):
        fd = os.open(name, flags, 0o666, dir_fd=directory.fd)
    try:
        yield fd
    except BaseException:
        _close_quietly(fd)
        raise
    with doing("close", path):
        os.close(fd)


def _close_quietly(fd: int) -> None:
    with suppress(OSError):  # the first error is the one to report
        os.close(fd)


def write_all(fd: int, pieces: Sequence[Bytes], *, path: str) -> None:
    """Write every byte of ``pieces`` in as few calls as possible; a short write is continued."""
    pending = deque(memoryview(piece) for piece in pieces if len(piece))
    with doing("write", path):
        while pending:
            if len(pending) == 1:
                written = os.write(fd, pending[0])
            else:
                batch = [pending[i] for i in range(min(len(pending), _IOV_MAX))]
                written = os.writev(fd, batch)
            if written == 0:
                raise OSError(errno.EIO, "nothing was written")
            while pending and written >= len(pending[0]):
                written -= len(pending.popleft())
            if written:
                pending[0] = pending[0][written:]


def sync_file(fd: int, *, path: str) -> None:
    """fsync a file; never tried twice."""
    with doing("fsync", path):
        os.fsync(fd)


def start_writeback(fd: int, *, offset_bytes: int, size_bytes: int) -> None:
    """Ask the kernel to begin writing a range to the disk, without waiting.

    A hint only: the disk then works while the next bytes are prepared. Whether anything arrived is
    for the fsync to say, so an error here is none.
    """
    call = _sync_file_range()
    if call is not None:
        call(fd, offset_bytes, size_bytes, _SYNC_FILE_RANGE_WRITE)


@cache
def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    import ctypes

    call = getattr(ctypes.CDLL(None), "sync_file_range", None)
    if call is None:
        return None
    call.argtypes = (ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint)
    return cast("Callable[[int, int, int, int], int]", call)


def make_durable_directories(path: str, *, unsupported: Callable[[str, str], None]) -> None:
    """Make ``path`` and what is missing above it, and make all their names durable.

    Five levels are synced (``ckpt``, the run, ``runs``, the artifacts directory and the one that
    holds its name) even when they existed: an earlier attempt may have been killed between a mkdir
    or rename and its fsync, and what it left in the page cache is about to be relied upon.
    """
    path = os.path.abspath(path)
    missing = []
    level = path
    while not os.path.isdir(level) and os.path.dirname(level) != level:
        missing.append(level)
        level = os.path.dirname(level)
    for made in reversed(missing):
        with doing("make the directory", made):
            try:
                os.mkdir(made)
            except FileExistsError:
                if not os.path.isdir(made):  # else another process was quicker
                    raise
    level = path
    for depth in range(max(len(missing) + 1, 5)):
        try:
            with open_directory(level) as directory:
                sync_directory(directory, unsupported=unsupported)
        except StorageFailed as error:
            # A directory that we did not make and may not read is its owner's to keep durable.
            if depth <= len(missing) or error.errno not in (errno.EACCES, errno.EPERM):
                raise
        if os.path.dirname(level) == level:
            break
        level = os.path.dirname(level)
