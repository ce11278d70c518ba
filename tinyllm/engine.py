"""Running a model as an engine would: continue a text, embed one, classify one.

Sampling is a pure function of the model, the prompt and the settings: logits in F32, then
probabilities in float64 by numpy, and one draw of PCG32 a token. Ties go to the smaller id. With
temperature 0 nothing is drawn. The same call gives the same text every time.

Order of the filters: temperature, then the ``top_k`` likeliest, then of those the fewest likeliest
that together reach ``top_p``; then a draw among what is left, in proportion.

A model sees the last ``context`` tokens of what came before. There is no cache: each token costs a
pass over the window, which is right for small models and simple to trust.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tinyllm import chat, model, pcg32
from tinyllm.errors import ModelUnusable, SpecError
from tinyllm.generation_config import GenerationConfig
from tinyllm.heads import LinearHead
from tinyllm.loading import Model
from tinyllm.pcg32 import Pcg32
from tinyllm.tokenizer import encode

SAMPLING_SEQUENCE = 2  # the PCG32 stream of sampling; the data order has 1

Probabilities = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated: the text without the prompt, its token ids, and why it ended there:
    ``length`` or ``stop``."""

    text: str
    tokens: tuple[int, ...]
    ended_by: str


def generate(
    loaded: Model, prompt: str, *, settings: GenerationConfig | None = None, as_chat: bool = False
) -> Generated:
    """Continue ``prompt``; ``settings`` default to the model's own ``generation_config.json``.

    ``as_chat`` puts the prompt into the chat template as a user's message. SpecError for an empty
    prompt, or a chat without a template.
    """
    how = loaded.generation if settings is None else settings
    ids = list(_ids(loaded, _as_chat(loaded, prompt) if as_chat else prompt))
    decode = _decoder(loaded)
    generator = pcg32.seeded(how.seed, sequence=SAMPLING_SEQUENCE)
    new: list[int] = []
    text, ended_by = "", "length"
    with torch.inference_mode():
        while len(new) < how.max_new_tokens:
            window = torch.tensor([(ids + new)[-loaded.config.context :]])
            logits = model.logits(loaded.parameters, window, config=loaded.config)[0, -1]
            token, generator = choose(logits.numpy(), how, generator)
            new.append(token)
            text = decode(new)
            ends = [text.find(stop) for stop in how.stop if stop in text]
            if ends:
                text, ended_by = text[: min(ends)], "stop"
                break
    return Generated(text=text, tokens=tuple(new), ended_by=ended_by)


def choose(
    logits: npt.NDArray[np.float32], how: GenerationConfig, generator: Pcg32
) -> tuple[int, Pcg32]:
    """The next token from its (vocab,) logits, and the generator after it."""
    if how.temperature == 0:
        return int(np.argmax(logits)), generator
    order, shares = candidates(logits, how)
    drawn, generator = pcg32.draw(generator)
    cumulated = np.cumsum(shares)
    place = int(np.searchsorted(cumulated, drawn / 2**32 * cumulated[-1], side="right"))
    return int(order[min(place, len(order) - 1)]), generator


def candidates(
    logits: npt.NDArray[np.float32], how: GenerationConfig
) -> tuple[npt.NDArray[np.int64], Probabilities]:
    """The tokens that may come, likeliest first, and their probabilities before the cut."""
    scaled = logits.astype(np.float64) / how.temperature
    order = np.argsort(-scaled, kind="stable")
    if how.top_k:
        order = order[: how.top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    shares: Probabilities = weights / weights.sum()
    if how.top_p < 1:
        enough = int(np.searchsorted(np.cumsum(shares), how.top_p, side="left")) + 1
        order, shares = order[:enough], shares[:enough]
    return order, shares


def embed(loaded: Model, text: str, *, pooling: str) -> Tensor:
    """The (width,) F32 embedding of the last ``context`` tokens of ``text``: that of the last
    token (``pooling`` last), or the mean over all (mean)."""
    ids = _ids(loaded, text)[-loaded.config.context :]
    with torch.inference_mode():
        states = model.hidden(loaded.parameters, torch.tensor([list(ids)]), config=loaded.config)[0]
        return states[-1] if pooling == "last" else states.mean(dim=0)


def classify(loaded: Model, text: str, *, head: str | None = None) -> dict[str, float]:
    """The probability of each class, in the head's order. ``head`` may be left out when there is
    one. SpecError when there is no such head."""
    chosen = _head(loaded, head)
    vector = embed(loaded, text, pooling=chosen.pooling)
    with torch.inference_mode():
        weight, bias = torch.tensor(chosen.weight), torch.tensor(chosen.bias)
        shares = F.softmax((F.linear(vector, weight, bias)).double(), dim=0)
    return dict(zip(chosen.classes, shares.tolist(), strict=True))


def _head(loaded: Model, name: str | None) -> LinearHead:
    have = ", ".join(sorted(loaded.heads)) or "none"
    if name is None and len(loaded.heads) == 1:
        return next(iter(loaded.heads.values()))
    if name is None:
        raise SpecError(f"{loaded.path}: name one of its heads with --head (there are: {have})")
    if name not in loaded.heads:
        raise SpecError(f"{loaded.path} has no head {name} (there are: {have})")
    return loaded.heads[name]


def _as_chat(loaded: Model, prompt: str) -> str:
    if loaded.chat is None:
        raise SpecError(f"{loaded.path} has no chat template")
    try:
        return chat.render(loaded.chat.chat_template, [{"role": "user", "content": prompt}])
    except ValueError as error:
        raise ModelUnusable(f"{loaded.path}: the chat template {error}") from error


def _ids(loaded: Model, text: str) -> Sequence[int]:
    ids = encode(
        text.encode("utf-8", "surrogateescape"),
        tokenizer=loaded.tokenizer,
        vocab_size=loaded.config.vocab_size,
        where=loaded.path,
    )
    if not len(ids):
        raise SpecError("the text is empty: a model needs at least one token to go on from")
    return [int(token) for token in ids]


def _decoder(loaded: Model) -> Callable[[Sequence[int]], str]:
    if loaded.tokenizer is None:
        return lambda tokens: bytes(tokens).decode("utf-8", "replace")
    from tokenizers import Tokenizer

    library = Tokenizer.from_str(loaded.tokenizer.decode())
    size = library.get_vocab_size(with_added_tokens=True)

    def decode(tokens: Sequence[int]) -> str:
        # A model may have room for more tokens than its tokenizer has; those are no text.
        return str(library.decode([t for t in tokens if t < size], skip_special_tokens=False))

    return decode
