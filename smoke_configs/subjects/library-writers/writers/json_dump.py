"""``json.dump`` into an open file, and ``json.load``."""

import json
from pathlib import Path

import numpy as np

SUFFIX = ".json"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file; every float32 is a float64 exactly, and JSON keeps those."""
    with path.open("w", encoding="utf-8") as file:
        json.dump({name: value.tolist() for name, value in state.items()}, file)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    with path.open(encoding="utf-8") as file:
        loaded = json.load(file)
    arrays = {name: np.array(value, np.float32) for name, value in loaded.items()}
    return {**arrays, "step": np.array(loaded["step"])}
