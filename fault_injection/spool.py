"""Where recorded bytes go: a directory of blobs, equal content once, little of it in memory.

Small blobs are appended to one file, ``small.bin``, and found by an index in memory that is
written to ``small.json`` in the end. Large ones are files of their own, named by their sha256. Two
threads hash them, and copy them where that can wait, beside the recorded program. They live from
the first large blob to :meth:`Spool.flush`: nothing may fork in between.
"""

import contextlib
import ctypes
import fcntl
import hashlib
import json
import mmap
import os
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from fault_injection import seccomp

SMALL_BYTES = 1 << 16
CHUNK_BYTES = 1 << 20
# From here on a copy goes past the page cache, which the recorded program needs, and of which it
# would take as much as that does. (The buffer must be aligned to a page then.)
PAST_CACHE_BYTES = 4 << 20
_BLOCK_BYTES = 4096
_O_DIRECT = getattr(os, "O_DIRECT", 0)
_THREADS = 2
_SAMPLE_BYTES = 64  # of either end, by which blobs that may be equal are recognised
_WAITING = 256  # how many blobs the threads may lag behind before the recording waits for them


class Ticket:
    """Bytes given to a spool. ``key`` is their sha256, known after ``flush`` when they are many."""

    __slots__ = ("key", "size")

    def __init__(self, key: str, size: int) -> None:
        self.key = key
        self.size = size


@dataclass(slots=True)
class _Job:
    """Make a blob of a file that is ours (``path``), or of a piece of an open one (``source``)."""

    ticket: Ticket
    path: str
    source: int = -1
    offset: int = 0


class Spool:
    """Blobs of one trace in ``directory``; also reads them again (it is a ``trace.Blobs``)."""

    def __init__(self, directory: str, *, _reading: bool = False) -> None:
        """Makes the directory where it is not there; raises OSError when it cannot."""
        self._directory = directory
        self._blobs = os.path.join(directory, "blobs")
        self._reading = _reading
        self._small: dict[str, tuple[int, int]] = {}
        flags = os.O_RDONLY if _reading else os.O_RDWR | os.O_CREAT | os.O_APPEND
        if not _reading:
            os.makedirs(self._blobs, exist_ok=True)
            for name in os.listdir(self._blobs):
                if name.startswith("new-"):  # of a recording that was killed
                    os.unlink(os.path.join(self._blobs, name))
        self._file = os.open(os.path.join(directory, "small.bin"), flags | os.O_CLOEXEC, 0o600)
        self._end = os.fstat(self._file).st_size
        self._large = 0
        self._buffer: ctypes.Array[ctypes.c_char] | None = None
        self._queue: queue.Queue[_Job | None] = queue.Queue(_WAITING)
        self._threads: list[threading.Thread] = []
        self._samples: set[tuple[int, bytes, bytes]] = set()
        self._error: OSError | None = None

    @classmethod
    def open(cls, directory: str) -> Self:
        """A spool that was written before. Raises OSError or ValueError when it is not one."""
        if not os.path.isdir(os.path.join(directory, "blobs")):
            raise FileNotFoundError(f"{directory}: no recorded blobs here")
        spool = cls(directory, _reading=True)
        try:
            with open(os.path.join(directory, "small.json"), encoding="ascii") as file:
                index = json.load(file)
            spool._small = {str(key): (int(at), int(size)) for key, (at, size) in index.items()}
        except BaseException:
            spool.close()
            raise
        return spool

    # Writing.

    def add(self, data: bytes) -> Ticket:
        """Store bytes that are in memory."""
        if not data:
            return Ticket("", 0)
        if len(data) > SMALL_BYTES:
            path, fd = self._new_file()
            try:
                write_whole(fd, data)
            finally:
                os.close(fd)
            return self._later(_Job(Ticket("", len(data)), path))
        key = hashlib.sha256(data).hexdigest()
        if key not in self._small:
            write_whole(self._file, data)
            self._small[key] = (self._end, len(data))
            self._end += len(data)
        return Ticket(key, len(data))

    def add_memory(self, tid: int, vectors: Sequence[tuple[int, int]]) -> Ticket:
        """Store what lies at ``(address, size)`` pairs of a waiting thread's memory."""
        size = sum(length for _, length in vectors)
        if size <= SMALL_BYTES:
            return self.add(b"".join(seccomp.read_memory(tid, *vector) for vector in vectors))
        path, fd = self._new_file()
        buffer = self._chunk()
        stored = 0
        try:
            for address, length in vectors:
                while length > 0:
                    count = seccomp.read_memory_into(tid, address, buffer, min(length, CHUNK_BYTES))
                    if count == 0:
                        break
                    write_whole(fd, memoryview(buffer)[:count])
                    stored, address, length = stored + count, address + count, length - count
        finally:
            os.close(fd)
        return self._later(_Job(Ticket("", stored), path))

    def add_file(self, source: int, offset: int, size: int) -> Ticket:
        """Store ``size`` bytes from ``offset`` of an open file; fewer when it ends before."""
        if size <= SMALL_BYTES:
            return self.add(os.pread(source, max(size, 0), offset))
        path, fd = self._new_file()
        try:
            stored = _copy(source, offset, size, memoryview(self._chunk()), target=fd)
        finally:
            os.close(fd)
        return self._later(_Job(Ticket("", stored), path))

    def add_file_later(self, source: int, offset: int, size: int) -> Ticket:
        """As ``add_file``, by a thread, which closes ``source``; its bytes must stay so long."""
        if size <= SMALL_BYTES:
            try:
                return self.add_file(source, offset, size)
            finally:
                os.close(source)
        path, fd = self._new_file()
        os.close(fd)
        return self._later(_Job(Ticket("", size), path, source, offset))

    def prefix(self, ticket: Ticket, size: int) -> Ticket:
        """The first ``size`` bytes of what was stored before, as a blob of their own."""
        if size >= ticket.size:
            return ticket
        self.wait_for_hashes()
        if size <= SMALL_BYTES:
            return self.add(self.read(ticket.key, 0, size))
        source = os.open(self.path(ticket.key), os.O_RDONLY | os.O_CLOEXEC)
        try:
            return self.add_file(source, 0, size)
        finally:
            os.close(source)

    def flush(self) -> None:
        """Wait until every key is known, end the threads, write the index. May be called again."""
        self._end_threads()
        self._buffer = None
        if self._error is not None:
            raise self._error
        if self._reading:
            return
        path = os.path.join(self._directory, "small.json")
        with open(path, "w", encoding="ascii") as file:
            json.dump({key: list(at) for key, at in sorted(self._small.items())}, file)

    def close(self) -> None:
        """Give the descriptor back; the directory stays."""
        self._end_threads()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    # Reading.

    def is_at(self, directory: str) -> bool:
        """Whether this spool's blobs lie in ``directory``."""
        return os.path.isdir(directory) and os.path.samefile(directory, self._directory)

    def holds(self, key: str) -> bool:
        """Whether the blob is here."""
        return key in self._small or os.path.exists(os.path.join(self._blobs, key))

    def read(self, key: str, offset: int = 0, size: int = -1) -> bytes:
        """``size`` bytes of a blob from ``offset`` (-1: to the end). KeyError: no such blob."""
        if not key:
            return b""
        small = self._small.get(key)
        if small is not None:
            at, length = small
            left = max(0, length - offset)
            return os.pread(self._file, left if size < 0 else min(size, left), at + offset)
        try:
            with open(os.path.join(self._blobs, key), "rb", buffering=0) as file:
                file.seek(offset)
                return file.read(size)
        except FileNotFoundError:
            raise KeyError(key) from None

    def path(self, key: str) -> str:
        """A file that holds exactly this blob. KeyError: no such blob."""
        path = os.path.join(self._blobs, key or "empty")
        if os.path.exists(path):
            return path
        data = self.read(key)
        # Written beside and renamed: another process may ask for the same blob at the same time.
        part = f"{path}.{os.getpid()}"
        with open(part, "wb") as file:
            file.write(data)
        os.rename(part, path)
        return path

    # The threads.

    def _chunk(self) -> "ctypes.Array[ctypes.c_char]":
        if self._buffer is None:
            aligned = mmap.mmap(-1, CHUNK_BYTES)  # to a page
            self._buffer = (ctypes.c_char * CHUNK_BYTES).from_buffer(aligned)
        return self._buffer

    def _new_file(self) -> tuple[str, int]:
        self._large += 1
        path = os.path.join(self._blobs, f"new-{self._large}")
        return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)

    def _later(self, job: _Job) -> Ticket:
        if not self._threads:
            for number in range(_THREADS):
                thread = threading.Thread(target=self._work, name=f"blobs-{number}")
                thread.start()
                self._threads.append(thread)
        self._queue.put(job)
        return job.ticket

    def _end_threads(self) -> None:
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads = []

    def _work(self) -> None:
        buffer = memoryview(mmap.mmap(-1, CHUNK_BYTES))  # which begins at a page
        while (job := self._queue.get()) is not None:
            try:
                self._make_blob(job, buffer)
            except OSError as error:
                self._error = error
            self._queue.task_done()

    def _make_blob(self, job: _Job, buffer: memoryview) -> None:
        ticket = job.ticket
        if job.source < 0:
            with open(job.path, "rb", buffering=0) as file:
                ticket.key = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            try:
                if self._is_known(job, buffer):
                    os.unlink(job.path)
                    return
                digest = hashlib.sha256()
                with open(job.path, "wb", buffering=0) as file:
                    target = file.fileno()
                    ticket.size = _copy(
                        job.source, job.offset, ticket.size, buffer, target=target, digest=digest
                    )
                ticket.key = digest.hexdigest()
            finally:
                os.close(job.source)
        # Of equal blobs made at the same time the last stays: they are the same bytes.
        os.rename(job.path, os.path.join(self._blobs, ticket.key))

    def _is_known(self, job: _Job, buffer: memoryview) -> bool:
        """Whether the same bytes are stored already. They are read for that only if they may be."""
        ticket, last = job.ticket, job.offset + job.ticket.size - _SAMPLE_BYTES
        first = os.pread(job.source, _SAMPLE_BYTES, job.offset)
        sample = (ticket.size, first, os.pread(job.source, _SAMPLE_BYTES, last))
        if sample not in self._samples:
            self._samples.add(sample)
            return False
        digest = hashlib.sha256()
        size = _copy(job.source, job.offset, ticket.size, buffer, target=-1, digest=digest)
        if not os.path.exists(os.path.join(self._blobs, digest.hexdigest())):
            return False
        ticket.key, ticket.size = digest.hexdigest(), size
        return True

    def wait_for_hashes(self) -> None:
        """Wait until every key so far is known."""
        with contextlib.suppress(OSError):
            self._queue.join()


def _copy(
    source: int,
    offset: int,
    size: int,
    buffer: memoryview,
    *,
    target: int,
    digest: "hashlib._Hash | None" = None,
) -> int:
    """Copy a piece of an open file to ``target`` (-1: nowhere); how many bytes there were."""
    copied = 0
    past_cache = size >= PAST_CACHE_BYTES and target >= 0 and _switched(target, on=True)
    while copied < size:
        count = os.preadv(source, [buffer[: size - copied]], offset + copied)
        if count == 0:
            break
        if target >= 0:
            past_cache = past_cache and _written_past_cache(target, buffer[:count], copied)
            if not past_cache:
                write_whole(target, buffer[:count], offset=copied)
        if digest is not None:
            digest.update(buffer[:count])
        copied += count
    return copied


def _written_past_cache(target: int, data: memoryview, offset: int) -> bool:
    """Write ``data`` so, or switch back to the common way and say that it is to be written."""
    if len(data) % _BLOCK_BYTES == 0:
        with contextlib.suppress(OSError):  # one that lasts shows itself in the common way
            if os.pwrite(target, data, offset) == len(data):
                return True
    _switched(target, on=False)
    return False


def _switched(fd: int, *, on: bool) -> bool:
    """Switch ``O_DIRECT`` on or off; whether that was possible."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL)
    with contextlib.suppress(OSError):
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | _O_DIRECT if on else flags & ~_O_DIRECT)
        return _O_DIRECT != 0
    return False


def write_whole(fd: int, data: "bytes | memoryview", *, offset: int = -1) -> None:
    """Write all of ``data``, from ``offset`` where it is given; OSError where the disk is full."""
    view = memoryview(data)
    while view:
        count = os.write(fd, view) if offset < 0 else os.pwrite(fd, view, offset)
        view = view[count:]
        offset += count if offset >= 0 else 0
