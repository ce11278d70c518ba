"""Our JSON files: written for anyone, read as if from a stranger.

What is read may have been sent by somebody: only regular files of bounded size are opened, no
symlink is followed and no FIFO waited for, and the content is checked against its struct. A file
name that is no UTF-8 is written with its bytes escaped, since JSON cannot hold them.
"""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from harness.errors import UsageError
from harness.report.clean import encodable

LIMIT_BYTES = 1 << 30

_T = TypeVar("_T")


def read_regular(path: Path, *, limit_bytes: int = LIMIT_BYTES, follow: bool = False) -> bytes:
    """A regular file's bytes. Raises UsageError, naming the file.

    ``follow`` symlinks where the user has named the file, not where a bundle or a result has it.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{path} is not a regular file")
        if status.st_size > limit_bytes:
            raise UsageError(f"{path} has {status.st_size:,} bytes, more than {limit_bytes:,}")
        # As many as there are: a read makes room for all that it is asked for.
        return file.read(status.st_size)


def read_json(path: Path, kind: type[_T], *, limit_bytes: int = LIMIT_BYTES) -> _T:
    """A JSON file as a ``kind``. Raises UsageError, naming the file and what does not fit."""
    return decode(read_regular(path, limit_bytes=limit_bytes), kind, said=str(path))


def decode(data: bytes, kind: type[_T], *, said: str) -> _T:
    """JSON text as a ``kind``; ``said`` names it in the UsageError that is raised otherwise."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{said} does not hold what it should: {error}") from error


def encode(value: object) -> bytes:
    """JSON on one line."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(value)))


def encode_pretty(value: object) -> bytes:
    """JSON on many lines, ended by a newline."""
    return msgspec.json.format(encode(value), indent=1) + b"\n"


def _encodable(value: Any) -> Any:
    if isinstance(value, str):
        return encodable(value)
    if isinstance(value, Mapping):
        return {_encodable(k): _encodable(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encodable(item) for item in value]
    return value
