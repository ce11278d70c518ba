"""``generation_config.json``: how a model is sampled unless a call says otherwise."""

from typing import Annotated

import msgspec

from tinyllm.documents import decode_strictly


class GenerationConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Every key is optional.

    ``temperature`` 0 takes the likeliest token. ``top_k`` keeps the k likeliest (0: all), ``top_p``
    the likeliest that together have that probability. ``stop`` are texts that end the output.
    """

    max_new_tokens: Annotated[int, msgspec.Meta(ge=1, le=1 << 20)] = 256
    temperature: Annotated[float, msgspec.Meta(ge=0, le=100)] = 1.0
    top_k: Annotated[int, msgspec.Meta(ge=0, le=1 << 20)] = 0
    top_p: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] = 0
    stop: Annotated[
        tuple[Annotated[str, msgspec.Meta(min_length=1)], ...], msgspec.Meta(max_length=64)
    ] = ()


def decode_generation_config(data: bytes) -> GenerationConfig:
    """Read ``generation_config.json``; ValueError says what is wrong with it."""
    return decode_strictly(data, GenerationConfig)
