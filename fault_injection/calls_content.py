"""Decodes the calls that change or sync what is in a file, and those that write to the world.

The file is the one behind the descriptor, by device and inode, so that copies of descriptors,
descriptors passed on and files without a name are all the same thing.
"""

import fcntl
import os
import stat
import struct
import termios
from collections.abc import Callable

from fault_injection.procfs import AT_FDCWD, View, fd_info, fd_status, fd_text, key_of, signed
from fault_injection.requests import Request, refused
from fault_injection.seccomp import Match, duplicate_fd, read_c_string, read_memory
from fault_injection.syscalls import NUMBERS
from fault_injection.trace import Kind

O_PATH = 0o10000000  # the same on both machines
STANDARD_STREAMS = (1, 2)  # the descriptors of stdout and stderr

Arguments = tuple[int, int, int, int, int, int]

MAX_RW_COUNT = 0x7FFFF000  # what one call moves at most
_IOV_MAX = 1024
RWF_DSYNC, RWF_SYNC, RWF_APPEND, RWF_NOAPPEND = 2, 4, 16, 32

FICLONE, FICLONERANGE = 0x40049409, 0x4020940D
# Calls that rearrange contents in ways a trace has no words for: xfs exchange-range, btrfs
# snapshots and subvolumes.
_REFUSED_IOCTLS = {
    0x40285881: "XFS_IOC_EXCHANGE_RANGE",
    0x50009401: "BTRFS_IOC_SNAP_CREATE",
    0x5000940E: "BTRFS_IOC_SUBVOL_CREATE",
    0x50009417: "BTRFS_IOC_SNAP_CREATE_V2",
    0x50009418: "BTRFS_IOC_SUBVOL_CREATE_V2",
}
IOCTLS = frozenset(
    Match(NUMBERS.get("ioctl", -1), equals=((1, request),))
    for request in (FICLONE, FICLONERANGE, *_REFUSED_IOCTLS)
)


def _iovecs(tid: int, address: int, count: int) -> tuple[tuple[int, int], ...]:
    count = min(count, _IOV_MAX)
    raw = read_memory(tid, address, 16 * count)
    vectors: list[tuple[int, int]] = []
    left = MAX_RW_COUNT
    for base, size in struct.iter_unpack("=QQ", raw[: len(raw) - len(raw) % 16]):
        size = min(size, left)
        left -= size
        if size:
            vectors.append((base, size))
    return tuple(vectors)


def _file(
    view: View, tid: int, fd: int, text: bytes | None = None
) -> tuple[bytes, os.stat_result] | None:
    """Text and status of a regular file of the tree behind a descriptor that is to be changed."""
    if text is None:
        text = fd_text(tid, fd)
    if not view.is_inside(text) and not (view.knows_any and text.startswith(b"/")):
        return None
    status = fd_status(tid, fd)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    if not view.is_inside(text) and not view.knows(status):
        if status.st_dev == view.device:
            view.dirty.add(key_of(status))
        return None
    return text, status


def _write(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    fd = signed(args[0])
    text = fd_text(tid, fd)
    stream = view.outputs.get(text, "")
    found = None if stream else _file(view, tid, fd, text)
    if not stream and found is None:
        return None
    offset, flags = -1, 0
    if name in ("write", "pwrite64"):
        size = min(args[2], MAX_RW_COUNT)
        vectors: tuple[tuple[int, int], ...] = ((args[1], size),)
    else:
        vectors = _iovecs(tid, args[1], args[2] & 0xFFFFFFFF)
        size = sum(length for _, length in vectors)
    if not name.startswith("write"):
        offset = args[3] if args[3] < 1 << 63 else -1
        flags = args[5] & 0xFFFFFFFF if name == "pwritev2" else 0
    if size == 0:
        return None
    if found is None:
        return _output(tid, name, stream, size, vectors)
    return Request(
        tid,
        name,
        "write",
        Kind.WRITE,
        view.label(found[0]),
        inside=view.is_inside(found[0]),
        fd=fd,
        text=found[0],
        status=found[1],
        offset=offset,
        size=size,
        flags=flags,
        vectors=vectors,
    )


def _output(
    tid: int, name: str, stream: str, size: int, vectors: tuple[tuple[int, int], ...], fd: int = -1
) -> Request:
    return Request(
        tid,
        name,
        "output",
        Kind.OUTPUT,
        stream.encode(),
        inside=False,
        fd=fd,
        size=size,
        vectors=vectors,
        output=stream,
        copies=fd >= 0,
    )


def _vmsplice(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    stream = view.outputs.get(fd_text(tid, signed(args[0])), "")
    vectors = _iovecs(tid, args[1], args[2] & 0xFFFFFFFF) if stream else ()
    size = sum(length for _, length in vectors)
    return _output(tid, name, stream, size, vectors) if size else None


def _copy(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    """sendfile, copy_file_range, splice, tee: bytes that never are in the caller's memory."""
    source, source_at, fd, at, size = {
        "sendfile": (args[1], args[2], args[0], 0, args[3]),
        "copy_file_range": (args[0], args[1], args[2], args[3], args[4]),
        "splice": (args[0], args[1], args[2], args[3], args[4]),
        "tee": (args[0], 0, args[1], 0, args[2]),
    }[name]
    fd, source, size = signed(fd), signed(source), min(size, MAX_RW_COUNT)
    text = fd_text(tid, fd)
    stream = view.outputs.get(text, "")
    found = None if stream else _file(view, tid, fd, text)
    if not stream and found is None:
        return None
    source_offset, offset = _offset_at(tid, source_at), _offset_at(tid, at)
    size = _available(tid, source, source_offset, size)
    if size == 0:
        return None
    if found is not None:
        return _copy_request(view, tid, name, fd, found, offset, size)
    request = _output(tid, name, stream, size, (), fd=source)  # to be read while the call waits
    request.offset = source_offset
    return request


def _offset_at(tid: int, address: int) -> int:
    """A file offset in memory; -1, for the file's own, where there is none."""
    return int.from_bytes(read_memory(tid, address, 8), "little", signed=True) if address else -1


def _available(tid: int, source: int, offset: int, size: int) -> int:
    """How many bytes a copy will move at most: what is left of a file, what lies in a pipe."""
    status = fd_status(tid, source)
    if status is None:
        return 0
    if stat.S_ISREG(status.st_mode):
        if offset < 0:
            info = fd_info(tid, source)
            offset = info.position if info is not None else 0
        return min(size, max(0, status.st_size - offset))
    if stat.S_ISFIFO(status.st_mode):
        copy = duplicate_fd(tid, source)
        try:
            raw = fcntl.ioctl(copy, termios.FIONREAD, bytes(4))
        finally:
            os.close(copy)
        return min(size, int.from_bytes(raw, "little") or size)  # an empty one waits for more
    return size


def _copy_request(
    view: View,
    tid: int,
    name: str,
    fd: int,
    found: tuple[bytes, os.stat_result],
    offset: int,
    size: int,
) -> Request:
    return Request(
        tid,
        name,
        "copy",
        Kind.WRITE,
        view.label(found[0]),
        inside=view.is_inside(found[0]),
        fd=fd,
        text=found[0],
        status=found[1],
        offset=offset,
        size=size,
        copies=True,
    )


def _ioctl(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    """FICLONE and FICLONERANGE share a file's content with another: a copy, to a trace."""
    request, fd = args[1] & 0xFFFFFFFF, signed(args[0])
    if request in _REFUSED_IOCTLS:
        inside = view.is_inside(fd_text(tid, fd))
        return refused(tid, name, f"ioctl {_REFUSED_IOCTLS[request]}") if inside else None
    found = _file(view, tid, fd)
    if found is None:
        return None
    if request == FICLONE:
        source, start, size, offset = signed(args[2]), 0, 0, 0
    else:
        raw = read_memory(tid, args[2], 32)
        if len(raw) < 32:
            return None
        source, start, size, offset = struct.unpack("=qQQQ", raw)
    if size == 0:
        status = fd_status(tid, source)
        size = max(0, status.st_size - start) if status is not None else 0
    if size == 0:
        return None
    return _copy_request(view, tid, name, fd, found, offset, size)


def _truncate(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    size = args[1]
    if size >= 1 << 63:
        return None
    if name == "ftruncate":
        found = _file(view, tid, signed(args[0]))
        if found is None:
            return None
        text, status = found
    else:
        where = view.locate(tid, AT_FDCWD, read_c_string(tid, args[0]), follow=True)
        if where is None or where.status is None or not stat.S_ISREG(where.status.st_mode):
            return None
        text, status = where.path, where.status
        if not where.inside and not view.knows(status):
            return None
    return Request(
        tid,
        name,
        "truncate",
        Kind.TRUNCATE,
        view.label(text),
        inside=view.is_inside(text),
        text=text,
        status=status,
        size=size,
    )


_ALLOCATIONS = {0x08: Kind.COLLAPSE, 0x20: Kind.INSERT}


def _fallocate(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    found = _file(view, tid, signed(args[0]))
    if found is None:
        return None
    mode, offset, size = args[1] & 0xFFFFFFFF, args[2], args[3]
    # Punch, zero and write-zeroes all leave zeros; unshare and plain allocation leave the bytes.
    kind = Kind.PUNCH if mode & (0x02 | 0x10 | 0x80) else Kind.ALLOCATE
    kind = _ALLOCATIONS.get(mode & ~1, kind)
    punches_and_grows = mode & 0x02 and not mode & 1  # refused by every file system
    if size == 0 or size >= 1 << 63 or offset >= 1 << 63 or punches_and_grows:
        return None
    return Request(
        tid,
        name,
        "allocate",
        kind,
        view.label(found[0]),
        inside=view.is_inside(found[0]),
        text=found[0],
        status=found[1],
        offset=offset,
        size=size,
        flags=mode,
    )


def _fsync(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    fd = signed(args[0])
    text, status = fd_text(tid, fd), fd_status(tid, fd)
    if status is None or not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        return None
    if _is_a_path_only(tid, fd):
        return None
    inside = view.is_inside(text)
    if not inside and not view.knows_any:
        return None  # recording, it may be of a file that is moved in later
    verb, kind = {
        "fsync": ("fsync", Kind.FSYNC),
        "fdatasync": ("fdatasync", Kind.FDATASYNC),
        "sync_file_range": ("syncrange", Kind.META),  # it promises nothing: a place, no more
    }[name]
    return Request(
        tid, name, verb, kind, view.label(text), inside=inside, fd=fd, text=text, status=status
    )


def _is_a_path_only(tid: int, fd: int) -> bool:
    """Opened with O_PATH: the sync fails with EBADF, whatever the program makes of that."""
    info = fd_info(tid, fd)
    return info is None or bool(info.flags & O_PATH)


def _sync(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    if name == "syncfs":
        fd = signed(args[0])
        status = fd_status(tid, fd)
        if status is None or status.st_dev != view.device or _is_a_path_only(tid, fd):
            return None
    return Request(tid, name, "sync", Kind.SYNC, b".")


_WRITES = ("write", "pwrite64", "writev", "pwritev", "pwritev2")
_COPIES = ("sendfile", "copy_file_range", "splice", "tee")

DECODERS: dict[str, Callable[[View, int, str, Arguments], Request | None]] = {
    **dict.fromkeys(_WRITES, _write),
    **dict.fromkeys(_COPIES, _copy),
    "vmsplice": _vmsplice,
    "ioctl": _ioctl,
    "truncate": _truncate,
    "ftruncate": _truncate,
    "fallocate": _fallocate,
    "fsync": _fsync,
    "fdatasync": _fsync,
    "sync_file_range": _fsync,
    "sync": _sync,
    "syncfs": _sync,
}
