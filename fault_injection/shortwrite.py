"""Half a write: done by the supervisor on the program's own open file, and answered as short.

The descriptor is duplicated with pidfd_getfd(2), so that the offset, O_APPEND and the flags of the
open file hold as if the program had written by itself. Each form of write is made in its own form.
Only regular files are written to: half a write to a pipe could wait for its reader, which is us.
"""

import contextlib
import errno
import fcntl
import os
import stat
import struct
import termios
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fault_injection import seccomp, syscalls
from fault_injection.seccomp import Notification

_CHUNK_BYTES = 1 << 20
_IOVEC = struct.Struct("=QQ")
_IOV_LIMIT = 1024  # the kernel's own
_OFFSET = struct.Struct("=q")


@dataclass(frozen=True, slots=True)
class Short:
    """The answer to give: ``wrote`` bytes, or ``errno`` when the half itself failed."""

    wrote: int
    errno: int = 0


def write_half(note: Notification) -> Short | None:
    """Do half of the write that waits in ``note``; None when it has no half.

    That is: it is no write, writes fewer than two bytes, or not to a regular file.
    """
    name = syscalls.NAMES.get(note.nr, "") if not note.foreign else ""
    try:
        if name in ("write", "pwrite64", "writev", "pwritev", "pwritev2"):
            return _half_of_memory(note, name)
        if name in ("sendfile", "copy_file_range", "splice"):
            return _half_of_file(note, name)
    except OSError as error:
        return Short(0, error.errno or errno.EIO)
    return None


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> (bits - 1) else value


@contextlib.contextmanager
def _copy_of(note: Notification, argument: int) -> Iterator[int]:
    fd = seccomp.duplicate_fd(note.tid, _signed(note.args[argument], 32))
    try:
        yield fd
    finally:
        os.close(fd)


def _is_file(fd: int) -> bool:
    return stat.S_ISREG(os.fstat(fd).st_mode)


def _half_of_memory(note: Notification, name: str) -> Short | None:
    with _copy_of(note, 0) as fd:
        pieces = _pieces(note, name)
        half = sum(size for _, size in pieces) // 2
        if half == 0 or not _is_file(fd):
            return None
        offset = _signed(note.args[3], 64) if name.startswith("pwrite") else None
        flags = _signed(note.args[5], 32) if name == "pwritev2" else 0
        if offset == -1 and name == "pwritev2" and flags == 0:
            offset = None  # the file's own position
        done = 0
        for address, size in _cut(pieces, half):
            data = seccomp.read_memory(note.tid, address, size)
            if offset is None:
                wrote = os.write(fd, data)
            else:
                at = offset + done if offset >= 0 else offset
                wrote = os.pwritev(fd, [data], at, flags)
            done += wrote
            if wrote < size:
                break
        return Short(done)


def _pieces(note: Notification, name: str) -> list[tuple[int, int]]:
    """Address and size of each piece of memory that the call writes."""
    if name in ("write", "pwrite64"):
        return [(note.args[1], note.args[2])]
    count = min(_signed(note.args[2], 32), _IOV_LIMIT)
    raw = seccomp.read_memory(note.tid, note.args[1], count * _IOVEC.size)
    return list(_IOVEC.iter_unpack(raw[: len(raw) - len(raw) % _IOVEC.size]))


def _cut(pieces: Sequence[tuple[int, int]], total: int) -> Iterator[tuple[int, int]]:
    """The first ``total`` bytes of ``pieces``, in chunks that are small enough to hold."""
    for address, size in pieces:
        while size > 0 and total > 0:
            chunk = min(size, total, _CHUNK_BYTES)
            yield address, chunk
            address, size, total = address + chunk, size - chunk, total - chunk


def _half_of_file(note: Notification, name: str) -> Short | None:
    # The argument numbers of source, its offset, target, its offset, and the count.
    source, source_at, target, target_at, count = {
        "sendfile": (1, 2, 0, None, 3),
        "copy_file_range": (0, 1, 2, 3, 4),
        "splice": (0, 1, 2, 3, 4),
    }[name]
    with _copy_of(note, source) as from_fd, _copy_of(note, target) as to_fd:
        from_offset = _read_offset(note, source_at)
        to_offset = None if target_at is None else _read_offset(note, target_at)
        half = min(note.args[count], _available(from_fd, from_offset)) // 2
        if half == 0 or not _is_file(to_fd):
            return None
        if name == "sendfile":
            done = os.sendfile(to_fd, from_fd, from_offset, half)
        else:
            call = os.copy_file_range if name == "copy_file_range" else os.splice
            done = call(from_fd, to_fd, half, from_offset, to_offset)
        _move_offset(note, source_at, from_offset, done)
        if target_at is not None:
            _move_offset(note, target_at, to_offset, done)
        return Short(done)


def _available(fd: int, offset: int | None) -> int:
    """Bytes that can be had from ``fd`` at ``offset`` (None: its position)."""
    if _is_file(fd):
        at = os.lseek(fd, 0, os.SEEK_CUR) if offset is None else offset
        return max(0, os.fstat(fd).st_size - at)
    waiting = bytearray(4)
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    return int.from_bytes(waiting, "little")


def _read_offset(note: Notification, argument: int) -> int | None:
    address = note.args[argument]
    if address == 0:
        return None
    (value,) = _OFFSET.unpack(seccomp.read_memory(note.tid, address, _OFFSET.size))
    return int(value)


def _move_offset(note: Notification, argument: int, offset: int | None, done: int) -> None:
    """The call returns the new offset in the program's memory; so do we."""
    if offset is None:
        return
    fd = os.open(f"/proc/{note.tid}/mem", os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(fd, _OFFSET.pack(offset + done), note.args[argument])
    finally:
        os.close(fd)
