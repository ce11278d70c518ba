"""What the arguments of a waiting call mean: paths and descriptors, seen through ``/proc``.

While a thread waits for its supervisor its working directory, root and descriptors stand still, so
``/proc/<tid>/cwd``, ``/proc/<tid>/root`` and ``/proc/<tid>/fd/N`` resolve as the call itself will.
A path becomes a :class:`Location`: the directory that holds its last component, as a path of ours,
and the name in it. Nothing is ever opened but directories (with ``O_PATH``), so that a FIFO, a
socket or a device under the root cannot hang the supervisor.

Not covered: absolute symbolic links inside a ``chroot`` are followed from our own root.
"""

import os
import stat
from collections.abc import Container
from typing import NamedTuple

AT_FDCWD = -100
_MAX_LINKS = 40  # as the kernel


class Location(NamedTuple):
    """A name in a directory that exists. ``parent`` is absolute; ``parent_key`` (device, inode)."""

    parent: bytes
    name: bytes
    parent_key: tuple[int, int]
    inside: bool
    status: os.stat_result | None

    @property
    def path(self) -> bytes:
        """The location as a path of ours."""
        return self.parent + b"/" + self.name


class FdInfo(NamedTuple):
    """An open file's offset and flags."""

    position: int
    flags: int


def signed(argument: int) -> int:
    """A system-call argument as the C ``int`` that descriptors are."""
    value = argument & 0xFFFFFFFF
    return value - (1 << 32) if value >= 1 << 31 else value


def key_of(status: os.stat_result) -> tuple[int, int]:
    """Device and inode number: what a file *is*, whatever it is called."""
    return status.st_dev, status.st_ino


class View:
    """Resolves paths and descriptors of supervised threads against one root directory."""

    def __init__(self, root: bytes) -> None:
        """``root`` is an absolute path without symbolic links."""
        self.root = root
        self._below = root.rstrip(b"/") + b"/"
        self._directories: dict[tuple[int, int], bytes] = {}
        self.device = os.stat(root).st_dev
        self.outputs: dict[bytes, str] = {}
        self.shared_mappings = False
        # Files and directories outside the root, changed and not synced since: for the day that
        # they are moved in.
        self.dirty: set[tuple[int, int]] = set()
        self._known: Container[tuple[int, int]] = ()
        self.knows_any = False

    def know(self, inodes: Container[tuple[int, int]]) -> None:
        """Tell of these (device, inode) too, wherever their names are: a live collection."""
        self._known = inodes
        self.knows_any = True

    def knows(self, status: os.stat_result) -> bool:
        """Whether a recorder has this inode in its tree although its name may be elsewhere."""
        return (status.st_dev, status.st_ino) in self._known

    def label(self, path: bytes) -> bytes:
        """The name that a place is called by: ``.`` for the root, ``~`` for a nameless file."""
        if path == self.root:
            return b"."
        name = path.rpartition(b"/")[2]
        if name.endswith(b" (deleted)"):
            name = name[:-10]
            if name.startswith(b"#") and name[1:].isdigit():
                return b"~"
        return name

    def is_inside(self, path: bytes) -> bool:
        """Whether an absolute, resolved path is the root or under it."""
        return path.startswith(self._below) or path == self.root

    def relative(self, path: bytes) -> bytes:
        """A path under the root as seen from the root; empty for the root itself."""
        return path[len(self._below) :]

    def forget_directories(self) -> None:
        """To be called when a directory was moved or removed: paths by inode are stale then."""
        self._directories.clear()

    def base(self, tid: int, dirfd: int, path: bytes) -> bytes:
        """``path`` of thread ``tid`` as a path that resolves the same for us."""
        if path.startswith(b"/"):
            if path.startswith((b"/proc/self/", b"/proc/thread-self/")):
                return b"/proc/%d/" % tid + path.split(b"/", 3)[3]
            if path.startswith(b"/dev/fd/"):
                return b"/proc/%d/fd/" % tid + path[8:]
            if path in (b"/dev/stdin", b"/dev/stdout", b"/dev/stderr"):
                number = (b"/dev/stdin", b"/dev/stdout", b"/dev/stderr").index(path)
                return b"/proc/%d/fd/%d" % (tid, number)
            return b"/proc/%d/root" % tid + path
        if dirfd == AT_FDCWD:
            return b"/proc/%d/cwd/" % tid + path
        return b"/proc/%d/fd/%d/" % (tid, dirfd) + path

    def directory(self, access: bytes) -> tuple[bytes, tuple[int, int]] | None:
        """The directory at ``access`` as (absolute path, key); None when there is none."""
        try:
            status = os.stat(access)
        except (FileNotFoundError, NotADirectoryError):
            return None
        if not stat.S_ISDIR(status.st_mode):
            return None
        key = (status.st_dev, status.st_ino)
        known = self._directories.get(key)
        if known is None:
            fd = os.open(access, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                known = os.readlink(b"/proc/self/fd/%d" % fd)
            finally:
                os.close(fd)
            self._directories[key] = known
        return known, key

    def locate(self, tid: int, dirfd: int, path: bytes, *, follow: bool) -> Location | None:
        """Where ``path`` is. None when its directory is not there: the call will fail.

        With ``follow`` a symbolic link as last component is followed, also when it dangles.
        """
        access = self.base(tid, dirfd, path)
        for _ in range(_MAX_LINKS):
            head, _, name = access.rstrip(b"/").rpartition(b"/")
            if name in (b".", b".."):
                whole = self.directory(access)
                if whole is None:
                    return None
                head, _, name = whole[0].rpartition(b"/")
            found = self.directory(head + b"/")
            if found is None:
                return None
            parent, key = found
            status = lstat(parent + b"/" + name)
            if status is not None and follow and stat.S_ISLNK(status.st_mode):
                if parent.startswith(b"/proc/"):
                    return self._magic(parent + b"/" + name)
                target = os.readlink(parent + b"/" + name)
                access = (
                    self.base(tid, AT_FDCWD, target)
                    if target.startswith(b"/")
                    else parent + b"/" + target
                )
                continue
            inside = parent.startswith(self._below) or parent == self.root
            return Location(parent, name, key, inside, status)
        return None

    def _magic(self, path: bytes) -> Location | None:
        """What a link of ``/proc/<tid>/fd`` names: an open file, which may have no name left."""
        text = os.readlink(path)
        head, _, name = text.rpartition(b"/")
        found = self.directory(head + b"/") if text.startswith(b"/") else None
        if found is None:
            return Location(b"/proc", path, (0, 0), False, os.stat(path))
        try:
            return Location(found[0], name, found[1], self.is_inside(found[0]), os.stat(path))
        except FileNotFoundError:
            return Location(found[0], name, found[1], self.is_inside(found[0]), None)


def lstat(path: bytes) -> os.stat_result | None:
    """What is at a path, None when nothing is."""
    try:
        return os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None


def fd_text(tid: int, fd: int) -> bytes:
    """What ``/proc`` shows for a descriptor: a path, ``pipe:[n]``, ...; empty when not open."""
    try:
        return os.readlink(b"/proc/%d/fd/%d" % (tid, fd))
    except FileNotFoundError:
        return b""


def fd_status(tid: int, fd: int) -> os.stat_result | None:
    """The status of the file behind a descriptor; None when it is not open."""
    try:
        return os.stat(b"/proc/%d/fd/%d" % (tid, fd))
    except FileNotFoundError:
        return None


def fd_info(tid: int, fd: int) -> FdInfo | None:
    """Offset and flags behind a descriptor; None when it is not open."""
    try:
        file = os.open(b"/proc/%d/fdinfo/%d" % (tid, fd), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        words = os.read(file, 256).split()
    finally:
        os.close(file)
    return FdInfo(int(words[1]), int(words[3], 8))


def umask(tid: int) -> int:
    """The mode bits that a thread's new files do not get."""
    with open(f"/proc/{tid}/status", "rb") as file:
        words = file.read(256).split()
    return int(words[words.index(b"Umask:") + 1], 8)


def has_left(tid: int, number: int, args: tuple[int, ...]) -> bool | None:
    """Whether a thread that was let into a call is out of it again. None: it runs, so who knows.

    A thread that waits for its supervisor is in a *new* call, also when that looks the same.
    """
    try:
        with open(f"/proc/{tid}/syscall", "rb") as file:
            words = file.read(512).split()
        if not words or words[0] == b"running":
            return None
        if int(words[0]) != number or [int(word, 16) for word in words[1:7]] != list(args):
            return True
        with open(f"/proc/{tid}/wchan", "rb") as file:
            return b"seccomp" in file.read(128)
    except (FileNotFoundError, ProcessLookupError):
        # Gone; or this kernel does not tell.
        return None if os.path.exists(f"/proc/{tid}") else True
    except OSError:
        return None
