"""Decodes the calls that change names: open, rename, link, unlink, mkdir and their kin.

Each decoder looks at the real tree *before* the call runs and answers with a Request when the call
is going to change something (or would, if nothing unforeseen fails), else with None: an open of a
file that is there, a mkdir of a directory that exists, an unlink of nothing are no places to crash.
The table of all calls, and the set that a filter has to name, is at the end.
"""

import os
import stat
import struct
from collections.abc import Callable
from typing import NamedTuple

from fault_injection import calls_content, calls_meta, calls_refused
from fault_injection.calls_content import O_PATH, STANDARD_STREAMS
from fault_injection.procfs import AT_FDCWD, Location, View, fd_status, fd_text, signed
from fault_injection.requests import Request
from fault_injection.seccomp import Match, read_c_string, read_memory
from fault_injection.syscalls import NUMBERS
from fault_injection.trace import Kind

Arguments = tuple[int, int, int, int, int, int]
Decoder = Callable[[View, int, str, Arguments], Request | None]

O_CREAT, O_EXCL, O_TRUNC = 0o100, 0o200, 0o1000
O_TMPFILE_BIT = 0o20000000  # the same on both machines
AT_SYMLINK_NOFOLLOW, AT_REMOVEDIR, AT_SYMLINK_FOLLOW, AT_EMPTY_PATH = 0x100, 0x200, 0x400, 0x1000
RENAME_NOREPLACE, RENAME_EXCHANGE, RENAME_WHITEOUT = 1, 2, 4
_RESOLVE_IN_ROOT = 0x10
_OPEN_HOW = struct.Struct("=QQQ")


def _place_of_change(
    view: View, tid: int, dirfd: int, path: bytes, *, follow: bool = False
) -> Location | None:
    """Where a name is about to change; a directory outside the root is noted as changed."""
    where = view.locate(tid, dirfd, path, follow=follow)
    if where is not None and not where.inside and view.knows_any:
        view.dirty.add(where.parent_key)
    return where


def _open_path(
    view: View, tid: int, name: str, *, dirfd: int, address: int, flags: int, resolve: int = 0
) -> Request | None:
    if flags & O_PATH or not flags & (O_CREAT | O_TRUNC | O_TMPFILE_BIT):
        return None
    path = read_c_string(tid, address)
    if resolve & _RESOLVE_IN_ROOT:
        path = path.lstrip(b"/") or b"."
    if flags & O_TMPFILE_BIT:
        found = view.directory(view.base(tid, dirfd, path))
        if found is None or not view.is_inside(found[0]):
            return None
        nameless = Location(found[0], b"", found[1], True, None)
        return Request(tid, name, "create", Kind.CREATE, b"~", first=nameless, flags=flags)
    exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL
    follow = not (exclusive or flags & os.O_NOFOLLOW)
    where = _place_of_change(view, tid, dirfd, path, follow=follow)
    if where is None:
        return None
    status = where.status
    if status is None:
        if not flags & O_CREAT or path.endswith(b"/") or not where.inside:
            return None
        return Request(tid, name, "create", Kind.CREATE, where.name, first=where, flags=flags)
    if exclusive or not flags & O_TRUNC or not stat.S_ISREG(status.st_mode):
        return None
    if not where.inside and not view.knows(status):
        return None
    return Request(
        tid,
        name,
        "truncate",
        Kind.TRUNCATE,
        where.name,
        inside=where.inside,
        text=where.path,
        status=status,
        flags=flags,
    )


def _open(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    return _open_path(view, tid, name, dirfd=AT_FDCWD, address=args[0], flags=args[1])


def _creat(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    return _open_path(view, tid, name, dirfd=AT_FDCWD, address=args[0], flags=O_CREAT | O_TRUNC)


def _openat(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    return _open_path(view, tid, name, dirfd=signed(args[0]), address=args[1], flags=args[2])


class OpenHow(NamedTuple):
    """The argument of an openat2."""

    flags: int
    mode: int
    resolve: int


def open_how(tid: int, args: Arguments) -> OpenHow:
    """How an openat2 opens; zeros when its argument is no good."""
    how = read_memory(tid, args[2], _OPEN_HOW.size) if args[3] >= _OPEN_HOW.size else b""
    if len(how) < _OPEN_HOW.size:
        return OpenHow(0, 0, 0)
    return OpenHow(*_OPEN_HOW.unpack(how))


def _openat2(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    how = open_how(tid, args)
    return _open_path(
        view,
        tid,
        name,
        dirfd=signed(args[0]),
        address=args[1],
        flags=how.flags,
        resolve=how.resolve,
    )


def _make(
    view: View, tid: int, name: str, verb: str, kind: Kind, dirfd: int, path: bytes, **more: bytes
) -> Request | None:
    """A call that gives a new name, and fails when the name is taken."""
    where = _place_of_change(view, tid, dirfd, path)
    if where is None or where.status is not None or not where.inside:
        return None
    return Request(tid, name, verb, kind, where.name, first=where, target=more.get("target", b""))


def _mkdir(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    at, path = _at_path(tid, name, args)
    return _make(view, tid, name, "mkdir", Kind.MKDIR, at, path)


def _mknod(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    at, path = _at_path(tid, name, args)
    return _make(view, tid, name, "create", Kind.CREATE, at, path)


def _bind(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    """A Unix socket gets a name in the file system."""
    address = read_memory(tid, args[1], min(args[2] & 0xFFFFFFFF, 110))
    path = address[2:].split(b"\0", 1)[0]
    if address[:2] != struct.pack("=H", 1) or not path:
        return None
    return _make(view, tid, name, "create", Kind.CREATE, AT_FDCWD, path)


def _symlink(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    target = read_c_string(tid, args[0])
    at, address = (signed(args[1]), args[2]) if name == "symlinkat" else (AT_FDCWD, args[1])
    path = read_c_string(tid, address)
    return _make(view, tid, name, "symlink", Kind.SYMLINK, at, path, target=target)


def _at_path(tid: int, name: str, args: Arguments) -> tuple[int, bytes]:
    """Directory descriptor and path: the first arguments of every ``...at``, or a path alone."""
    if name.endswith("at"):
        return signed(args[0]), read_c_string(tid, args[1])
    return AT_FDCWD, read_c_string(tid, args[0])


def _unlink(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    at, path = _at_path(tid, name, args)
    directory = name == "rmdir" or (name == "unlinkat" and args[2] & AT_REMOVEDIR != 0)
    where = _place_of_change(view, tid, at, path)
    if where is None or where.status is None or not where.inside:
        return None
    if stat.S_ISDIR(where.status.st_mode) != directory:
        return None
    verb, kind = ("rmdir", Kind.RMDIR) if directory else ("unlink", Kind.UNLINK)
    return Request(tid, name, verb, kind, where.name, first=where, status=where.status)


def _rename(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    if name == "rename":
        old_at, old, new_at, new, flags = AT_FDCWD, args[0], AT_FDCWD, args[1], 0
    else:
        old_at, old, new_at, new = signed(args[0]), args[1], signed(args[2]), args[3]
        flags = args[4] if name == "renameat2" else 0
    first = _place_of_change(view, tid, old_at, read_c_string(tid, old))
    second = _place_of_change(view, tid, new_at, read_c_string(tid, new))
    if first is None or second is None or first.status is None:
        return None
    if not first.inside and not second.inside:
        return None
    before = second.status
    # Two names of one inode: POSIX says that rename does nothing, and it does.
    if before is not None and os.path.samestat(before, first.status):
        return None
    if before is not None and flags & RENAME_NOREPLACE:
        return None
    if flags & RENAME_EXCHANGE:
        if before is None:
            return None
        verb, kind = "exchange", Kind.EXCHANGE
    else:
        verb, kind = "rename", Kind.RENAME
    why = "renameat2 with RENAME_WHITEOUT" if flags & RENAME_WHITEOUT else ""
    return Request(
        tid,
        name,
        verb,
        kind,
        second.name,
        first=first,
        second=second,
        status=first.status,
        flags=flags,
        untraceable=why,
    )


def _link(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    if name == "link":
        old_at, old, new_at, new, flags = AT_FDCWD, args[0], AT_FDCWD, args[1], 0
    else:
        old_at, old, new_at, new, flags = signed(args[0]), args[1], signed(args[2]), *args[3:5]
    second = _place_of_change(view, tid, new_at, read_c_string(tid, new))
    if second is None or second.status is not None or not second.inside:
        return None
    path = read_c_string(tid, old)
    first: Location | None = None
    text = b""
    if not path and flags & AT_EMPTY_PATH:
        status, text = fd_status(tid, old_at), fd_text(tid, old_at)
    else:
        first = view.locate(tid, old_at, path, follow=flags & AT_SYMLINK_FOLLOW != 0)
        status = None if first is None else first.status
        text = b"" if first is None else first.path
    if status is None:
        return None
    return Request(
        tid,
        name,
        "link",
        Kind.LINK,
        second.name,
        first=first,
        second=second,
        status=status,
        text=text,
    )


_DECODERS: dict[str, Decoder] = {
    "open": _open,
    "creat": _creat,
    "openat": _openat,
    "openat2": _openat2,
    "mkdir": _mkdir,
    "mkdirat": _mkdir,
    "mknod": _mknod,
    "mknodat": _mknod,
    "bind": _bind,
    "symlink": _symlink,
    "symlinkat": _symlink,
    "unlink": _unlink,
    "unlinkat": _unlink,
    "rmdir": _unlink,
    "rename": _rename,
    "renameat": _rename,
    "renameat2": _rename,
    "link": _link,
    "linkat": _link,
    **calls_meta.DECODERS,
    **calls_content.DECODERS,
}

BY_NUMBER: dict[int, Decoder] = {
    NUMBERS[name]: decoder for name, decoder in _DECODERS.items() if name in NUMBERS
}
REFUSING: dict[int, Decoder] = {
    NUMBERS[name]: decoder
    for name, decoder in calls_refused.DECODERS.items()
    if name in NUMBERS and name not in _DECODERS
}


def notify_set(*, recording: bool, outputs: bool = True) -> frozenset[int | Match]:
    """What the filter must name: what changes the tree; recording, also what cannot be followed.

    An open that can change nothing, and an ioctl that is no file copy, run at full speed; without
    ``outputs`` so does a plain write to descriptor 1 or 2.
    """
    wanted: set[int | Match] = set(BY_NUMBER)
    changing = O_CREAT | O_TRUNC | O_TMPFILE_BIT
    for name, argument in (("open", 1), ("openat", 2)):
        if name in NUMBERS:
            wanted.discard(NUMBERS[name])
            wanted.add(Match(NUMBERS[name], bits=((argument, changing),)))
    if not outputs:
        wanted.discard(NUMBERS["write"])
        differs = tuple((0, fd) for fd in STANDARD_STREAMS)
        wanted.add(Match(NUMBERS["write"], differs=differs))
    wanted.discard(NUMBERS["ioctl"])
    wanted.update(calls_content.IOCTLS)
    if recording:
        wanted |= calls_refused.NOTIFY
    return frozenset(wanted)
