"""The loss curve of a baseline as a small inline SVG.

Losses are the text that the subject printed. What is not a finite number is left out of the line
and counted beside it. When every one of them is eight hex digits they are the bits of float32s
(one alone would not tell: ``40133333`` is also a decimal number).
"""

import math
import re
import struct
from collections.abc import Sequence

WIDTH, HEIGHT = 360, 120
_LEFT, _RIGHT, _TOP, _BOTTOM = 46, 8, 8, 20
MAX_POINTS = 400

_BITS = re.compile(r"(?:0x)?[0-9a-fA-F]{8}")


def numbers(texts: Sequence[str]) -> list[float]:
    """Printed losses as numbers, NaN for what is none."""
    if all(_BITS.fullmatch(text) for text in texts):
        return [float(struct.unpack(">f", bytes.fromhex(text[-8:]))[0]) for text in texts]
    return [_decimal(text) for text in texts]


def _decimal(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def curve(losses: Sequence[tuple[int, str]]) -> str:
    """The SVG, or "" when fewer than two finite losses are there."""
    every = -(-len(losses) // MAX_POINTS) or 1
    thinned = [*losses[::every], *losses[-1:]] if every > 1 else list(losses)
    values = numbers([text for _, text in thinned])
    points = [(step, value) for (step, _), value in zip(thinned, values, strict=True)]
    finite = [(step, value) for step, value in points if math.isfinite(value)]
    if len(finite) < 2:
        return ""
    low, high = min(v for _, v in finite), max(v for _, v in finite)
    first, last = min(s for s, _ in finite), max(s for s, _ in finite)
    right, bottom = WIDTH - _RIGHT, HEIGHT - _BOTTOM

    def place(step: int, value: float) -> str:
        x = _LEFT + (right - _LEFT) * (step - first) / ((last - first) or 1)
        y = _TOP + (bottom - _TOP) * ((high - value) / (high - low) if high > low else 0.5)
        return f"{x:.1f},{y:.1f}"

    line = " ".join(place(step, value) for step, value in finite)
    lost = len(points) - len(finite)
    title = f"loss from {finite[0][1]:.4g} at step {first} to {finite[-1][1]:.4g} at step {last}"
    if lost:
        title += f"; {lost} not finite"
    return (
        f'<svg class="curve" role="img" viewBox="0 0 {WIDTH} {HEIGHT}"><title>{title}</title>'
        f'<path class="axis" d="M{_LEFT} {_TOP}V{bottom}H{right}"/>'
        f'<polyline class="loss" points="{line}"/>'
        f'<text x="{_LEFT - 6}" y="{_TOP + 8}" text-anchor="end">{high:.3g}</text>'
        f'<text x="{_LEFT - 6}" y="{bottom}" text-anchor="end">{low:.3g}</text>'
        f'<text x="{_LEFT}" y="{HEIGHT - 5}">step {first}</text>'
        f'<text x="{right}" y="{HEIGHT - 5}" text-anchor="end">{last}</text></svg>'
    )
