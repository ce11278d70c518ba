"""What an attempt asks of the tree it was started on: every question whose answer it depends on.

Two starting trees that answer all of these alike make a deterministic program run alike. A question
is a path relative to the root, as it was in the *starting* tree, and what was asked of it:

========= ==========================================================================================
exists    is there something, of which type: an open or stat that found nothing, O_EXCL, O_TRUNC,
          access, the names that mkdir, link, rename and unlink need there or not there
stat      what a stat tells: type, length, mode; also the length that an append starts from
content   the bytes: opened for reading, for writing without O_TRUNC, or executed
listing   the names in a directory
link      where a symbolic link points, also one met on the way
replaced  nothing but whether a rename of a file can take this name: over nothing or over a file
emptied   nothing but whether an O_CREAT with O_TRUNC gives an empty file here, of nothing or of a
          file; ``emptied-644`` has the mode of one that it makes
========= ==========================================================================================

What the attempt has made itself is no question: a path that it created, or emptied as it opened it,
is its own from then on; one that it renamed is asked of by the name that it had in the start.

Not covered: times and inode numbers, which every state that is laid out has anew; watching by
inotify; questions asked of a file that another attempt's process still holds open.
"""

import os
import stat
from collections.abc import Callable

from fault_injection.calls import (
    AT_EMPTY_PATH,
    AT_SYMLINK_NOFOLLOW,
    O_CREAT,
    O_EXCL,
    O_TRUNC,
    open_how,
)
from fault_injection.calls_content import O_PATH
from fault_injection.overlay import Overlay
from fault_injection.procfs import AT_FDCWD, View, fd_text, lstat, signed, umask
from fault_injection.requests import Request
from fault_injection.seccomp import Match, Notification, read_c_string
from fault_injection.syscalls import NAMES, NUMBERS
from fault_injection.trace import Kind

_MAX_LINKS = 40
_O_ACCMODE, _O_APPEND = 3, 0o2000
_LSEEK_END = 2

# Which argument holds the path, whether a directory descriptor comes before it, where the flags
# are, and what is asked.
_ASKING: dict[str, tuple[int, bool, int, str]] = {
    "stat": (0, False, -1, "stat"),
    "lstat": (0, False, -1, "stat"),
    "newfstatat": (1, True, 3, "stat"),
    "statx": (1, True, 2, "stat"),
    "access": (0, False, -1, "exists"),
    "faccessat": (1, True, -1, "exists"),
    "faccessat2": (1, True, 3, "exists"),
    "readlink": (0, False, -1, "link"),
    "readlinkat": (1, True, -1, "link"),
    "getxattr": (0, False, -1, "stat"),
    "lgetxattr": (0, False, -1, "stat"),
    "listxattr": (0, False, -1, "stat"),
    "llistxattr": (0, False, -1, "stat"),
    "chdir": (0, False, -1, "exists"),
    "execve": (0, False, -1, "content"),
    "execveat": (1, True, 4, "content"),
    # Calls that change something ask first whether they can.
    "truncate": (0, False, -1, "content"),
    "mkdir": (0, False, -1, "exists"),
    "mkdirat": (1, True, -1, "exists"),
    "mknod": (0, False, -1, "exists"),
    "mknodat": (1, True, -1, "exists"),
    "unlink": (0, False, -1, "exists"),
    "unlinkat": (1, True, -1, "exists"),
    "rmdir": (0, False, -1, "listing"),
    "symlink": (1, False, -1, "exists"),
    "symlinkat": (2, True, -1, "exists"),
    "chmod": (0, False, -1, "exists"),
    "fchmodat": (1, True, -1, "exists"),
    "fchmodat2": (1, True, 3, "exists"),
    "chown": (0, False, -1, "exists"),
    "lchown": (0, False, -1, "exists"),
    "fchownat": (1, True, 4, "exists"),
    "utime": (0, False, -1, "exists"),
    "utimes": (0, False, -1, "exists"),
    "futimesat": (1, True, -1, "exists"),
    "utimensat": (1, True, 3, "exists"),
    "setxattr": (0, False, -1, "exists"),
    "lsetxattr": (0, False, -1, "exists"),
}
_NOT_FOLLOWING = frozenset(
    (
        *("lstat", "readlink", "readlinkat", "lgetxattr", "llistxattr", "lchown", "lsetxattr"),
        *("mkdir", "mkdirat", "mknod", "mknodat", "unlink", "unlinkat", "rmdir"),
        *("symlink", "symlinkat"),
    )
)
_OF_DESCRIPTORS = {
    "fstat": "stat",
    "fgetxattr": "stat",
    "flistxattr": "stat",
    "getdents": "listing",
    "getdents64": "listing",
    "lseek": "stat",  # from the end
}
_OPENS = ("open", "openat", "openat2", "creat")
_PAIRS = ("rename", "renameat", "renameat2", "link", "linkat")

REPLACED, EMPTIED = "replaced", "emptied-"

_NAMES = (*_ASKING, *_OF_DESCRIPTORS, *_OPENS, *_PAIRS)
NOTIFY: frozenset[int | Match] = frozenset(
    Match(NUMBERS[name], equals=((2, _LSEEK_END),)) if name == "lseek" else NUMBERS[name]
    for name in _NAMES
    if name in NUMBERS
)


class Reads:
    """Collects the questions of one attempt."""

    def __init__(self, view: View) -> None:
        self._view = view
        self._overlay = Overlay()
        self._questions: dict[bytes, set[str]] = {}
        self._changes: dict[int, Request] = {}

    def questions(self) -> dict[bytes, frozenset[str]]:
        """Path in the starting tree to what was asked of it; sorted."""
        return {path: frozenset(self._questions[path]) for path in sorted(self._questions)}

    def overlay(self) -> Overlay:
        """Where each path comes from by now."""
        self._settle(-1)
        return self._overlay

    def removed(self) -> frozenset[bytes]:
        """The directories of the starting tree that it listed and that are gone from the tree."""
        self._settle(-1)
        listed = (path for path, words in self._questions.items() if "listing" in words)
        return frozenset(path for path in listed if path and self._overlay.is_gone(path))

    def on_call(self, note: Notification) -> None:
        """Take down what a waiting call asks."""
        self._settle(note.tid)
        name = NAMES.get(note.nr, "")
        try:
            if name in _OPENS:
                self._open(note, name)
            elif name in _PAIRS:
                self._pair(note, name)
            elif name in _OF_DESCRIPTORS:
                self._descriptor(note.tid, signed(note.args[0]), _OF_DESCRIPTORS[name])
            elif name in _ASKING:
                self._path(note, name)
        except OSError:
            return  # its maker is gone, or its arguments are no good

    # Changes that the attempt makes: what it has made is its own.

    def changing(self, request: Request) -> None:
        """A call that is let run will change names; it is known to have when it can be seen."""
        self._changes[request.tid] = request

    def _settle(self, tid: int) -> None:
        for other, request in list(self._changes.items()):
            if _has_happened(request):
                self._apply(request)
                del self._changes[other]
            elif other == tid:
                del self._changes[other]  # it failed

    def _apply(self, request: Request) -> None:
        first, second, kind = request.first, request.second, request.kind
        if kind is Kind.TRUNCATE and request.size == 0 and self._view.is_inside(request.text):
            self._overlay.own(self._view.relative(request.text))
        if first is None or (not first.inside and second is None):
            return
        here = self._view.relative(first.path) if first.inside else None
        there = self._view.relative(second.path) if second is not None and second.inside else None
        if kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK, Kind.UNLINK, Kind.RMDIR):
            if here is not None:
                self._overlay.own(here)
        elif kind is Kind.LINK:
            if there is not None:
                self._overlay.copy(here, there)
        elif kind is Kind.EXCHANGE:
            self._overlay.exchange(here, there)
        elif kind is Kind.RENAME:
            self._overlay.move(here, there)

    # Questions.

    def _ask(self, path: bytes, word: str) -> None:
        """``path`` is absolute, as it is now."""
        if not self._view.is_inside(path):
            return
        start = self._overlay.origin(self._view.relative(path))
        if start is not None:
            self._questions.setdefault(start, set()).add(word)

    def _descriptor(self, tid: int, fd: int, word: str) -> None:
        self._ask(fd_text(tid, fd), word)

    def _path(self, note: Notification, name: str) -> None:
        number, at, flags_number, word = _ASKING[name]
        args = note.args
        flags = args[flags_number] if flags_number >= 0 else 0
        dirfd = signed(args[number - 1]) if at else AT_FDCWD
        path = read_c_string(note.tid, args[number]) if args[number] else b""
        if not path:
            if at and (flags & AT_EMPTY_PATH or not args[number]):
                self._descriptor(note.tid, dirfd, word)
            return
        if name == "unlinkat" and args[2]:
            word = "listing"
        follow = name not in _NOT_FOLLOWING and not flags & AT_SYMLINK_NOFOLLOW
        found = self._walk(note.tid, dirfd, path, follow=follow)
        if found is not None:
            self._ask_what_is_there(found, word)

    def _ask_what_is_there(self, path: bytes, word: str) -> None:
        self._ask(path, word if lstat(path) is not None else "exists")

    def _open(self, note: Notification, name: str) -> None:
        args, dirfd = note.args, AT_FDCWD
        if name == "openat2":
            flags = open_how(note.tid, args).flags
        else:
            flags = {"open": args[1], "openat": args[2], "creat": O_CREAT | O_TRUNC | 1}[name]
        if name.startswith("openat"):
            dirfd = signed(args[0])
        path = read_c_string(note.tid, args[1 if name.startswith("openat") else 0])
        exclusive = flags & (O_CREAT | O_EXCL) == O_CREAT | O_EXCL
        empties = flags & (O_CREAT | O_EXCL | O_TRUNC) == O_CREAT | O_TRUNC
        follow = not exclusive and not flags & os.O_NOFOLLOW
        found = self._walk(note.tid, dirfd, path, follow=follow)
        if found is None:
            return
        status = lstat(found)
        if empties and (status is None or stat.S_ISREG(status.st_mode)):
            self._ask(found, f"{EMPTIED}{_mode_made(note, name):o}")
        elif status is None or exclusive or flags & O_TRUNC or stat.S_ISDIR(status.st_mode):
            self._ask(found, "exists")
        elif flags & os.O_DIRECTORY and not stat.S_ISLNK(status.st_mode):
            self._ask(found, "exists")  # it fails, whatever is in the file
        elif stat.S_ISLNK(status.st_mode):
            self._ask(found, "link")
        elif flags & O_PATH or flags & (_O_ACCMODE | _O_APPEND) == os.O_WRONLY | _O_APPEND:
            self._ask(found, "stat")
        else:
            self._ask(found, "content")

    def _pair(self, note: Notification, name: str) -> None:
        """rename and link: what they take must be there; what they make depends on what is."""
        args = note.args
        at = name not in ("rename", "link")
        pairs = ((args[0], args[1]), (args[2], args[3])) if at else ((0, args[0]), (0, args[1]))
        replaces = name in ("rename", "renameat") or (name == "renameat2" and not args[4])
        for dirfd, address in pairs:
            path = read_c_string(note.tid, address)
            fd = signed(dirfd) if at else AT_FDCWD
            if not path:
                continue
            found = self._walk(note.tid, fd, path, follow=False)
            if found is None:
                continue
            status = lstat(found)
            is_directory = status is not None and stat.S_ISDIR(status.st_mode)
            if address == pairs[0][1]:
                replaces &= status is not None and not is_directory
                self._ask(found, "exists")
            elif is_directory:
                self._ask(found, "listing")
            elif replaces and (status is None or stat.S_ISREG(status.st_mode)):
                self._ask(found, REPLACED)
            else:
                self._ask(found, "exists")

    # Where a path leads.

    def _walk(self, tid: int, dirfd: int, path: bytes, *, follow: bool) -> bytes | None:
        """The absolute path that is meant, with its last symbolic link followed if ``follow``.

        Links under the root that are met on the way are asked of. None: it is outside.
        """
        if self._is_plainly_outside(tid, dirfd, path, follow=follow):
            return None
        if path.startswith(self._view.root + b"/"):
            here, path = self._view.root, path[len(self._view.root) :]  # which has no links in it
        elif path.startswith(b"/"):
            here = b"/"
        elif dirfd == AT_FDCWD:
            here = os.readlink(b"/proc/%d/cwd" % tid)
        else:
            here = fd_text(tid, dirfd)
        todo = [part for part in path.split(b"/") if part]
        links = 0
        while todo:
            part = todo.pop(0)
            if part == b".":
                continue
            if part == b"..":
                here = os.path.dirname(here)
                continue
            if here == b"/proc" and part in (b"self", b"thread-self"):
                here = b"/proc/%d" % tid  # as the waiting thread sees it
                continue
            below = here.rstrip(b"/") + b"/" + part
            status = lstat(below)
            if status is None and todo:
                self._ask(below, "exists")
                return None
            if status is not None and stat.S_ISLNK(status.st_mode) and (todo or follow):
                links += 1
                if links > _MAX_LINKS:
                    return None
                self._ask(below, "link")
                target = os.readlink(below)
                todo = [part for part in target.split(b"/") if part] + todo
                here = b"/" if target.startswith(b"/") else here
                continue
            here = below
        return here if self._view.is_inside(here) else None

    def _is_plainly_outside(self, tid: int, dirfd: int, path: bytes, *, follow: bool) -> bool:
        """Whether, at the price of two looks, a path can be dismissed: nearly all of them can."""
        if path.startswith((self._view.root, b"/proc/", b"/dev/fd/")):
            return False
        access = self._view.base(tid, dirfd, path)
        head, _, name = access.rstrip(b"/").rpartition(b"/")
        found = self._view.directory(head + b"/")
        if found is None or name in (b".", b"..") or self._view.is_inside(found[0]):
            return False
        if self._view.root == found[0].rstrip(b"/") + b"/" + name:
            return False
        if not follow:
            return True
        status = lstat(found[0] + b"/" + name)
        return status is None or not stat.S_ISLNK(status.st_mode)


def _mode_made(note: Notification, name: str) -> int:
    """The mode of a file that a waiting open makes."""
    args = note.args
    if name == "openat2":
        mode = open_how(note.tid, args).mode
    else:
        mode = args[{"open": 2, "openat": 3, "creat": 1}[name]]
    return mode & 0o7777 & ~umask(note.tid)


def _has_happened(request: Request) -> bool:
    """Whether the effect of a change of names can be seen."""
    first, second, before = request.first, request.second, request.status
    look: dict[Kind, Callable[[], bool]] = {
        Kind.TRUNCATE: lambda: _has_size(request.text, request.size),
        Kind.CREATE: lambda: first is not None and lstat(first.path) is not None,
        Kind.MKDIR: lambda: first is not None and lstat(first.path) is not None,
        Kind.SYMLINK: lambda: first is not None and lstat(first.path) is not None,
        Kind.UNLINK: lambda: first is not None and not _is_at(before, first.path),
        Kind.RMDIR: lambda: first is not None and not _is_at(before, first.path),
        Kind.RENAME: lambda: second is not None and _is_at(before, second.path),
        Kind.EXCHANGE: lambda: second is not None and _is_at(before, second.path),
        Kind.LINK: lambda: second is not None and _is_at(before, second.path),
    }
    return request.kind in look and look[request.kind]()


def _is_at(status: os.stat_result | None, path: bytes) -> bool:
    now = lstat(path)
    return status is not None and now is not None and os.path.samestat(now, status)


def _has_size(path: bytes, size: int) -> bool:
    now = lstat(path)
    return now is not None and now.st_size == size
