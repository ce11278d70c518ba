"""What an unsupervised attempt wrote to the watched files: found by looking before and after.

Without supervision nobody sees the writes themselves. What a file holds in the end beyond what it
held before is taken as written at the end; a file that was changed in its old part is taken whole.
"""

import os
import stat
from collections.abc import Mapping

from fault_injection.settings import Settings


def look(settings: Settings) -> dict[str, bytes]:
    """The beginning of each watched file, at most ``output_limit_bytes``; absent: no bytes."""
    limit = settings.output_limit_bytes
    return {path: _read(os.path.join(settings.root, path), 0, limit) for path in settings.watch}


def since(settings: Settings, before: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    """(path, bytes) of what was added since ``before``, one byte more than the limit if cut."""
    found: list[tuple[str, bytes]] = []
    for name, old in before.items():
        path = os.path.join(settings.root, name)
        now = _read(path, 0, len(old))
        new = _read(path, len(old) if now == old else 0, settings.output_limit_bytes + 1)
        if new:
            found.append((name, new))
    return found


def _read(path: str, offset: int, size_bytes: int) -> bytes:
    """Bytes of a regular file; none when it is anything else. Never waits for a FIFO's writer."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            return b""
        parts: list[bytes] = []
        while size_bytes > 0 and (part := os.pread(fd, min(size_bytes, 1 << 20), offset)):
            parts.append(part)
            offset += len(part)
            size_bytes -= len(part)
        return b"".join(parts)
    finally:
        os.close(fd)
