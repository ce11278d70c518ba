"""Workspaces whose name says who made them, and the leftovers of those who died.

Everything that this project puts on a disk for a while lies in a *workspace*: a directory
``<home>/<run>.<pid>.<start>.<boot>.<pid namespace>``, made by one ``mkdir``. The name itself is
the ledger: there is no moment at which the directory exists and nobody knows whose it is, and no
ledger file that can be torn. The process id together with its start time and the boot names one
process for ever. A workspace whose process is gone is a leftover.

A directory that programs under test are given must have a short path, since a socket's may have 107
bytes: it is ``durability-<random>`` beside the homes, and its owner is in a file (:func:`mark`).

Mounts and loop devices need no entry: :mod:`fault_injection.mounts` makes them in a private mount
namespace, so the kernel undoes them when the last process in it ends. What can remain is such a
process: a program under test that outlived a killed harness. It is known by a mount that only we
make, whose source is the workspace's name.

Not covered: processes that never used a real file system (the guardian of the workers ends those),
and owners in another process namespace (a container), which cannot be judged and are left alone.
"""

import contextlib
import os
import re
import select
import shutil
import signal
import stat
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

import psutil

ENV_HOME = "DURABILITY_RUNTIME_DIR"
MOUNT_SOURCE_PREFIX = "durability."
_NAME = re.compile(r"([A-Za-z0-9_-]{1,64})\.([0-9]+)\.([0-9]+)\.([0-9a-f]+)\.([0-9]+)", re.ASCII)
_OWNER_FILE, _MARKED_PREFIX = ".owner", "durability-"
_KILL_WAIT_S = 5.0
_MKDIR_ATTEMPTS = 100


class LeftoverError(Exception):
    """A home or a workspace cannot be used safely; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Owner:
    """One process for ever: ``started`` in clock ticks since the boot named by ``boot``."""

    run_id: str
    pid: int
    started: int
    boot: str
    pid_namespace: int

    @property
    def name(self) -> str:
        """The name of its workspaces."""
        return f"{self.run_id}.{self.pid}.{self.started}.{self.boot}.{self.pid_namespace}"


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something of a dead owner: a ``directory`` (its path) or a ``process`` (its pid)."""

    kind: str
    what: str
    owner: str

    def describe(self) -> str:
        """In words, for people."""
        return f"{self.kind} {self.what} of the dead run {self.owner}"


def _start_of(pid: int) -> int | None:
    """When ``pid`` was started; None when there is no such process (a zombie counts as gone)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        if os.path.exists("/proc/self/stat"):
            return None
        with contextlib.suppress(psutil.Error):
            return int(psutil.Process(pid).create_time() * 100)
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read()[:8]
    except FileNotFoundError:
        return format(int(psutil.boot_time()), "x")


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except FileNotFoundError:
        return 0


def this_process(run_id: str = "") -> Owner:
    """The owner that this process is. ``run_id``: letters, digits, ``_`` and ``-``."""
    started = _start_of(os.getpid())
    assert started is not None
    owner = Owner(run_id or "run", os.getpid(), started, _boot(), _pid_namespace())
    if not _NAME.fullmatch(owner.name):
        raise ValueError(f"run id {run_id!r}: only letters, digits, '_' and '-' are allowed")
    return owner


def parse_owner(name: str) -> Owner | None:
    """The owner that a workspace's name says, None when it is not such a name."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    run_id, pid, started, boot, namespace = match.groups()
    return Owner(run_id, int(pid), int(started), boot, int(namespace))


def is_dead(owner: Owner) -> bool:
    """True when it is certain that ``owner`` is gone; False when it lives or cannot be judged."""
    if owner.boot != _boot():
        return True
    if owner.pid_namespace != _pid_namespace():
        return False
    return _start_of(owner.pid) != owner.started


def homes() -> tuple[str, ...]:
    """The directories below which workspaces lie: on the disk, and in memory where there is one.

    ``DURABILITY_RUNTIME_DIR`` replaces both.
    """
    chosen = os.environ.get(ENV_HOME)
    parents = [chosen] if chosen else [tempfile.gettempdir(), "/dev/shm"]
    found = [os.path.realpath(parent) for parent in parents if os.path.isdir(parent)]
    return tuple(os.path.join(parent, f"durability-{os.geteuid()}") for parent in found)


def _check_home(home: str) -> bool:
    """True when ``home`` exists and is ours alone; raises when it is there and is not."""
    try:
        status = os.lstat(home)
    except FileNotFoundError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise LeftoverError(f"{home} is not a directory of user {os.geteuid()}; remove it")
    if status.st_mode & 0o077:
        raise LeftoverError(f"{home} is open to other users; chmod 700 it or remove it")
    return True


def create_workspace(*, run_id: str = "", memory: bool = False) -> str:
    """A new empty directory of this process, its absolute path. ``memory``: in tmpfs if any.

    All of one process lie side by side in the one directory that has its name.
    """
    home = homes()[-1 if memory else 0]
    name = this_process(run_id).name
    for _ in range(_MKDIR_ATTEMPTS):
        # Another process may remove the empty home between our two calls.
        with contextlib.suppress(FileExistsError):
            os.mkdir(home, 0o700)
        _check_home(home)
        with contextlib.suppress(FileNotFoundError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(home, name), 0o700)
            return tempfile.mkdtemp(prefix="w", dir=os.path.join(home, name))
    raise LeftoverError(f"{home}: cannot make a directory, it keeps vanishing")


def remove_workspace(path: str) -> None:
    """Remove what :func:`create_workspace` gave, and the directories above it once empty."""
    remove_tree(path)
    for parent in (os.path.dirname(path), os.path.dirname(os.path.dirname(path))):
        with contextlib.suppress(OSError):
            os.rmdir(parent)


def mark(directory: str) -> None:
    """Say in ``directory``, a new one, that it is this process's."""
    with open(os.path.join(directory, _OWNER_FILE), "x", encoding="ascii") as file:
        file.write(this_process().name)


@contextlib.contextmanager
def beside(parent: str, prefix: str) -> Iterator[str]:
    """A new directory ``<prefix><random>`` in ``parent`` for the time of a ``with`` block.

    For what must lie on the disk of ``parent``, where no leftovers are looked for. Those that dead
    processes left there under the same prefix are removed first.
    """
    for path, owner in list(_marked(parent, prefix)):
        if is_dead(owner):
            with contextlib.suppress(LeftoverError, OSError):
                remove_tree(path)
    path = tempfile.mkdtemp(prefix=prefix, dir=parent)
    try:
        mark(path)
        yield path
    finally:
        remove_tree(path)


def _marked(parent: str, prefix: str = _MARKED_PREFIX) -> Iterator[tuple[str, Owner]]:
    """The marked directories of this user in ``parent``, and whose they are."""
    for entry in sorted(os.scandir(parent), key=lambda entry: entry.name):
        if not entry.name.startswith(prefix) or not entry.is_dir(follow_symlinks=False):
            continue
        try:
            if entry.stat(follow_symlinks=False).st_uid != os.geteuid():
                continue
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(os.path.join(entry.path, _OWNER_FILE), flags), "rb") as file:
                owner = parse_owner(file.read(256).decode("ascii", "replace"))
        except OSError:
            continue
        if owner is not None:
            yield entry.path, owner


@contextlib.contextmanager
def workspace(*, run_id: str = "", memory: bool = False) -> Iterator[str]:
    """A workspace for the time of a ``with`` block."""
    path = create_workspace(run_id=run_id, memory=memory)
    try:
        yield path
    finally:
        remove_workspace(path)


def remove_tree(path: str) -> None:
    """Remove a directory tree, directories without permissions too. Missing is fine.

    Never enters a mount: raises LeftoverError when one lies below ``path``.
    """
    mounted = [point for _, point in _mounts("self") if _is_below(point, path)]
    if mounted:
        raise LeftoverError(f"{mounted[0]} is mounted below {path}; unmount it first")
    for directory, names, _ in os.walk(path):
        for name in names:
            below = os.path.join(directory, name)
            if not os.path.islink(below) and not os.access(below, os.R_OK | os.W_OK | os.X_OK):
                os.chmod(below, 0o700)
    with contextlib.suppress(FileNotFoundError):
        shutil.rmtree(path)


def _is_below(point: str, path: str) -> bool:
    return point == path or point.startswith(path.rstrip("/") + "/")


def _mounts(pid: str) -> list[tuple[str, str]]:
    """(source, mount point) of each mount that process ``pid`` sees; empty when it is gone."""
    try:
        with open(f"/proc/{pid}/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
            lines = file.read().splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        left, _, right = line.partition(" - ")
        point = re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), left.split(" ")[4])
        found.append((right.split(" ")[1], point))
    return found


def _dead_owner_of_mounts(pid: str) -> Owner | None:
    """The dead owner whose private mounts process ``pid`` lives in; None when any owner lives."""
    sources = {source for source, _ in _mounts(pid) if source.startswith(MOUNT_SOURCE_PREFIX)}
    owners = [parse_owner(source.removeprefix(MOUNT_SOURCE_PREFIX)) for source in sorted(sources)]
    known = [owner for owner in owners if owner is not None]
    if not known or not all(is_dead(owner) for owner in known):
        return None
    return known[0]


def find() -> tuple[Leftover, ...]:
    """Everything that dead runs of this user left behind; nothing of the living."""
    found = list(_processes())
    for home in homes():
        found += [
            Leftover("directory", directory, its.name)
            for directory, its in _marked(os.path.dirname(home))
            if is_dead(its)
        ]
        if not _check_home(home):
            continue
        for name in sorted(os.listdir(home)):
            owner = parse_owner(name)
            if owner is not None and is_dead(owner):
                found.append(Leftover("directory", os.path.join(home, name), name))
    return tuple(found)


def _processes() -> Iterator[Leftover]:
    entries = os.listdir("/proc") if os.path.isdir("/proc") else []
    pids = sorted(int(entry) for entry in entries if entry.isascii() and entry.isdigit())
    judged: dict[str, Owner | None] = {}
    for pid in pids:
        try:
            namespace = os.readlink(f"/proc/{pid}/ns/mnt")
        except OSError:
            continue
        if namespace not in judged:
            judged[namespace] = _dead_owner_of_mounts(str(pid))
        owner = judged[namespace]
        if owner is not None and pid != os.getpid():
            yield Leftover("process", str(pid), owner.name)


def clean(leftovers: tuple[Leftover, ...]) -> tuple[str, ...]:
    """Remove them: processes first, then directories. What could not be removed, in words."""
    problems = []
    for leftover in leftovers:
        if leftover.kind == "process":
            problems += _end_process(int(leftover.what))
    for leftover in leftovers:
        if leftover.kind != "directory":
            continue
        owner = parse_owner(leftover.owner)
        if owner is None or not is_dead(owner):
            problems.append(f"{leftover.what}: its owner lives; not touched")
            continue
        try:
            remove_tree(leftover.what)
        except (LeftoverError, OSError) as error:
            problems.append(f"{leftover.what}: {error}")
        if os.path.dirname(leftover.what) in homes():
            with contextlib.suppress(OSError):
                os.rmdir(os.path.dirname(leftover.what))
    return tuple(problems)


def _end_process(pid: int) -> list[str]:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return []
    try:
        # Asked again now that the descriptor pins the process: the id may be somebody else's.
        if _dead_owner_of_mounts(str(pid)) is None:
            return []
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        ended, _, _ = select.select([pidfd], [], [], _KILL_WAIT_S)
        return [] if ended else [f"process {pid} did not end within {_KILL_WAIT_S} s of SIGKILL"]
    finally:
        os.close(pidfd)
