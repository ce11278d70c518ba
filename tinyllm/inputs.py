"""Reading the files that a user names: the spec, the data, the tokenizer.

A path that a user wrote down may be anything. It is opened without waiting (a FIFO without a
writer would wait for ever), must turn out to be a regular file, and is read up to a limit.
Symbolic links are followed: unlike a path in a manifest, this one is the user's own word.
"""

import os
import stat
from pathlib import Path

from tinyllm.errors import SpecError


def read_input(path: Path, *, what: str, limit_bytes: int) -> bytes:
    """The whole of a regular file; SpecError names ``what`` it should have been and the path."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise SpecError(f"{what} {path} cannot be opened: {reason}") from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise SpecError(f"{what} {path} is not a regular file")
    with open(descriptor, "rb") as file:
        if status.st_size > limit_bytes:
            raise SpecError(
                f"{what} {path} has {status.st_size} bytes; at most {limit_bytes} are read"
            )
        try:
            # Room is made for as many bytes as are asked for, so not for the limit.
            content = file.read(status.st_size + 1)
        except OSError as error:
            raise SpecError(f"{what} {path} cannot be read: {error.strerror}") from None
    if len(content) > status.st_size:
        raise SpecError(f"{what} {path} grew while it was read")
    return content
