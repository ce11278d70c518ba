"""``torch.distributed.checkpoint.save(state, checkpoint_id=directory)``, in one process.

The writer is the default one, ``FileSystemWriter`` with ``sync_files=True``. A directory counts as
a checkpoint once it has the ``.metadata`` that the library writes last.
"""

import re
import warnings
from pathlib import Path

import numpy as np
import torch
import torch.distributed.checkpoint as dcp

SUFFIX = ""


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """A directory: the data, then ``.metadata``."""
    warnings.filterwarnings("ignore", message=".*assuming.*single process.*")
    tensors = {name: torch.from_numpy(value) for name, value in state.items()}
    dcp.save(tensors, checkpoint_id=path, no_dist=True)


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    reader = dcp.FileSystemReader(path)
    known = reader.read_metadata().state_dict_metadata
    tensors = {name: torch.empty(m.size, dtype=m.properties.dtype) for name, m in known.items()}
    dcp.load(tensors, checkpoint_id=path, no_dist=True)
    return {name: value.numpy() for name, value in tensors.items()}


def newest(root: Path) -> Path | None:
    """The highest step that has its metadata."""
    found = [
        (int(m[1]), path)
        for path in root.iterdir()
        if (m := re.fullmatch(r"step-([0-9]+)", path.name)) and (path / ".metadata").exists()
    ]
    return max(found)[1] if found else None
