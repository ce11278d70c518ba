"""What ends a command without a verdict about the subject, and with which exit code."""

import errno


class HarnessError(Exception):
    """A sentence for the user: what is wrong, where, and what to do. ``exit_code`` is 2 or 3."""

    exit_code = 2


class UsageError(HarnessError):
    """The command, the subject file or the configuration is wrong."""

    exit_code = 2


class CannotJudge(HarnessError):
    """The harness ran and could not judge: the reason is a property of the subject or the host."""

    exit_code = 3


def no_room(error: OSError) -> CannotJudge | None:
    """The same as a reason why nothing can be said, when a disk (or a quota) is full."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return None
    where = f" for {error.filename}" if error.filename else ""
    return CannotJudge(
        f"no space left on the device{where}. Scratch trees and recordings lie in memory "
        "(/dev/shm) or where TMPDIR says; make room there, or set DURABILITY_RUNTIME_DIR to a "
        "directory that has it"
    )
