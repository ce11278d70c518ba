"""mount(2), umount2(2) and a private mount namespace, through ctypes.

A process that mounts first gives itself a mount namespace of its own. Nothing that it mounts is
seen outside, and all of it is undone by the kernel when the last process in the namespace ends,
however it ends. So there is no clean-up that a SIGKILL could skip. Mounts and unmounts of the host
still arrive here (the namespace is a slave of the host's): we never hold on to a disk that somebody
else wants to take out.

unshare(2) changes the calling thread only: the threads that are started after it, and the children
that this thread forks, live in the new namespace too, and the others do not.

Not covered: systems other than Linux (:func:`enter_private_namespace` fails there, by name).
"""

import ctypes
import os
import sys

_CLONE_NEWNS = 0x00020000
_MS_NOSUID = 0x2
_MS_NODEV = 0x4
_MS_REC = 0x4000
_MS_SLAVE = 0x80000
_MNT_DETACH = 0x2

_private: set[str] = set()  # the namespaces (as /proc names them) that this program made


def _libc() -> ctypes.CDLL:
    if sys.platform != "linux":
        raise OSError(f"mounting needs Linux, this is {sys.platform}")
    return ctypes.CDLL(None, use_errno=True)


def _raise_if(failed: bool, what: str) -> None:
    if failed:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def enter_private_namespace() -> None:
    """Give this thread a private mount namespace, unless it is in one already. Needs root."""
    libc = _libc()
    if os.readlink("/proc/thread-self/ns/mnt") in _private:
        return
    _raise_if(libc.unshare(_CLONE_NEWNS) != 0, "unshare(CLONE_NEWNS), a private mount namespace")
    _mount(b"none", b"/", b"", _MS_REC | _MS_SLAVE, b"")
    _private.add(os.readlink("/proc/thread-self/ns/mnt"))


def _mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes) -> None:
    libc = _libc()
    libc.mount.argtypes = [ctypes.c_char_p] * 3 + [ctypes.c_ulong, ctypes.c_char_p]
    failed = libc.mount(source, target, kind, flags, data) != 0
    words = f"mount {os.fsdecode(source)} on {os.fsdecode(target)} as {kind.decode()}"
    _raise_if(failed, f"{words} with options {data.decode() or 'none'}")


def mount(source: str, target: str, *, kind: str, options: str = "") -> None:
    """Mount ``source`` on the directory ``target``; ``options`` as in fstab, comma-separated."""
    flags = _MS_NOSUID | _MS_NODEV
    _mount(os.fsencode(source), os.fsencode(target), kind.encode(), flags, options.encode())


def unmount(target: str, *, detach: bool = False) -> None:
    """Unmount ``target``. ``detach``: take it out of sight now, undo it when the last user ends."""
    failed = _libc().umount2(os.fsencode(target), _MNT_DETACH if detach else 0) != 0
    _raise_if(failed, f"unmount {target}")
