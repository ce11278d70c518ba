"""``pickle.dump`` into an open file, and ``pickle.load``."""

import pickle
from pathlib import Path

import numpy as np

SUFFIX = ".pkl"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    with path.open("wb") as file:
        pickle.dump(state, file)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    with path.open("rb") as file:
        loaded: dict[str, np.ndarray] = pickle.load(file)
    return loaded
