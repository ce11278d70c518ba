"""What can go wrong in tinyllm, one class an exit code.

Every message says what, where, and what to do; the command line prints it after ``tinyllm:`` and
ends with ``exit_code``. A violation of our own logic is an ``assert`` or a ``ValueError`` and ends
with a traceback, on purpose.
"""

import errno as errno_module
import os


class TinyllmError(Exception):
    """The base: caught in one place, by the command line."""

    exit_code = 1


class SpecError(TinyllmError):
    """The command line or the train spec is wrong."""

    exit_code = 2


class ResumeRefused(TinyllmError):
    """There is something to resume from, but going on from it would not be right."""

    exit_code = 2


class LockHeld(TinyllmError):
    """Another process works on the same run."""

    exit_code = 3


class NothingToResume(TinyllmError):
    """Step directories are there, and none of them verifies."""

    exit_code = 4


class StorageFailed(TinyllmError):
    """The disk did not do what was asked. ``path`` names the file; ``errno`` is 0 if unknown."""

    exit_code = 5

    def __init__(self, path: str, reason: str, *, errno: int = 0) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason
        self.errno = errno


class ReleaseRefused(TinyllmError):
    """The release gate found something missing, unverified or not allowed."""

    exit_code = 6


class ModelUnusable(TinyllmError):
    """A directory does not verify, or what is in it is not a model that can be run."""

    exit_code = 8


def storage_failed(path: str, action: str, error: OSError) -> StorageFailed:
    """``error`` as a :class:`StorageFailed`: "<path>: cannot <action>: No space left (ENOSPC)"."""
    number = error.errno or 0
    name = errno_module.errorcode.get(number, "no errno")
    text = os.strerror(number) if number else str(error)
    return StorageFailed(path, f"cannot {action}: {text} ({name})", errno=number)
