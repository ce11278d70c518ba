"""``numpy.savez(path, **arrays)`` and ``numpy.load(path)``."""

from pathlib import Path

import numpy as np

SUFFIX = ".npz"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    np.savez(path, **state)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    with np.load(path) as file:
        return {name: file[name] for name in file.files}
