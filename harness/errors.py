"""What ends a command without a verdict about the subject, and with which exit code."""

import errno
import os


class HarnessError(Exception):
    """A sentence for the user: what is wrong, where, and what to do. ``exit_code`` is 2 or 3."""

    exit_code = 2


class UsageError(HarnessError):
    """The command, the subject file or the configuration is wrong."""

    exit_code = 2


class CannotJudge(HarnessError):
    """The harness ran and could not judge: the reason is a property of the subject or the host."""

    exit_code = 3


def is_full(error: OSError) -> bool:
    """Whether it is about a disk, or a quota, that is full.

    ``shutil`` gathers what went wrong in a tree, as text.
    """
    full = (errno.ENOSPC, errno.EDQUOT)
    if error.errno is None and error.args:
        return any(os.strerror(number) in str(error.args[0]) for number in full)
    return error.errno in full


def no_room(error: OSError) -> CannotJudge | None:
    """The same as a reason why nothing can be said, when a disk (or a quota) is full."""
    if not is_full(error):
        return None
    where = f" for {error.filename}" if error.filename else ""
    return CannotJudge(
        f"no space left on the device{where}. Scratch trees and recordings lie in memory "
        "(/dev/shm) or where TMPDIR says; make room there, or set DURABILITY_RUNTIME_DIR to a "
        "directory that has it"
    )
