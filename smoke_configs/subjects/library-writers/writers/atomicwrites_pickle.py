"""``pickle.dump`` into a file of ``atomicwrites.atomic_write``."""

import pickle
from pathlib import Path

import numpy as np
from atomicwrites import atomic_write

SUFFIX = ".pkl"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    with atomic_write(str(path), mode="wb", overwrite=True) as file:
        pickle.dump(state, file)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    with path.open("rb") as file:
        loaded: dict[str, np.ndarray] = pickle.load(file)
    return loaded
