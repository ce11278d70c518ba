"""Decodes the calls that change what is known *about* a file: places to crash, no more.

Mode, owner, times and extended attributes have no effect on a crash state.
"""

from collections.abc import Callable

from fault_injection.procfs import AT_FDCWD, View, fd_status, fd_text, signed
from fault_injection.requests import Request
from fault_injection.seccomp import read_c_string
from fault_injection.trace import Kind

Arguments = tuple[int, int, int, int, int, int]

AT_SYMLINK_NOFOLLOW = 0x100
_BY_DESCRIPTOR = ("fchmod", "fchown", "fsetxattr", "fremovexattr")
_BY_PATH = ("chmod", "chown", "lchown", "utime", "utimes")
_XATTR = ("setxattr", "lsetxattr", "removexattr", "lremovexattr")
# Relative to a directory descriptor, with the number of the argument that holds the flags.
_AT = {"fchmodat": -1, "fchmodat2": 3, "fchownat": 4, "utimensat": 3, "futimesat": -1}


def _meta(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    """Mode, owner, times, extended attributes, of a path or of a descriptor."""
    if name in _BY_DESCRIPTOR:
        return _meta_fd(view, tid, name, signed(args[0]))
    follow = not name.startswith("l")
    if name in _AT:
        at, address = signed(args[0]), args[1]
        flags = args[_AT[name]] if _AT[name] >= 0 else 0
        path = read_c_string(tid, address) if address else b""
        if not path:
            return _meta_fd(view, tid, name, at)
        follow = not flags & AT_SYMLINK_NOFOLLOW
    else:
        at, path = AT_FDCWD, read_c_string(tid, args[0])
    where = view.locate(tid, at, path, follow=follow)
    if where is None or where.status is None or not view.is_inside(where.path):
        return None
    label = view.label(where.path)
    return Request(tid, name, "meta", Kind.META, label, first=where, status=where.status)


def _meta_fd(view: View, tid: int, name: str, fd: int) -> Request | None:
    status, text = fd_status(tid, fd), fd_text(tid, fd)
    if status is None or not view.is_inside(text):
        return None
    label = view.label(text)
    return Request(tid, name, "meta", Kind.META, label, fd=fd, text=text, status=status)


DECODERS: dict[str, Callable[[View, int, str, Arguments], Request | None]] = dict.fromkeys(
    (*_BY_DESCRIPTOR, *_BY_PATH, *_XATTR, *_AT), _meta
)
