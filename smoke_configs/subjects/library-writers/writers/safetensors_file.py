"""``safetensors.torch.save_file`` and ``load_file``."""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

SUFFIX = ".safetensors"


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """One file."""
    save_file({name: torch.from_numpy(value) for name, value in state.items()}, path)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again, in memory of its own: the library's tensors may be views of the file."""
    return {name: value.clone().numpy() for name, value in load_file(path).items()}
