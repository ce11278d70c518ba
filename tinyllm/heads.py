"""``heads/<name>.json``: linear heads over a model's embeddings.

A head turns the embedding of a text, a vector of the model's width, into a score for each of its
classes: ``weight`` times embedding plus ``bias``. The embedding is the model's last hidden state
after its last norm, of the last token or the mean over all (``pooling``).
"""

from typing import Annotated, Literal

import msgspec

from tinyllm.documents import decode_strictly

HEAD_LIMIT_BYTES = 64 << 20

# The largest finite float32: the head is computed in F32.
_MOST = 3.4028234663852886e38
_Number = Annotated[float, msgspec.Meta(ge=-_MOST, le=_MOST)]
_Label = Annotated[str, msgspec.Meta(min_length=1, max_length=256)]


class LinearHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``weight`` has a row a class, each of ``width`` numbers; ``bias`` a number a class."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]
    width: Annotated[int, msgspec.Meta(ge=1, le=1 << 16)]
    pooling: Literal["last", "mean"]
    classes: Annotated[list[_Label], msgspec.Meta(min_length=1, max_length=1 << 16)]
    weight: Annotated[list[list[_Number]], msgspec.Meta(min_length=1)]
    bias: Annotated[list[_Number], msgspec.Meta(min_length=1)]


def decode_head(data: bytes) -> LinearHead:
    """Read a head; ValueError says what is wrong with it, its own sizes included."""
    head = decode_strictly(data, LinearHead)
    count = len(head.classes)
    if len(set(head.classes)) != count:
        raise ValueError("two of its classes have one name")
    if len(head.weight) != count or len(head.bias) != count:
        raise ValueError(
            f"it has {count} classes, {len(head.weight)} rows of weights and "
            f"{len(head.bias)} biases"
        )
    for number, row in enumerate(head.weight, start=1):
        if len(row) != head.width:
            raise ValueError(f"row {number} has {len(row)} weights, its width is {head.width}")
    return head


def head_file(name: str) -> str:
    """Where a head stands in a release."""
    return f"heads/{name}.json"
