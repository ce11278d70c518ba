"""Writing a large file once, front to back, past the page cache.

A checkpoint is written, synced and left alone. To copy it into the page cache takes a core about as
long as its sha256 does, and pushes out what the machine still needs. With ``O_DIRECT`` the disk
takes the bytes from a small buffer, and the cores are free for the hashes. That says nothing of
durability: the fsync is needed as ever.

``O_DIRECT`` wants memory, offsets and lengths in whole blocks. Bytes are gathered in an aligned
buffer, and the end of a file, which is no whole block, is written in the common way. So is all of
it where the file system has no ``O_DIRECT``, and the disk is then set to work early instead.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence
from itertools import chain

from tinyllm.durable import Bytes, doing, start_writeback, write_all

# Up to this size the page cache is as good.
SMALL_BYTES = 32 << 20
# More would not be faster, and this much lies in the caches of the processor.
CHUNK_BYTES = 2 << 20
# The largest logical block of a disk that is in use.
_BLOCK_BYTES = 4096
_O_DIRECT = getattr(os, "O_DIRECT", 0)


def write_stream(fd: int, batches: Iterable[Sequence[Bytes]], *, size_bytes: int, path: str) -> int:
    """Write all that is in ``batches`` to the new, empty file ``fd``, and return how much it was.

    ``size_bytes`` is what is expected, and decides how it is written. A batch may be changed as
    soon as the next one is asked for. StorageFailed names the file by ``path``.
    """
    if size_bytes > SMALL_BYTES:
        return _write_past_cache(fd, chain.from_iterable(batches), path=path)
    done = 0
    for batch in batches:
        write_all(fd, batch, path=path)
        done += sum(map(len, batch))
    return done


def _write_past_cache(fd: int, pieces: Iterable[Bytes], *, path: str) -> int:
    # An anonymous map begins at a page. It is not closed but let go: what an error on its way out
    # still refers to has views of it.
    buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))
    file = _File(fd, path)
    filled = 0
    for piece in pieces:
        rest = memoryview(piece)
        while len(rest):
            taken = min(len(rest), CHUNK_BYTES - filled)
            buffer[filled : filled + taken] = rest[:taken]
            filled, rest = filled + taken, rest[taken:]
            if filled == CHUNK_BYTES:
                file.write(buffer)
                filled = 0
    file.write(buffer[:filled])
    return file.size_bytes


class _File:
    """The file, and whether it is still written past the cache."""

    def __init__(self, fd: int, path: str) -> None:
        self._fd, self._path = fd, path
        self.size_bytes = 0
        self._direct = _switched(fd, on=True)

    def write(self, data: memoryview) -> None:
        """Append ``data``, which begins at a page of memory; the rest of a block ends the file."""
        blocks = len(data) - len(data) % _BLOCK_BYTES
        done = 0
        while self._direct and done < blocks:
            with doing("write", self._path):
                written = _write_blocks(self._fd, data[done:blocks])
            done += written
            if written % _BLOCK_BYTES or not written:
                self._give_up()
        if done < len(data):
            if self._direct:
                self._give_up()
            rest = data[done:]
            write_all(self._fd, [rest], path=self._path)
            start_writeback(self._fd, offset_bytes=self.size_bytes + done, size_bytes=len(rest))
        self.size_bytes += len(data)

    def _give_up(self) -> None:
        _switched(self._fd, on=False)
        self._direct = False


def _write_blocks(fd: int, blocks: memoryview) -> int:
    """How much was written; nothing when the file system takes no such write after all."""
    try:
        return os.write(fd, blocks)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return 0


def _switched(fd: int, *, on: bool) -> bool:
    """Switch ``O_DIRECT`` on or off; whether that was possible."""
    if not _O_DIRECT:
        return False
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return False
    return True
