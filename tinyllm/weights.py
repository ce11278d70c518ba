"""Reading the weights of a checkpoint once, front to back, through an open descriptor.

What is handed out are copies of our own, hashed and looked at as they are read: the digest is of
the very bytes that a release was made from, whatever happens to the file meanwhile, and a value
that is not finite is noted with its tensor. Memory is a few pieces, however large the file.

The header is parsed here because the library does not tell where in the file a tensor lies.
Only what a checkpoint holds is read: F32 tensors without gaps.
"""

import math
import os
from bisect import bisect_right
from dataclasses import dataclass

import msgspec
import numpy as np

from tinyllm.documents import decode_strictly
from tinyllm.errors import storage_failed
from tinyllm.hashing import HashBeside
from tinyllm.quantize import Floats
from tinyllm.tensors import MAX_HEADER_BYTES, PIECE_BYTES

FLOAT_BYTES = 4
_LAG = 3


class WeightsUnusable(Exception):
    """What was read cannot be released; the text says why."""


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """A tensor, and where its data begin, in bytes after the header."""

    name: str
    shape: tuple[int, ...]
    offset_bytes: int

    @property
    def count(self) -> int:
        """How many elements it has."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class WeightsLayout:
    """A safetensors file of F32 tensors: its size, where the data begin, the tensors in order."""

    size_bytes: int
    header_bytes: int
    tensors: tuple[TensorPlace, ...]

    @property
    def data_bytes(self) -> int:
        """What the tensors take."""
        return self.size_bytes - self.header_bytes


def read_layout(fd: int, *, size_bytes: int) -> WeightsLayout:
    """Parse the header; ValueError when the file is not F32 tensors without gaps."""
    start = os.pread(fd, 8, 0)
    length = int.from_bytes(start, "little")
    if len(start) < 8 or length > min(MAX_HEADER_BYTES, size_bytes - 8):
        raise ValueError("is not a safetensors file: its header does not fit")
    document = decode_strictly(os.pread(fd, length, 8), dict[str, msgspec.Raw])
    document.pop("__metadata__", None)
    entries = {name: decode_strictly(bytes(raw), _Entry) for name, raw in document.items()}
    tensors = []
    end = 0
    for name, entry in sorted(entries.items(), key=lambda item: (item[1].data_offsets, item[0])):
        if entry.dtype != "F32":
            raise ValueError(f"{name} is {entry.dtype}; the parameters of a checkpoint are F32")
        place = TensorPlace(name, entry.shape, end)
        if min(entry.shape, default=0) < 0:
            raise ValueError(f"{name} has a negative size")
        if entry.data_offsets != (end, end + FLOAT_BYTES * place.count):
            raise ValueError(f"{name} does not lie where its neighbours and its shape say")
        end = entry.data_offsets[1]
        tensors.append(place)
    if 8 + length + end != size_bytes:
        raise ValueError(f"is {size_bytes} bytes long, its header says {8 + length + end}")
    return WeightsLayout(size_bytes=size_bytes, header_bytes=8 + length, tensors=tuple(tensors))


class WeightsReader:
    """Reads a weights file from its first byte to its last, in pieces that the caller asks for.

    A piece is valid until four more were taken. ``nonfinite`` grows while reading: for each tensor
    that holds something else than numbers, its first such element and the value.
    """

    def __init__(self, fd: int, layout: WeightsLayout, *, path: str) -> None:
        self.layout = layout
        self.nonfinite: dict[str, tuple[int, float]] = {}
        self._fd = fd
        self._path = path
        self._done = 0
        self._starts = [place.offset_bytes for place in layout.tensors if place.count]
        self._tensors = [place for place in layout.tensors if place.count]
        self._buffers: list[bytearray] = [bytearray() for _ in range(_LAG + 1)]
        self._turn = 0
        self._beside = HashBeside(size_bytes=layout.size_bytes, lag=_LAG)

    def __enter__(self) -> "WeightsReader":
        return self

    def __exit__(self, *_: object) -> None:
        self._beside.__exit__()

    @property
    def left_bytes(self) -> int:
        """What was not read yet."""
        return self.layout.size_bytes - self._done

    def header(self) -> memoryview:
        """The header's bytes; the first thing to be taken."""
        assert self._done == 0
        return self._next(self.layout.header_bytes)

    def floats(self, count: int) -> Floats:
        """The next ``count`` elements, at most, wherever tensors begin and end."""
        offset = self._done - self.layout.header_bytes
        count = min(count, self.left_bytes // FLOAT_BYTES)
        floats = np.frombuffer(self._next(count * FLOAT_BYTES), dtype="<f4")
        if not np.isfinite(floats).all():
            self._note(floats, offset)
        return floats

    def read_rest(self) -> None:
        """Read on to the end, for the digest and for ``nonfinite``."""
        if self._done == 0:
            self.header()
        while self.left_bytes:
            self.floats(PIECE_BYTES // FLOAT_BYTES)

    def hexdigest(self) -> str:
        """The sha256 of what was read."""
        return self._beside.hexdigest()

    def where(self, offset_bytes: int) -> tuple[str, int]:
        """The tensor and the element at an offset into the data."""
        place = self._tensors[bisect_right(self._starts, offset_bytes) - 1]
        return place.name, (offset_bytes - place.offset_bytes) // FLOAT_BYTES

    def _next(self, size_bytes: int) -> memoryview:
        buffer = self._buffers[self._turn]
        if len(buffer) < size_bytes:
            buffer = self._buffers[self._turn] = bytearray(size_bytes)
        self._turn = (self._turn + 1) % len(self._buffers)
        piece = memoryview(buffer)[:size_bytes]
        filled = 0
        while filled < size_bytes:
            try:
                got = os.preadv(self._fd, [piece[filled:]], self._done + filled)
            except OSError as error:
                raise storage_failed(self._path, "read", error) from error
            if got == 0:
                raise WeightsUnusable("was cut short while it was read")
            filled += got
        self._done += size_bytes
        self._beside.update([piece])
        return piece

    def _note(self, floats: Floats, offset_bytes: int) -> None:
        for index in np.flatnonzero(~np.isfinite(floats)):
            name, element = self.where(offset_bytes + FLOAT_BYTES * int(index))
            self.nonfinite.setdefault(name, (element, float(floats[index])))


def nonfinite_problems(reader: WeightsReader) -> list[str]:
    """A sentence for each tensor that holds a value that is not finite."""
    return [
        f"{name} is {value} at element {element}; weights must be finite"
        for name, (element, value) in sorted(reader.nonfinite.items())
    ]
