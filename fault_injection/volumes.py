"""Real ext4, xfs and btrfs file systems that lose their power when told to.

A volume is a file system on a loop device whose backing file lies in a tmpfs, all of it inside a
private mount namespace (:mod:`fault_injection.mounts`): when this process dies, the kernel takes
everything back. tmpfs was chosen by measurement: one cycle (copy the prepared image, mount, write
and fsync six files, cut, mount again) takes 9 ms for ext4, 27 ms for xfs and 12 ms for btrfs, on
a disk with its real flushes 15, 31 and 19 ms.

Power is lost in one of two ways. ext4 and xfs take the ioctl FS_IOC_SHUTDOWN without a log flush:
from that instant nothing reaches the device. btrfs refuses it; there the backing file is copied
while the file system is mounted, and the copy is what is mounted afterwards. The copy is accepted
only when the loop device completed no write meanwhile and had none in flight.

A cut shows what was *forced* so far. What the file system may have written by itself a moment later
is seen by a cut with ``committed=True``, which first makes it commit: an fsync of an unrelated file
(ext4, xfs), or the start of a transaction's commit without its data (btrfs, where such an fsync
commits nothing else). The timers of ext4 and btrfs that would commit by themselves are set to
300 s, so that a cut does not depend on how fast the machine is.

Not covered: losing what the device had acknowledged and not flushed (the loop device loses nothing
it acknowledged), a torn sector, ext4's fast_commit, more than one device.
"""

import contextlib
import errno
import fcntl
import functools
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fault_injection import leftovers, loopdev, mounts
from fault_injection.filesystems import (
    FILE_SYSTEMS,
    KINDS,
    VolumeError,
    copy_sparse,
    make_image,
    mkfs_missing,
    mkfs_program,
)

_FS_IOC_SHUTDOWN = 0x8004587D
_SHUTDOWN_WITHOUT_LOG_FLUSH = struct.pack("=I", 2)
_BTRFS_IOC_START_SYNC = 0x80089418
_BTRFS_IOC_WAIT_SYNC = 0x40089416
_TRIAL_TIMEOUT_S = 60.0
_UNMOUNT_ATTEMPTS = 100
_UNMOUNT_PAUSE_S = 0.01
_COPY_ATTEMPTS = 50


@dataclass(frozen=True, slots=True)
class Image:
    """A prepared file system, kept by :meth:`Volume.keep`; valid while its volume is open."""

    file_system: str
    path: str


class Volume:
    """A mounted file system. ``path`` is an empty directory in it when the volume is new."""

    def __init__(self, file_system: str, options: Sequence[str], directory: str) -> None:
        self.file_system = file_system
        self.path = os.path.join(directory, "mnt", "tree")
        self._kind = KINDS[file_system]
        self._options = ",".join((*self._kind.mount, *options))
        self._mount_point = os.path.join(directory, "mnt")
        self._backing = os.path.join(directory, "disk")
        self._copy = os.path.join(directory, "disk.crashed")
        self._images = os.path.join(directory, "image-")
        self._image_count = 0
        self._mounted_from = ""  # the loop device, or "" when not mounted

    def cut(self, *, committed: bool = False) -> None:
        """Lose power now. ``committed``: after making the file system commit by itself.

        What is open stays open and fails (ext4, xfs) or goes on in vain (btrfs); nothing that is
        done from here on survives. End the program, then :meth:`remount`.
        """
        if not self._mounted_from:
            raise VolumeError(f"{self.file_system} at {self._mount_point}: not mounted, no cut")
        if committed:
            self._commit()
        if self._kind.shuts_down:
            _ioctl(self._mount_point, _FS_IOC_SHUTDOWN, _SHUTDOWN_WITHOUT_LOG_FLUSH)
        else:
            self._copy_at_one_instant()

    def remount(self) -> None:
        """Mount what the disk holds; after a cut, that is what survived it."""
        self._unmount()
        if os.path.exists(self._copy):
            os.replace(self._copy, self._backing)
        self._mount()

    def keep(self) -> Image:
        """Keep the tree as it is, all of it durable, for :meth:`reset`. Remounts the volume."""
        self._unmount()
        self._image_count += 1
        image = Image(self.file_system, f"{self._images}{self._image_count}")
        copy_sparse(self._backing, image.path)
        self._mount()
        return image

    def reset(self, image: Image) -> None:
        """Forget everything, also a cut, and mount ``image`` as it was kept."""
        self._unmount()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._copy)
        copy_sparse(image.path, self._backing)
        self._mount()

    def _commit(self) -> None:
        if self._kind.shuts_down:
            descriptor = os.open(
                os.path.join(self._mount_point, "unrelated"),
                os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC,
                0o600,
            )
            try:
                os.write(descriptor, b"unrelated\n")
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        else:
            transaction = _ioctl(self._mount_point, _BTRFS_IOC_START_SYNC, bytes(8))
            _ioctl(self._mount_point, _BTRFS_IOC_WAIT_SYNC, transaction)

    def _copy_at_one_instant(self) -> None:
        for _ in range(_COPY_ATTEMPTS):
            before = _writes(self._mounted_from)
            copy_sparse(self._backing, self._copy)
            if before == _writes(self._mounted_from) and before[-1] == "0":
                return
        raise VolumeError(
            f"{self._mounted_from}: written to during each of {_COPY_ATTEMPTS} copies;"
            " is another process using the volume?"
        )

    def _mount(self) -> None:
        descriptor = os.open(self._backing, os.O_RDWR | os.O_CLOEXEC)
        try:
            with loopdev.attached(descriptor, name=self._backing) as device:
                mounts.mount(
                    device, self._mount_point, kind=self.file_system, options=self._options
                )
                self._mounted_from = device
        finally:
            os.close(descriptor)

    def _unmount(self, *, at_any_price: bool = False) -> None:
        if not self._mounted_from:
            return
        for _ in range(_UNMOUNT_ATTEMPTS):
            try:
                mounts.unmount(self._mount_point)
                self._mounted_from = ""
                return
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
                if at_any_price:
                    break
                # A killed process may be reaped a moment before its files are closed.
                time.sleep(_UNMOUNT_PAUSE_S)
        if at_any_price:
            mounts.unmount(self._mount_point, detach=True)
            self._mounted_from = ""
            return
        users = ", ".join(_users_of(self._mount_point)) or "none found"
        raise VolumeError(f"{self._mount_point} is still in use; processes: {users}")


@contextlib.contextmanager
def volume(
    file_system: str, *, options: Sequence[str] = (), size_bytes: int = 0
) -> Iterator[Volume]:
    """A new file system ("ext4", "xfs", "btrfs"), mounted for this thread and its children.

    ``options`` (ext4 only): "data=ordered" (its default), "data=writeback", "data=journal",
    "nodelalloc", "noauto_da_alloc". ``size_bytes``: 0 is the default of the file system; only what
    is written takes memory. Raises VolumeError, ValueError for unknown names.
    """
    kind = KINDS.get(file_system)
    if kind is None:
        raise ValueError(f"{file_system!r} is none of {', '.join(FILE_SYSTEMS)}")
    if unknown := sorted(set(options) - kind.options):
        known = ", ".join(sorted(kind.options)) or "none"
        raise ValueError(f"{file_system} has no option {unknown[0]!r} here; known: {known}")
    with contextlib.ExitStack() as stack:
        try:
            mounts.enter_private_namespace()
            directory = stack.enter_context(leftovers.workspace())
            source = leftovers.MOUNT_SOURCE_PREFIX + leftovers.this_process().name
            mounts.mount(source, directory, kind="tmpfs", options="mode=700")
            stack.callback(mounts.unmount, directory, detach=True)
            made = Volume(file_system, options, directory)
            os.mkdir(made._mount_point)
            make_image(file_system, made._backing, size_bytes=size_bytes)
            stack.callback(made._unmount, at_any_price=True)
            made._mount()
            os.mkdir(made.path)
            made.remount()
        except OSError as error:
            raise VolumeError(f"{file_system}: {error}") from error
        yield made


def _ioctl(directory: str, request: int, argument: bytes) -> bytes:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return fcntl.ioctl(descriptor, request, argument)
    finally:
        os.close(descriptor)


def _writes(device: str) -> tuple[str, str, str]:
    """(write requests completed, flush requests completed, requests in flight) of a device."""
    with open(f"/sys/block/{os.path.basename(device)}/stat", encoding="ascii") as file:
        fields = file.read().split()
    return fields[4], fields[15] if len(fields) > 15 else "0", fields[8]


def _users_of(mount_point: str) -> list[str]:
    """The pids that hold something open below ``mount_point``."""
    users = []
    for pid in sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit()):
        links = [f"/proc/{pid}/cwd", f"/proc/{pid}/root"]
        with contextlib.suppress(OSError):
            links += [f"/proc/{pid}/fd/{number}" for number in os.listdir(f"/proc/{pid}/fd")]
        for link in links:
            with contextlib.suppress(OSError):
                if os.readlink(link).startswith(mount_point + "/"):
                    users.append(str(pid))
                    break
    return users


@functools.cache
def unavailable(file_system: str) -> str | None:
    """Why no volume of ``file_system`` can be had here, in words; None when it was seen to work.

    When nothing obvious is missing it is tried, in a process of its own (about 0.2 s, once).
    """
    if sys.platform != "linux":
        return f"needs Linux, this is {sys.platform}"
    if os.geteuid() != 0:
        return "needs root"
    if (reason := loopdev.unavailable()) is not None:
        return reason
    if mkfs_program(file_system) is None:
        return mkfs_missing(file_system)
    package_parent = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    search = os.pathsep.join(filter(None, (package_parent, os.environ.get("PYTHONPATH"))))
    try:
        tried = subprocess.run(
            [sys.executable, "-m", "fault_injection.volumes", file_system],
            env={**os.environ, "PYTHONPATH": search},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_TRIAL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"the trial of {file_system} did not end within {_TRIAL_TIMEOUT_S} s"
    try:
        reason = json.loads(tried.stdout)
    except ValueError:
        reason = (
            f"the trial of {file_system} ended with {tried.returncode}: {tried.stderr[-500:]!r}"
        )
    return None if reason is None else str(reason)


def _trial(file_system: str) -> str | None:
    """Write, cut, mount again: None when that did what it must."""
    try:
        with volume(file_system) as tried:
            durable = os.path.join(tried.path, "durable")
            with open(durable, "wb") as file:
                file.write(b"x")
                os.fsync(file.fileno())
            _sync_directory(tried.path)
            with open(os.path.join(tried.path, "pending"), "wb") as file:
                file.write(b"x")
            tried.cut()
            tried.remount()
            left = sorted(os.listdir(tried.path))
    except (VolumeError, OSError) as error:
        return str(error)
    return None if left == ["durable"] else f"{file_system}: a cut left {left}, not ['durable']"


def _sync_directory(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


if __name__ == "__main__":
    print(json.dumps(_trial(sys.argv[1])))
