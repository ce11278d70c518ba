"""pytorch-ignite's ``DiskSaver``, which is atomic unless it is told otherwise."""

from pathlib import Path

import numpy as np
import torch
from ignite.handlers import DiskSaver

SUFFIX = ".pt"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    DiskSaver(path.parent, require_empty=False)(tensors, path.name)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    loaded = torch.load(path, weights_only=True)
    return {name: value.numpy() for name, value in loaded.items()}
