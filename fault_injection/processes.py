"""Process trees: found by parentage, killed to the last one, reaped.

A supervisor makes itself the *subreaper* of its descendants (prctl(2)): a process whose parent
dies, a daemon that forked twice and left its session included, becomes the supervisor's child
instead of init's. Nothing can therefore leave the tree, and "everything that an attempt started"
is what hangs below the supervisor and did not hang there before.

Trees are read from ``/proc/<pid>/task/<tid>/children`` (20 us a process). Where the kernel does
not have that file, and on other systems, psutil finds the parents. Processes are killed by their
group: the kernel delivers that atomically with regard to fork(2), so a fork bomb has no gap to
slip through; what leaves its group at the same moment is met by the next round.

Not covered: processes that others start on the program's request (a system daemon, a container
engine): they are no descendants. Outside Linux there are no subreapers, and an orphan is lost.
"""

import collections
import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_LINUX = sys.platform == "linux"

_libc = ctypes.CDLL(None, use_errno=True) if _LINUX else None


class DidNotDie(TimeoutError):
    """SIGKILL was sent, and a process is there still: it waits in the kernel, most likely for a
    disk. Nothing can be told of what it may yet do."""


def become_subreaper(wanted: bool = True) -> None:
    """Let orphaned descendants become children of this process, or no more. Linux only."""
    if _libc is None:
        return
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, int(wanted), 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl(PR_SET_CHILD_SUBREAPER): {os.strerror(number)}")


def is_subreaper() -> bool:
    """Whether orphaned descendants become children of this process."""
    if _libc is None:
        return False
    value = ctypes.c_int(0)
    done = _libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(value), 0, 0, 0) == 0
    return bool(done and value.value == 1)


def die_with_parent(parent: int) -> None:
    """In a child: be killed when the thread that started it ends. Ends now if that was before.

    ``parent`` is the pid that the parent knew itself by before it forked.
    """
    if _libc is not None:
        _libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _children_from_proc(pid: int) -> list[int]:
    found: list[int] = []
    try:
        tids = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return found
    for tid in tids:
        try:
            fd = os.open(f"/proc/{pid}/task/{tid}/children", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            # A read gives at most a page; the file is as long as there are children.
            parts: list[bytes] = []
            while part := os.read(fd, 1 << 16):
                parts.append(part)
            found += map(int, b"".join(parts).split())
        except OSError:
            continue  # it ended while it was read
        finally:
            os.close(fd)
    return found


def _children_from_psutil(pid: int) -> list[int]:
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        return [child.pid for child in psutil.Process(pid).children()]
    return []


def _chooses_proc() -> bool:
    me = os.getpid()
    return os.path.exists(f"/proc/{me}/task/{me}/children")


_children: Callable[[int], list[int]] = (
    _children_from_proc if _LINUX and _chooses_proc() else _children_from_psutil
)


def children(pid: int) -> list[int]:
    """The pids of the children of ``pid`` (dead ones that nobody reaped included); sorted."""
    return sorted(_children(pid))


def walk(pid: int, *, spare: Iterable[int] = ()) -> Iterator[int]:
    """All pids below ``pid``, parents before their children, without ``spare`` and those below.

    Lazy, so that a caller can hurt each process the moment it is found, and not atomic: call
    again until nothing is found.
    """
    seen = {pid, *spare}
    waiting = collections.deque([pid])
    while waiting:
        for child in children(waiting.popleft()):
            if child not in seen:
                seen.add(child)
                waiting.append(child)
                yield child


def descendants(pid: int, *, spare: Iterable[int] = ()) -> list[int]:
    """What :func:`walk` finds, as a list."""
    return list(walk(pid, spare=spare))


def signal_all(pids: Iterable[int], number: int) -> list[int]:
    """Send ``number`` to the process group of each of ``pids`` as it comes; return the pids.

    A process that is still in our own group is signalled alone. Those gone are passed over.
    """
    ours = os.getpgrp()
    done: set[int] = set()
    seen: list[int] = []
    for pid in pids:
        seen.append(pid)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            group = os.getpgid(pid)
            if group == ours:
                os.kill(pid, number)
            elif group not in done:
                done.add(group)
                os.killpg(group, number)
    return seen


def has_children() -> bool:
    """Whether this process has any child, dead or alive. One system call."""
    if not hasattr(os, "waitid"):
        return True  # it cannot be asked; looking at the tree gives the answer
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def has_company(pid: int) -> bool:
    """Whether a process has another thread, or a child that lives. Linux."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
        if len(threads) > 1:
            return True
        with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
            return bool(living(map(int, file.read().split())))
    except OSError:
        return True  # not known here


def reap(pids: Iterable[int]) -> None:
    """Collect those of ``pids`` that are dead children of this process; does not wait."""
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def living(pids: Iterable[int]) -> list[int]:
    """Those of ``pids`` that have not ended (a zombie has)."""
    return [pid for pid in pids if state_of(pid) not in ("", "Z", "X")]


def state_of(pid: int) -> str:
    """The state letter of a process: "R", "S", "T" stopped, "Z" zombie ...; "" when it is gone."""
    if not _LINUX:
        import psutil

        try:
            status = str(psutil.Process(pid).status())
        except psutil.NoSuchProcess:
            return ""
        return {"zombie": "Z", "stopped": "T", "dead": "X"}.get(status, "S")
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            # The name stands in parentheses and may hold any byte; the state follows the last one.
            return stat.read().rpartition(b")")[2].split()[0].decode()
    except (OSError, IndexError):
        return ""


_HARMLESS = ("SIGCHLD", "SIGCONT", "SIGURG", "SIGWINCH")
_STOPPING = ("SIGSTOP", "SIGTSTP", "SIGTTIN", "SIGTTOU")


def unusual_signals(*, ignored: Collection[int], handled: Collection[int]) -> list[int]:
    """The signals of this process that are blocked, or not ignored or handled as is said here.

    One read of ``/proc``; elsewhere every signal that has a handler is named.
    """
    try:
        fields = _signal_fields(os.getpid())
    except (OSError, KeyError, ValueError):
        return [n for n in signal.valid_signals() if signal.getsignal(n) != signal.SIG_DFL]
    masks = ((fields["SigIgn"], ignored), (fields["SigCgt"], handled), (fields["SigBlk"], ()))
    unusual = 0
    for mask, expected in masks:
        unusual |= mask ^ sum(1 << (number - 1) for number in expected)
    return [number + 1 for number in range(unusual.bit_length()) if unusual >> number & 1]


def _signal_fields(task: int | str) -> dict[str, int]:
    """The signal masks in ``/proc/<task>/status``: SigBlk, SigIgn, SigCgt, ..."""
    fields = {}
    with open(f"/proc/{task}/status", "rb") as file:
        for line in file:
            if line.startswith((b"SigBlk", b"SigIgn", b"SigCgt")):
                name, _, mask = line.partition(b":")
                fields[name.decode()] = int(mask, 16)
    return fields


def would_end(pid: int, number: int) -> bool:
    """Whether the signal ends the process by its default action, the moment it is sent.

    That is: it is neither handled nor ignored, some thread does not block it, and its default is
    to end. False where this cannot be known.
    """
    if signal.Signals(number).name in _HARMLESS + _STOPPING:
        return False
    bit = 1 << (number - 1)
    blocked = []
    try:
        for tid in os.listdir(f"/proc/{pid}/task"):
            fields = _signal_fields(f"{pid}/task/{tid}")
            if (fields["SigCgt"] | fields["SigIgn"]) & bit:
                return False
            blocked.append(bool(fields["SigBlk"] & bit))
    except (OSError, KeyError, ValueError):
        return False
    return not all(blocked)


def describe(pid: int) -> str:
    """The command line of a process, at most 120 characters, for people; "?" when it is gone."""
    for name in ("cmdline", "comm"):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/{name}", "rb") as file:
            words = file.read(4096).replace(b"\0", b" ").decode(errors="replace").strip()
            if words:
                return words[:120]
    return "?"


def kill_descendants(*, spare: frozenset[int] = frozenset(), timeout_s: float = 30.0) -> bool:
    """Kill and reap everything below this process until nothing is left, except ``spare``.

    ``spare`` are children of this process (with what is below them) that are no business of the
    caller. Returns False when something was still there after ``timeout_s`` (a process in an
    uninterruptible wait, or one of another user).
    """
    me = os.getpid()
    deadline = time.monotonic() + timeout_s
    pause_s = 0.0001
    while has_children():
        below = signal_all(walk(me, spare=spare), signal.SIGKILL)
        if not below:
            return True
        reap(below)
        if time.monotonic() > deadline:
            return False
        # The killed need a moment to die; a short wait is not a race, only a pace.
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 0.005)
    return True
