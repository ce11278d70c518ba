"""sha256 beside the work: in other threads while writing, a file a core while verifying.

``hashlib`` releases the GIL, so on two cores the hash hides behind the disk. Small amounts are
hashed in line: a thread costs more than they do, and a forked child with no thread is simpler.
"""

import hashlib
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol, TypeVar

from tinyllm.durable import Bytes

T = TypeVar("T")

# Below this a thread costs more than the hash.
INLINE_BYTES = 4 << 20
_READ_BYTES = 1 << 20


class Hashing(Protocol):
    """How a file that is being written comes to its sha256."""

    def update(self, batch: Sequence[Bytes]) -> None:
        """These bytes were given to the file, after all those before."""

    def hexdigest(self) -> str:
        """The digest of them all."""


class HashAhead:
    """The sha256 of ``content`` that lies in memory already, found by ``pool`` as soon as it can.

    The writing need not have begun, so that a core is at work while an earlier file waits for the
    disk. ``content`` must not change until :meth:`hexdigest`; leaving the context ends the work.
    """

    def __init__(self, content: Iterable[Bytes], *, pool: ThreadPoolExecutor) -> None:
        self._content = content
        self._given_up = threading.Event()
        self._hashed = pool.submit(self._hash)

    def __enter__(self) -> "HashAhead":
        return self

    def __exit__(self, *_: object) -> None:
        self._given_up.set()
        self._hashed.cancel()

    def update(self, batch: Sequence[Bytes]) -> None:
        """Nothing: the content is known."""

    def hexdigest(self) -> str:
        """The digest, when all of the content has been hashed."""
        return self._hashed.result()

    def _hash(self) -> str:
        digest = hashlib.sha256()
        for piece in self._content:
            if self._given_up.is_set():
                break
            digest.update(piece)
        return digest.hexdigest()


class HashBeside:
    """A running sha256 of what is written, in a thread of its own when ``size_bytes`` is large.

    ``lag`` bounds how many updates may wait (0: no bound), for pieces that are copies and whose
    memory lives until they are hashed.
    """

    def __init__(self, *, size_bytes: int, lag: int = 0) -> None:
        self._digest = hashlib.sha256()
        self._lag = lag
        self._waiting: deque[Future[None]] = deque()
        self._pool = ThreadPoolExecutor(max_workers=1) if size_bytes > INLINE_BYTES else None

    def __enter__(self) -> "HashBeside":
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def update(self, batch: Sequence[Bytes]) -> None:
        """Add ``batch``; its memory must keep its content until :meth:`hexdigest` or ``lag``."""
        if self._pool is None:
            self._add(batch)
            return
        self._waiting.append(self._pool.submit(self._add, batch))
        while self._lag and len(self._waiting) > self._lag:
            self._waiting.popleft().result()

    def hexdigest(self) -> str:
        """Wait for all that was added, and give the digest."""
        while self._waiting:
            self._waiting.popleft().result()
        return self._digest.hexdigest()

    def _add(self, batch: Sequence[Bytes]) -> None:
        for piece in batch:
            self._digest.update(piece)


def hash_descriptor(fd: int, *, size_bytes: int) -> str:
    """sha256 (hex) of the first ``size_bytes`` of ``fd`` (of fewer where the file ends)."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(max(size_bytes, 1), _READ_BYTES)))
    done = 0
    while done < size_bytes:
        count = os.preadv(fd, [buffer[: size_bytes - done]], done)
        if count == 0:
            break
        digest.update(buffer[:count])
        done += count
    return digest.hexdigest()


def side_by_side(work: Iterable[Callable[[], T]], *, size_bytes: int) -> list[T]:
    """Do each piece of ``work``, in threads when they are about ``size_bytes`` that are large."""
    jobs = list(work)
    workers = min(len(jobs), os.cpu_count() or 1)
    if size_bytes <= INLINE_BYTES or workers < 2:
        return [job() for job in jobs]
    with ThreadPoolExecutor(max_workers=workers) as pool:
        return list(pool.map(lambda job: job(), jobs))
