"""One trainer a run: an flock on ``<run>/lock``.

The kernel drops the lock when its holder dies, however it dies, so the file that a killed run
leaves behind is no obstacle and never needs cleaning.

Not covered: two machines on a network file system without lock support (that is reported).
"""

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinyllm.durable import doing
from tinyllm.errors import LockHeld, StorageFailed

LOCK_NAME = "lock"


@contextmanager
def run_lock(run_dir: Path) -> Iterator[None]:
    """Hold the lock of an existing run directory; LockHeld when another process has it."""
    path = os.path.join(run_dir, LOCK_NAME)
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with doing("open the lock", path):
        fd = os.open(path, flags, 0o666)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise StorageFailed(path, "is not a regular file: move it out of the way")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise StorageFailed(path, f"cannot be locked: {error.strerror}") from error
            raise LockHeld(
                f"{path}: held by {_holder(status)}: this run is being trained already; "
                "wait for it to end, or stop it"
            ) from error
        yield
    finally:
        os.close(fd)


def _holder(status: os.stat_result) -> str:
    """Who holds the lock, as far as /proc/locks tells."""
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    try:
        with open("/proc/locks", encoding="ascii") as locks:
            for line in locks:
                fields = line.split()
                if len(fields) > 5 and fields[1] == "FLOCK" and fields[5] == device:
                    return f"process {fields[4]}"
    except OSError:
        pass
    return "another process"
