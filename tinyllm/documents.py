"""JSON that something is decided by, read so that nobody can be talked round.

Unknown keys, types and bounds are the struct's. Two things more: a key that stands twice in one
object is an error, where parsers silently take the last of them; and so is ``NaN`` or a number
beyond a double, which some parsers accept.
"""

import json
import math
from typing import TypeVar

import msgspec

T = TypeVar("T")


def decode_strictly(data: bytes, kind: type[T]) -> T:
    """``data`` as a ``kind``; ValueError (never anything else) says what is wrong with it."""
    try:
        value = msgspec.json.decode(data, type=kind)
        json.loads(
            data, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value


def _unique(pairs: list[tuple[str, object]]) -> None:
    seen = set()
    for key, _ in pairs:
        if key in seen:
            raise ValueError(f"the key {key!r} stands twice in one object")
        seen.add(key)


def _finite(text: str) -> None:
    if math.isinf(float(text)):
        raise ValueError(f"{text[:40]} is too large for a number")


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not JSON")
