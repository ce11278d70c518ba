"""From a checkpoint's F32 weights to the bytes of a release: as they are, BF16, or int4.

One pass over the file, in its own order, in pieces: the shapes alone tell the new header, so it can
be written first. With int4 a matrix ``<name>`` becomes ``<name>.qweight`` (U8) and, right after it,
``<name>.scales`` (F32); what cannot be quantised becomes BF16. Where there are rows of whole groups
the width is even, and so is the number of elements of each tensor: every scale lies aligned.
Nothing is ever held back; beside a piece there are in memory only the scales of one matrix.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from tinyllm.card import TensorError
from tinyllm.durable import Bytes
from tinyllm.quantize import (
    Bits16,
    Floats,
    can_quantise,
    dequantise,
    from_bfloat16,
    overflows,
    quantise,
    to_bfloat16,
)
from tinyllm.tensors import PIECE_BYTES, encode_header
from tinyllm.weights import FLOAT_BYTES, TensorPlace, WeightsLayout, WeightsReader, WeightsUnusable

# Elements of a matrix that are quantised at once: the temporary arrays are several times as large.
_INT4_COUNT = 1 << 19


@dataclass(slots=True)
class Conversion:
    """A file that is still to be written; ``tensors`` are (name, dtype, shape) in file order.

    ``errors`` fills while the pieces are made.
    """

    dtype: str
    group_size: int
    header: bytes
    size_bytes: int
    tensors: tuple[tuple[str, str, tuple[int, ...]], ...]
    errors: list[TensorError] = field(default_factory=list)


def plan(layout: WeightsLayout, *, dtype: str, group_size: int) -> Conversion:
    """Decide every byte's place. ValueError when two tensors would have one name."""
    if dtype == "f32":
        same = tuple((p.name, "F32", p.shape) for p in layout.tensors)
        return Conversion(dtype, group_size, b"", layout.size_bytes, same)
    rows: list[tuple[str, str, tuple[int, ...]]] = []
    for place in layout.tensors:
        if dtype == "int4" and can_quantise(place.shape, group=group_size):
            count, width = place.shape
            rows.append((f"{place.name}.qweight", "U8", (count, width // 2)))
            rows.append((f"{place.name}.scales", "F32", (count, width // group_size)))
        else:
            rows.append((place.name, "BF16", place.shape))
    entries: dict[str, object] = {}
    offset = 0
    for name, kind, shape in rows:
        if name in entries:
            raise ValueError(f"two tensors would be named {name}")
        size = math.prod(shape) * {"U8": 1, "BF16": 2, "F32": 4}[kind]
        entries[name] = {
            "dtype": kind,
            "shape": list(shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    header = encode_header(entries, metadata={"format": "pt"})
    return Conversion(dtype, group_size, header, len(header) + offset, tuple(rows))


def pieces(conversion: Conversion, reader: WeightsReader) -> Iterator[Bytes]:
    """The bytes of the file, from those that ``reader`` reads; WeightsUnusable for what does not
    fit the new form. A piece is valid until the next one is asked for three times."""
    if conversion.dtype == "f32":
        yield reader.header()
        while reader.left_bytes:
            yield reader.floats(PIECE_BYTES // FLOAT_BYTES).view(np.uint8).data
        return
    reader.header()
    yield conversion.header
    if conversion.dtype == "bf16":
        while reader.left_bytes:
            yield _bfloat16(reader, PIECE_BYTES // FLOAT_BYTES)[0].view(np.uint8).data
        return
    yield from _int4_pieces(conversion, reader)


def _int4_pieces(conversion: Conversion, reader: WeightsReader) -> Iterator[Bytes]:
    for place in reader.layout.tensors:
        if can_quantise(place.shape, group=conversion.group_size):
            yield from _quantised(conversion, reader, place)
            continue
        error = _Error()
        left = place.count
        while left:
            bits, floats = _bfloat16(reader, min(left, _INT4_COUNT))
            error.add(floats, from_bfloat16(bits))
            left -= len(floats)
            yield bits.view(np.uint8).data
        conversion.errors.append(TensorError(place.name, "BF16", error.relative()))


def _quantised(
    conversion: Conversion, reader: WeightsReader, place: TensorPlace
) -> Iterator[Bytes]:
    count, width = place.shape
    scales = np.empty((count, width // conversion.group_size), dtype=np.float32)
    error = _Error()
    step = max(1, _INT4_COUNT // width)
    for row in range(0, count, step):
        rows = min(step, count - row)
        floats = reader.floats(rows * width)
        if reader.nonfinite:
            raise WeightsUnusable("a value is not finite")
        matrix = floats.reshape(rows, width)
        packed, some = quantise(matrix, group=conversion.group_size)
        scales[row : row + rows] = some
        error.add(floats, dequantise(packed, some).reshape(-1))
        yield packed.reshape(-1).data
    yield scales.reshape(-1).view(np.uint8).data
    conversion.errors.append(TensorError(place.name, "int4", error.relative()))


def _bfloat16(reader: WeightsReader, count: int) -> tuple[Bits16, Floats]:
    """At most ``count`` of the next elements, and what they were."""
    offset = reader.layout.data_bytes - reader.left_bytes
    floats = reader.floats(count)
    if reader.nonfinite:
        raise WeightsUnusable("a value is not finite")
    bits = to_bfloat16(floats)
    too_large = overflows(bits)
    if len(too_large):
        name, element = reader.where(offset + FLOAT_BYTES * int(too_large[0]))
        value = float(floats[too_large[0]])
        raise WeightsUnusable(f"{name} is {value} at element {element}: too large for BF16")
    return bits, floats


class _Error:
    """Sums of squares, in float64, of what was and of what changed.

    By numpy's own sum, whose order is fixed: that of a BLAS may depend on the number of threads.
    """

    def __init__(self) -> None:
        self._was = 0.0
        self._changed = 0.0

    def add(self, was: Floats, now: Floats) -> None:
        exact = was.astype(np.float64)
        changed = exact - now
        self._was += float(np.square(exact, out=exact).sum())
        self._changed += float(np.square(changed, out=changed).sum())

    def relative(self) -> float:
        return math.sqrt(self._changed / self._was) if self._was else 0.0
