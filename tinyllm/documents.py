"""JSON documents that a gate decides on, read so that nobody can be talked round.

As strict as the rest (unknown keys, types and bounds are the struct's), and two things more: a key
that stands twice in one object is an error, where parsers silently take the last of them; and so is
``NaN`` or a number beyond a double, which some parsers accept.
"""

import json
import math
from typing import TypeVar

from tinyllm.state import decode_strictly

T = TypeVar("T")


def decode_document(data: bytes, kind: type[T]) -> T:
    """``data`` as a ``kind``; ValueError says what is wrong with it."""
    value = decode_strictly(data, kind)
    try:
        json.loads(
            data, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite
        )
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
