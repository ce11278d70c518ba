"""Tensors as safetensors bytes, canonical and without a second copy.

The layout is that of the safetensors format: eight bytes of header length, a JSON header padded
with spaces to a multiple of eight, then the tensors without gaps. The library writes its metadata
in hash-map order and holds the whole file in memory, so we lay out the bytes ourselves: header keys
sorted; tensors by falling element size, then by name (which keeps every tensor aligned). The same
tensors give the same file. It is read back by the library.

A contiguous tensor is handed out as views of its own memory; any other in contiguous pieces of a
bounded size. Little-endian machines only, as the format's bytes are.
"""

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

# What the safetensors library refuses to read back is refused when it would be written.
MAX_HEADER_BYTES = 100_000_000

PIECE_BYTES = 8 << 20

# torch's name of a dtype -> the format's name, and the bytes of one element.
DTYPES = {
    "torch.float32": ("F32", 4),
    "torch.bfloat16": ("BF16", 2),
    "torch.int8": ("I8", 1),
    "torch.uint8": ("U8", 1),
}


@dataclass(frozen=True, slots=True)
class Layout:
    """A file that is still to be written.

    ``header`` is the length field and the JSON; ``tensors`` are in file order; ``size_bytes`` is
    the whole file's length; ``copies`` tells that some pieces will be copies, not views.
    """

    header: bytes
    tensors: tuple["Tensor", ...]
    size_bytes: int
    copies: bool


def lay_out(tensors: Sequence[tuple[str, "Tensor"]], *, metadata: Mapping[str, str]) -> Layout:
    """Decide every byte's place. ValueError: a name twice, a dtype without a name, a long header.

    ``tensors`` are (name, tensor of any shape) in any order.
    """
    assert sys.byteorder == "little", "the format is little-endian and so must be the machine"
    entries: dict[str, object] = {}
    ordered = sorted(tensors, key=lambda item: (-_element_bytes(*item), item[0]))
    offset = 0
    for name, tensor in ordered:
        if name in entries or name == "__metadata__":
            raise ValueError(f"tensor name {name!r} is taken")
        size = math.prod(tensor.shape) * _element_bytes(name, tensor)
        entries[name] = {
            "dtype": DTYPES[str(tensor.dtype)][0],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    header = encode_header(entries, metadata=metadata)
    return Layout(
        header=header,
        tensors=tuple(tensor for _, tensor in ordered),
        size_bytes=len(header) + offset,
        copies=not all(_is_own_memory(tensor) for _, tensor in ordered),
    )


def encode_header(entries: Mapping[str, object], *, metadata: Mapping[str, str]) -> bytes:
    """The length field and the JSON for ``entries`` (dtype, shape and data_offsets by name)."""
    document = {**entries, "__metadata__": dict(metadata)}
    text = json.dumps(document, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > MAX_HEADER_BYTES:
        raise ValueError(
            f"the header of {len(entries)} tensors takes {len(text)} bytes; "
            f"readers of the format refuse more than {MAX_HEADER_BYTES}"
        )
    return len(text).to_bytes(8, "little") + text


def pieces(layout: Layout) -> Iterator[bytes | memoryview]:
    """The bytes of the file in order, in pieces of at most 8 MiB (the header is one piece)."""
    yield layout.header
    for tensor in layout.tensors:
        yield from _tensor_pieces(tensor.detach())


def _tensor_pieces(tensor: "Tensor") -> Iterator[memoryview]:
    if tensor.numel() == 0:
        return
    if _is_own_memory(tensor):
        view = _memory(tensor)
        for start in range(0, len(view), PIECE_BYTES):
            yield view[start : start + PIECE_BYTES]
        return
    size = tensor.numel() * tensor.element_size()
    if size <= PIECE_BYTES:
        yield _memory(tensor.cpu().contiguous())
        return
    rows = tensor.shape[0]
    step = max(1, PIECE_BYTES * rows // size)
    for start in range(0, rows, step):
        part = tensor[start] if step == 1 else tensor[start : start + step]
        yield from _tensor_pieces(part)


def _is_own_memory(tensor: "Tensor") -> bool:
    """Whether the file's bytes are the tensor's memory, to be written as it lies."""
    return tensor.is_contiguous() and tensor.device.type == "cpu"


def _memory(tensor: "Tensor") -> memoryview:
    """The bytes of a contiguous CPU tensor, shared with it."""
    import torch

    flat = tensor.reshape(-1).view(torch.uint8)
    return flat.numpy().data


def _element_bytes(name: str, tensor: "Tensor") -> int:
    known = DTYPES.get(str(tensor.dtype))
    if known is None:
        raise ValueError(f"tensor {name!r}: dtype {tensor.dtype} is not one that is written")
    return known[1]
