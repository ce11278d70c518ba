"""File content as a list of pieces of stored bytes, so that versions of a file share what is equal.

A piece is a stretch of a blob or a run of zeros. Applying an operation to a content gives another
content and copies no bytes; a checkpoint of a gigabyte that comes back in ten forms is ten short
lists. The digest of a content is that of its bytes, whatever pieces it is made of: sha256 of the
bytes up to :data:`CHUNK_BYTES`, above that sha256 of the sha256 of each chunk, so that forms which
differ in one place are hashed again only there. Bytes are read a chunk at a time.

Not covered: holes. A hole and written zeros are the same content.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from fault_injection.trace import Blobs, Kind, Operation

CHUNK_BYTES = 1 << 20
_CACHED_BLOB_BYTES = 256 << 10  # blobs up to this size are kept in memory ...
_CACHE_BYTES = 64 << 20  # ... up to this many bytes in all
_CACHED_CHUNKS = 100_000


class Piece(NamedTuple):
    """``size`` bytes from ``offset`` of blob ``key``; an empty key is zeros."""

    key: str
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds: its pieces in order, none empty, neighbours merged."""

    pieces: tuple[Piece, ...]
    size: int


EMPTY = Content((), 0)


def joined(pieces: Iterable[Piece]) -> Content:
    """A content of these pieces, in its one canonical form."""
    merged: list[Piece] = []
    size = 0
    for piece in pieces:
        if piece.size == 0:
            continue
        size += piece.size
        if merged:
            last = merged[-1]
            follows = last.key == piece.key and (
                not piece.key or last.offset + last.size == piece.offset
            )
            if follows:
                merged[-1] = Piece(last.key, last.offset, last.size + piece.size)
                continue
        merged.append(piece if piece.key else Piece("", 0, piece.size))
    return Content(tuple(merged), size)


def of_blob(key: str, size_bytes: int) -> Content:
    """The content that is exactly one blob."""
    return joined((Piece(key, 0, size_bytes),))


def zeros(size_bytes: int) -> Content:
    """``size_bytes`` zeros."""
    return joined((Piece("", 0, size_bytes),))


def cut(content: Content, start: int, end: int) -> tuple[Piece, ...]:
    """The pieces of bytes ``start`` to ``end``; what lies beyond the content is zeros."""
    taken: list[Piece] = []
    at = 0
    for piece in content.pieces:
        low, high = max(start, at), min(end, at + piece.size)
        if low < high:
            offset = piece.offset + low - at if piece.key else 0
            taken.append(Piece(piece.key, offset, high - low))
        at += piece.size
        if at >= end:
            break
    beyond = end - max(start, content.size)
    if beyond > 0:
        taken.append(Piece("", 0, beyond))
    return tuple(taken)


def resized(content: Content, size_bytes: int) -> Content:
    """Cut off, or grown with zeros, to ``size_bytes``."""
    if size_bytes == content.size:
        return content
    return joined(cut(content, 0, size_bytes))


def overwritten(content: Content, offset: int, other: Content) -> Content:
    """``other`` laid over ``content`` at ``offset``; a gap before it is zeros."""
    if other.size == 0:
        return content
    end = offset + other.size
    if offset == content.size:
        return joined((*content.pieces, *other.pieces))
    tail = cut(content, end, content.size) if end < content.size else ()
    return joined((*cut(content, 0, offset), *other.pieces, *tail))


def applied(content: Content, op: Operation) -> Content:
    """``content`` after one operation on it."""
    end = op.offset + op.size
    match op.kind:
        case Kind.WRITE:
            return overwritten(content, op.offset, of_blob(op.blob, op.size))
        case Kind.TRUNCATE:
            return resized(content, op.size)
        case Kind.ALLOCATE:
            return content if op.keep_size else resized(content, max(content.size, end))
        case Kind.PUNCH:
            stop = min(end, content.size) if op.keep_size else end
            return overwritten(content, op.offset, zeros(max(0, stop - op.offset)))
        case Kind.COLLAPSE:
            head, tail = cut(content, 0, op.offset), cut(content, end, content.size)
            return joined((*head, *tail))
        case Kind.INSERT:
            head = cut(content, 0, op.offset)
            tail = cut(content, op.offset, content.size)
            return joined((*head, Piece("", 0, op.size), *tail))
        case _:
            raise ValueError(f"operation #{op.index} ({op.kind}) does not change content")


class ContentStore:
    """Reads and names contents over the blobs of one trace. Caches are bounded."""

    def __init__(self, blobs: Blobs) -> None:
        self.blobs = blobs
        self._small: OrderedDict[str, bytes] = OrderedDict()
        self._small_bytes = 0
        self._chunks: OrderedDict[tuple[Piece, ...], bytes] = OrderedDict()
        self._digests: dict[Content, str] = {}

    def read(self, content: Content, start: int = 0, end: int = -1) -> bytes:
        """Bytes ``start`` to ``end`` (-1: to the end); zeros beyond the content are not given."""
        stop = content.size if end < 0 else min(end, content.size)
        if start >= stop:
            return b""
        return b"".join(self._piece(piece) for piece in cut(content, start, stop))

    def chunks(self, content: Content) -> Iterator[bytes]:
        """All bytes, at most :data:`CHUNK_BYTES` at a time."""
        for start in range(0, content.size, CHUNK_BYTES):
            yield self.read(content, start, start + CHUNK_BYTES)

    def digest(self, content: Content) -> str:
        """The name of these bytes: equal for equal bytes, however they came about."""
        known = self._digests.get(content)
        if known is None:
            known = self._digests[content] = self._digest(content)
        return known

    def _digest(self, content: Content) -> str:
        if content.size <= CHUNK_BYTES:
            return self._chunk_digest(content.pieces, content.size).hex()
        outer = hashlib.sha256()
        for start in range(0, content.size, CHUNK_BYTES):
            end = min(start + CHUNK_BYTES, content.size)
            outer.update(self._chunk_digest(cut(content, start, end), end - start))
        return outer.hexdigest()

    def _chunk_digest(self, pieces: tuple[Piece, ...], size: int) -> bytes:
        known = self._chunks.get(pieces)
        if known is None:
            known = hashlib.sha256(self.read(Content(pieces, size))).digest()
            self._chunks[pieces] = known
            if len(self._chunks) > _CACHED_CHUNKS:
                self._chunks.popitem(last=False)
        return known

    def _piece(self, piece: Piece) -> bytes:
        if not piece.key:
            return bytes(piece.size)
        whole = self._small.get(piece.key)
        if whole is None:
            if piece.offset + piece.size > _CACHED_BLOB_BYTES:
                return self.blobs.read(piece.key, piece.offset, piece.size)
            # The blob may go on after this piece; then only the head of it is kept.
            whole = self.blobs.read(piece.key, 0, _CACHED_BLOB_BYTES)
            self._small[piece.key] = whole
            self._small_bytes += len(whole)
            while self._small_bytes > _CACHE_BYTES:
                self._small_bytes -= len(self._small.popitem(last=False)[1])
        if piece.offset + piece.size > len(whole):
            return self.blobs.read(piece.key, piece.offset, piece.size)
        return whole[piece.offset : piece.offset + piece.size]


def digest_of_chunks(chunks: Iterable[bytes], size_bytes: int) -> str:
    """The digest of bytes given in chunks of :data:`CHUNK_BYTES` (the last one shorter)."""
    if size_bytes <= CHUNK_BYTES:
        return hashlib.sha256(b"".join(chunks)).hexdigest()
    outer = hashlib.sha256()
    for chunk in chunks:
        outer.update(hashlib.sha256(chunk).digest())
    return outer.hexdigest()
