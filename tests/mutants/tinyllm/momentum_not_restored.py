"""A resumed run begins with the optimizer's states all zero."""

from collections.abc import Mapping

import torch
from torch import Tensor

from tinyllm import optim
from tinyllm.cli import main
from tinyllm.optim import Optimizers

BREAKS = "same-losses"
LAYERS = ("point", "kill")


real = optim.restore


def all_zero(optimizers: Optimizers, tensors: Mapping[str, Tensor], *, step: int) -> None:
    real(optimizers, {n: torch.zeros(t.shape) for n, t in tensors.items()}, step=step)


if __name__ == "__main__":
    optim.restore = all_zero
    raise SystemExit(main())
