"""Durations as people write them: ``90``, ``90s``, ``5m``, ``2h``, ``1h30m``."""

import re

_PARTS = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m)?(?:(\d+(?:\.\d+)?)s?)?", re.ASCII)


def parse_duration(text: str) -> float:
    """Seconds. Raises ValueError with what to write instead."""
    match = _PARTS.fullmatch(text.strip().lower())
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is no duration: write 90s, 5m, 2h or 1h30m")
    hours, minutes, seconds = (float(group or 0) for group in match.groups())
    total = hours * 3600 + minutes * 60 + seconds
    if total <= 0:
        raise ValueError(f"{text!r} must be more than nothing")
    return total
