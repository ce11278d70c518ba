"""Opening files that may be anything: nothing is followed, waited for, or read without a bound.

``O_NOFOLLOW`` refuses a symbolic link, ``O_NONBLOCK`` keeps a FIFO without a writer from hanging
us, fstat on the open descriptor (not on the name) then refuses everything but a regular file.
"""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from tinyllm.durable import Directory

OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

_KINDS = (
    (stat.S_ISDIR, "is a directory, not a file"),
    (stat.S_ISFIFO, "is a FIFO, not a file"),
    (stat.S_ISSOCK, "is a socket, not a file"),
    (stat.S_ISCHR, "is a device, not a file"),
    (stat.S_ISBLK, "is a device, not a file"),
)


class Unreadable(Exception):
    """Why a file cannot be read. ``errno`` is 0 when no call failed."""

    def __init__(self, reason: str, *, errno: int = 0) -> None:
        super().__init__(reason)
        self.reason = reason
        self.errno = errno


def unreadable(error: OSError) -> Unreadable:
    """``error`` in words."""
    number = error.errno or 0
    words = {
        errno.ENOENT: "is missing",
        errno.ELOOP: "is a symbolic link, which is not followed",
        errno.ENOTDIR: "is not a directory",
        errno.ENXIO: "is a socket or a device, not a file",
    }
    name = errno.errorcode.get(number, "no errno")
    return Unreadable(
        words.get(number, f"cannot be read: {os.strerror(number)} ({name})"), errno=number
    )


@contextmanager
def opened(directory: Directory, name: str) -> Iterator[tuple[int, int]]:
    """The descriptor and size in bytes of a regular file; Unreadable says why it is not one."""
    fd, size = open_regular(directory, name)
    try:
        yield fd, size
    finally:
        os.close(fd)


def open_regular(directory: Directory, name: str) -> tuple[int, int]:
    """As :func:`opened`, for the caller to close. ``name`` may be ``<subdirectory>/<file>``."""
    try:
        fd = _open_below(directory, name)
    except OSError as error:
        raise unreadable(error) from error
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode):
        os.close(fd)
        reasons = [words for test, words in _KINDS if test(status.st_mode)]
        raise Unreadable(reasons[0] if reasons else "is not a regular file")
    return fd, status.st_size


def _open_below(directory: Directory, name: str) -> int:
    above, slash, last = name.rpartition("/")
    if not slash:
        return os.open(name, OPEN_FILE, dir_fd=directory.fd)
    middle = os.open(above, OPEN_DIRECTORY, dir_fd=directory.fd)
    try:
        return os.open(last, OPEN_FILE, dir_fd=middle)
    finally:
        os.close(middle)


def read_exactly(fd: int, size_bytes: int) -> bytes:
    """``size_bytes`` from the start of ``fd``, fewer where the file ends; or Unreadable."""
    parts: list[bytes] = []
    done = 0
    try:
        while done < size_bytes:
            part = os.pread(fd, size_bytes - done, done)
            if not part:
                break
            parts.append(part)
            done += len(part)
    except OSError as error:
        raise unreadable(error) from error
    return b"".join(parts)


def read_bounded(directory: Directory, name: str, *, limit_bytes: int) -> bytes:
    """The whole of a regular file of at most ``limit_bytes``, else Unreadable."""
    with opened(directory, name) as (fd, size):
        if size > limit_bytes:
            raise Unreadable(f"is {size} bytes long; at most {limit_bytes} are read")
        return read_exactly(fd, size)
