"""Accelerate's ``save_state`` and ``load_state`` with automatic names and ``total_limit=1``."""

import pickle
import re
from pathlib import Path

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import ProjectConfiguration

SUFFIX = ""
LIMIT = 1


class Weights(torch.nn.Module):
    """The weights as a model, which ``save_state`` saves."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(size))


class Rest:
    """What else is to be saved, as an object that can be registered."""

    def __init__(self) -> None:
        self.values: dict[str, torch.Tensor] = {}

    def state_dict(self) -> dict[str, torch.Tensor]:
        """What is saved."""
        return self.values

    def load_state_dict(self, values: dict[str, torch.Tensor]) -> None:
        """What was saved."""
        self.values = values


def _accelerator(root: Path, model: Weights, rest: Rest, *, iteration: int) -> Accelerator:
    settings = ProjectConfiguration(
        project_dir=str(root),
        automatic_checkpoint_naming=True,
        total_limit=LIMIT,
        iteration=iteration,
    )
    accelerator = Accelerator(cpu=True, project_config=settings)
    accelerator.prepare(model)
    accelerator.register_for_checkpointing(rest)
    return accelerator


def write(path: Path, state: dict[str, np.ndarray]) -> None:
    """``checkpoints/checkpoint_<step>`` beside ``path``; the library deletes the older ones."""
    model, rest = Weights(len(state["weights"])), Rest()
    model.weights.data = torch.from_numpy(state["weights"])
    rest.values = {k: torch.from_numpy(v) for k, v in state.items() if k != "weights"}
    step = int(state["step"])
    _accelerator(path.parent, model, rest, iteration=step).save_state()


def newest(root: Path) -> Path | None:
    """The highest iteration that is whole: what a save left unfinished is passed over."""
    folders = (root / "checkpoints").glob("checkpoint_*")
    found = [(int(m[1]), p) for p in folders if (m := re.fullmatch(r"checkpoint_([0-9]+)", p.name))]
    return next((path for _, path in sorted(found, reverse=True) if _is_whole(path)), None)


def _is_whole(path: Path) -> bool:
    """Whether the file that the library writes last can be loaded."""
    try:
        torch.load(path / "custom_checkpoint_0.pkl", weights_only=False)
    except (OSError, EOFError, RuntimeError, pickle.UnpicklingError):
        return False
    return True


def read(path: Path) -> dict[str, np.ndarray]:
    """The state again."""
    with (path / "model.safetensors").open("rb") as file:
        header = int.from_bytes(file.read(8), "little")
        size = (file.seek(0, 2) - 8 - header) // 4
    model, rest = Weights(size), Rest()
    _accelerator(path.parent.parent, model, rest, iteration=0).load_state(str(path))
    arrays = {name: value.numpy() for name, value in rest.values.items()}
    return {**arrays, "weights": model.weights.detach().numpy()}
