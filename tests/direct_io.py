"""``O_DIRECT`` on any file system: whether it is on is kept here, and its rules are held."""

import ctypes
import errno
import fcntl
import os

import pytest

BLOCK_BYTES = 4096


class DirectIo:
    """Takes the flag from ``fcntl``. A write to a file that has it must ask :meth:`is_on` first."""

    def __init__(self, patch: pytest.MonkeyPatch, *, known: bool = True) -> None:
        """``known``: whether the file system knows the flag."""
        self._known = known
        self._on: set[int] = set()
        self._real = fcntl.fcntl
        patch.setattr(fcntl, "fcntl", self._fcntl)

    def _fcntl(self, fd: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_GETFL:
            return self._real(fd, command) | (os.O_DIRECT if fd in self._on else 0)
        if command == fcntl.F_SETFL:
            if value & os.O_DIRECT and not self._known:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            (self._on.add if value & os.O_DIRECT else self._on.discard)(fd)
            value &= ~os.O_DIRECT
        return self._real(fd, command, value)

    def is_on(self, fd: int, data: memoryview) -> bool:
        """Whether ``data`` goes past the cache; OSError EINVAL where it is not laid out for it."""
        if fd not in self._on:
            return False
        address = ctypes.addressof(ctypes.c_char.from_buffer(data))
        if address % BLOCK_BYTES or len(data) % BLOCK_BYTES:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        return True
