"""Names and places below the artifacts directory.

``runs/<run_id>/ckpt/step-<nnnnnn>`` and ``models/<model_id>/<version>``. An id is checked before a
path is made of it. Step directories are ordered by their number, never by name or time, and a name
counts only when it is exactly ``step-`` and six ASCII digits: ``step-0100000``, ``step-old`` or a
network file system's ``.nfs000001`` are strays, which are named and left alone.

Nothing here touches the disk.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tinyllm.errors import SpecError

LATEST = "LATEST"
LATEST_TMP = "LATEST.tmp"
MANIFEST = "MANIFEST.json"
MAX_STEP = 999_999

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_STEP = re.compile(r"step-([0-9]{6})")
_TEMPORARY = re.compile(r"step-[0-9]{6}(\.aside-[0-9]{1,6})?\.tmp")


def check_id(what: str, text: str) -> str:
    """``text`` when it may name a run, model or version (``what`` says which), else SpecError."""
    if not _ID.fullmatch(text):
        raise SpecError(
            f"{what} {text!r}: use 1 to 64 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return text


def run_dir(artifacts: Path, run_id: str) -> Path:
    """``<artifacts>/runs/<run_id>``."""
    return artifacts / "runs" / check_id("run id", run_id)


def ckpt_dir(run: Path) -> Path:
    """The directory of a run that holds its step directories and LATEST."""
    return run / "ckpt"


def model_dir(artifacts: Path, model_id: str, version: str) -> Path:
    """``<artifacts>/models/<model_id>/<version>``."""
    return (
        artifacts / "models" / check_id("model id", model_id) / check_id("model version", version)
    )


def step_name(step: int) -> str:
    """``step-000500`` for 500; ValueError outside 0 to 999999."""
    if not 0 <= step <= MAX_STEP:
        raise ValueError(f"step {step} does not fit six digits")
    return f"step-{step:06d}"


def parse_step_name(name: str) -> int | None:
    """The number of a step directory's name, or None when it is not exactly one."""
    match = _STEP.fullmatch(name)
    return int(match.group(1)) if match else None


def aside_name(name: str, taken: Iterable[str]) -> str:
    """A temporary name for what must leave the name ``step-<nnnnnn>[.tmp]``, not in ``taken``."""
    stem = name.removesuffix(".tmp")
    occupied = set(taken)
    number = 1
    while (candidate := f"{stem}.aside-{number}.tmp") in occupied:
        number += 1
    return candidate


@dataclass(frozen=True, slots=True)
class Listing:
    """The entries of a ckpt/ directory by kind.

    ``steps`` ascending; ``temporary`` are names that only our own protocol makes; ``strays`` are
    everything else but LATEST, and belong to somebody else.
    """

    names: frozenset[str]
    steps: tuple[int, ...]
    temporary: tuple[str, ...]
    strays: tuple[str, ...]


def classify(names: Iterable[str]) -> Listing:
    """Sort the names of a ckpt/ directory into a :class:`Listing`."""
    steps, temporary, strays = [], [], []
    everything = sorted(names)
    for name in everything:
        step = parse_step_name(name)
        if step is not None:
            steps.append(step)
        elif _TEMPORARY.fullmatch(name) or name == LATEST_TMP:
            temporary.append(name)
        elif name != LATEST:
            strays.append(name)
    return Listing(
        names=frozenset(everything),
        steps=tuple(sorted(steps)),
        temporary=tuple(temporary),
        strays=tuple(strays),
    )
