"""Bytes that a program copies to its output inside the kernel, read without taking them away."""

import os
import stat

from fault_injection.procfs import fd_info, fd_status
from fault_injection.requests import Request
from fault_injection.seccomp import duplicate_fd, tee

LIMIT_BYTES = 1 << 20


def copied_bytes(request: Request) -> bytes:
    """What sendfile, splice or tee is about to write to an output; ``request.fd`` is its source.

    Of a file, from the source's position on; of a pipe, what lies in it now (a copy that waits for
    more shows only that). Raises OSError when the source cannot be read.
    """
    status = fd_status(request.tid, request.fd)
    size = min(request.size, LIMIT_BYTES)
    if status is None:
        return b""
    source = duplicate_fd(request.tid, request.fd)
    try:
        if stat.S_ISREG(status.st_mode):
            info = fd_info(request.tid, request.fd)
            at = request.offset if request.offset >= 0 or info is None else info.position
            return os.pread(source, size, at)
        if not stat.S_ISFIFO(status.st_mode):
            return b""
        reading, writing = os.pipe()
        try:
            return os.read(reading, size) if tee(source, writing, size) > 0 else b""
        finally:
            os.close(reading)
            os.close(writing)
    finally:
        os.close(source)
