"""``torch.save(obj, path)`` and ``torch.load(path)``."""

from pathlib import Path

import numpy as np
import torch

SUFFIX = ".pt"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    torch.save({name: torch.from_numpy(value) for name, value in state.items()}, path)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    loaded = torch.load(path, weights_only=True)
    return {name: value.numpy() for name, value in loaded.items()}
