"""Smaller forms of weights: bfloat16, and int4 in groups. Pure functions of arrays.

int4 is symmetric and takes groups of ``group`` neighbours along the last axis. With ``a`` the
largest magnitude in a group, all in float32:

    scale = a / 7            level = round_half_to_even(w / scale), kept within -7 .. 7
    stored: the scale as float32, two levels a byte as two's complement, the first in the low nibble
    w'    = float32(level) * scale

A group whose scale is zero has levels of zero. Reading takes every nibble, -8 too.

bfloat16 is rounded to nearest, ties to even, as the hardware and torch do it; numpy has no such
type, so its bits are handled as uint16.
"""

import numpy as np
import numpy.typing as npt

MOST_LEVEL = 7

Floats = npt.NDArray[np.float32]
Bytes8 = npt.NDArray[np.uint8]
Bits16 = npt.NDArray[np.uint16]

_BF16_INFINITY = 0x7F80


def can_quantise(shape: tuple[int, ...], *, group: int) -> bool:
    """Whether a tensor of ``shape`` gets int4: a matrix whose rows are whole groups."""
    return len(shape) == 2 and min(shape) > 0 and shape[1] % group == 0


def quantise(rows: Floats, *, group: int) -> tuple[Bytes8, Floats]:
    """(count, width) finite floats to (count, width/2) bytes and (count, width/group) scales."""
    count, width = rows.shape
    grouped = rows.reshape(count, width // group, group)
    scales = np.abs(grouped).max(axis=2) / np.float32(MOST_LEVEL)
    divisors = np.where(scales == 0, np.float32(1), scales)
    levels = np.rint(grouped / divisors[:, :, None])
    np.clip(levels, -MOST_LEVEL, MOST_LEVEL, out=levels)
    nibbles: Bytes8 = levels.astype(np.int8).view(np.uint8).reshape(count, width) & np.uint8(15)
    packed: Bytes8 = nibbles[:, 0::2] | (nibbles[:, 1::2] << np.uint8(4))
    return packed, scales.astype(np.float32, copy=False)


def dequantise(packed: Bytes8, scales: Floats) -> Floats:
    """The inverse: (count, width) floats. The group's size follows from the two shapes."""
    count, half = packed.shape
    nibbles = np.empty((count, 2 * half), dtype=np.uint8)
    nibbles[:, 0::2] = packed & 0x0F
    nibbles[:, 1::2] = packed >> 4
    levels = (nibbles ^ 8).astype(np.int8) - np.int8(8)
    grouped = levels.reshape(count, scales.shape[1], -1).astype(np.float32)
    return (grouped * scales[:, :, None]).reshape(count, 2 * half)


def to_bfloat16(floats: Floats) -> Bits16:
    """The bits of the nearest bfloat16 of each finite float (infinity where there is none)."""
    bits = floats.view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)
    return rounded.astype(np.uint16)


def from_bfloat16(bits: Bits16) -> Floats:
    """The floats with those bits; exact."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def overflows(bits: Bits16) -> npt.NDArray[np.int64]:
    """Where bfloat16 bits are infinite (or NaN), as flat indices."""
    return np.flatnonzero((bits & _BF16_INFINITY) == _BF16_INFINITY)
