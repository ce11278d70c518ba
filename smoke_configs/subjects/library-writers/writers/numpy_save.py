"""``numpy.save`` of one array a file, in a directory a checkpoint."""

from pathlib import Path

import numpy as np

SUFFIX = ""


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """A directory with a file for each array."""
    path.mkdir(exist_ok=True)
    for name, value in state.items():
        np.save(path / f"{name}.npy", value)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    return {name: np.load(path / f"{name}.npy") for name in ("step", "weights", "momentum")}
