"""``MODEL_CARD.md``: what people are told about a model.

A card is made from ``templates/MODEL_CARD.md`` by putting something in the place of each
``{{placeholder}}``; one with a placeholder left, whichever, is no card. An int4 release adds what
the quantisation did to each tensor.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

CARD_FILE = "MODEL_CARD.md"
CARD_LIMIT_BYTES = 4 << 20

_PLACEHOLDER = re.compile(r"\{\{\s*([^{}\n]{0,200}?)\s*\}\}")


@dataclass(frozen=True, slots=True)
class TensorError:
    """What a stored form lost: ``|w - w'| / |w|``, Frobenius norms; 0 for a tensor of zeros."""

    name: str
    stored_as: str
    relative_error: float


def card_template() -> str:
    """The template's text."""
    return files("tinyllm").joinpath("templates", CARD_FILE).read_text(encoding="utf-8")


def placeholders(text: str) -> list[str]:
    """The names of the placeholders in ``text``, each once, in order."""
    return list(dict.fromkeys(_PLACEHOLDER.findall(text)))


def card_problems(data: bytes) -> list[str]:
    """Everything that keeps ``data`` from being a model card."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return [f"is not UTF-8 at byte {error.start}"]
    if not text.strip():
        return ["is empty"]
    return [f"still has the placeholder {{{{{name}}}}}" for name in placeholders(text)]


def with_quantisation(card: bytes, errors: Sequence[TensorError], *, group_size: int) -> bytes:
    """The card with what int4 did to each tensor, as a section at its end."""
    explanation = (
        f"int4, symmetric, one F32 scale for {group_size} weights along the last axis. Error: the "
        "Frobenius norm of the change, relative to that of the weights."
    )
    lines = [
        "",
        "## Quantisation",
        "",
        explanation,
        "",
        "| tensor | stored as | relative error |",
        "|---|---|---|",
    ]
    lines += [f"| `{e.name}` | {e.stored_as} | {e.relative_error:.3e} |" for e in errors]
    return card.rstrip(b"\n") + b"\n" + "\n".join(lines).encode() + b"\n"
