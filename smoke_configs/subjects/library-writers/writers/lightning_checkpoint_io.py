"""Lightning Fabric's ``TorchCheckpointIO``, which saves through its atomic save."""

from pathlib import Path

import numpy as np
import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

SUFFIX = ".ckpt"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    TorchCheckpointIO().save_checkpoint(tensors, path)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    loaded = TorchCheckpointIO().load_checkpoint(path, weights_only=True)
    return {name: value.numpy() for name, value in loaded.items()}
