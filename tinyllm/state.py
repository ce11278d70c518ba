"""``trainer_state.json``: everything a resumed run needs that is not a tensor.

Read strictly: a missing, unknown or badly typed key is an error, so that no default can quietly
rewind the data (a hash can agree while a key is missing). Whether the values fit the *spec* is the
trainer's business; what can be told from the file alone is told here.
"""

import math
from typing import Annotated

import msgspec

from tinyllm.documents import decode_strictly
from tinyllm.paths import MAX_STEP

# ``$`` alone would let a final newline through.
_END = r"$(?!\n)"
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
_Decimal = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,19})" + _END)]
_Sha256 = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}" + _END)]
_GitSha = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{40}([0-9a-f]{24})?" + _END)]


class Cursor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The next window to train on: its ``epoch``, and its place in that epoch's permutation."""

    epoch: _Count
    next_window: _Count


class GeneratorState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """PCG32's 64-bit ``state`` and (odd) ``increment`` in decimal: JSON numbers lose them."""

    state: _Decimal
    increment: _Decimal

    def __post_init__(self) -> None:
        if int(self.state) >= 2**64 or int(self.increment) >= 2**64:
            raise ValueError("a generator's state and increment have 64 bits")
        if int(self.increment) % 2 == 0:
            raise ValueError("a generator's increment is odd")


class TrainerState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The state after ``step`` optimizer steps.

    ``lr`` is the learning rate that step used. ``spec_sha256`` is of the train spec's bytes;
    ``git_sha`` of the checkout the trainer ran from, null outside one.
    """

    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
    tokens_seen: _Count
    cursor: Cursor
    generator: GeneratorState
    lr: Annotated[float, msgspec.Meta(ge=0)]
    spec_sha256: _Sha256
    git_sha: _GitSha | None

    def __post_init__(self) -> None:
        if not math.isfinite(self.lr):
            raise ValueError(f"lr {self.lr} is not finite")


def canonical_json(value: object) -> bytes:
    """``value`` as JSON: keys sorted, two spaces of indent, one newline at the end."""
    text = msgspec.json.encode(value, order="sorted")
    return msgspec.json.format(text, indent=2) + b"\n"


def encode_state(state: TrainerState) -> bytes:
    """The bytes of ``trainer_state.json``."""
    return canonical_json(state)


def decode_state(data: bytes) -> TrainerState:
    """Read ``trainer_state.json``; ValueError says what is wrong with it."""
    return decode_strictly(data, TrainerState)
