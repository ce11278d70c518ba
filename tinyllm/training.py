"""One training step, and what it works on.

A step takes windows, computes the loss and its gradients, and updates the parameters. It is a pure
function of what a checkpoint holds: the parameters, the optimizer's state, the data order and
(seed, step). It writes nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fault_injection.points import point
from tinyllm import data, model, optim
from tinyllm.data import Dataset, Order
from tinyllm.errors import TinyllmError
from tinyllm.model import Dropout
from tinyllm.optim import Optimizers
from tinyllm.schedule import factor
from tinyllm.spec import LoadedSpec, read_spec
from tinyllm.tokenizer import read_tokenizer


class Diverged(TinyllmError):
    """A tensor that should be saved holds a value that is not finite."""

    exit_code = 7


@dataclass(frozen=True, slots=True)
class Inputs:
    """All that a run reads before it begins; nothing of it changes."""

    loaded: LoadedSpec
    tokenizer: bytes | None
    dataset: Dataset


@dataclass(slots=True)
class Training:
    """What changes while a run trains: the state after ``step`` updates.

    ``lr`` is the rate of the last update; ``saved_step`` the newest step that is saved, or 0.
    """

    inputs: Inputs
    parameters: Mapping[str, Tensor]
    optimizers: Optimizers
    order: Order
    step: int = 0
    tokens_seen: int = 0
    lr: float = 0.0
    saved_step: int = 0


def read_inputs(spec_path: Path) -> Inputs:
    """Read the spec and every file that it names; SpecError for whatever is wrong with them."""
    loaded = read_spec(spec_path)
    path = loaded.spec.tokenizer
    tokenizer = None if path is None else read_tokenizer(loaded.resolve(path))
    return Inputs(
        loaded=loaded, tokenizer=tokenizer, dataset=data.load(loaded, tokenizer=tokenizer)
    )


def begin(inputs: Inputs) -> Training:
    """The state before the first step."""
    spec = inputs.loaded.spec
    parameters = model.initial_parameters(inputs.loaded.model, seed=spec.seed)
    return Training(
        inputs=inputs,
        parameters=parameters,
        optimizers=optim.make(spec.optimizer, parameters),
        order=data.open_order(data.first_position(spec.seed), windows=len(inputs.dataset.starts)),
    )


def advance(training: Training) -> float:
    """Make one step; returns its loss (a float32's value, nats a token)."""
    point("step.began")
    inputs = training.inputs
    spec = inputs.loaded.spec
    step = training.step + 1
    windows, order = data.take(training.order, count=spec.batch_size)
    batch = torch.from_numpy(data.batch(inputs.dataset, windows))
    dropout = Dropout(
        rate=spec.dropout, generator=model.keyed_generator("dropout", spec.seed, step)
    )
    loss = model.loss(
        training.parameters,
        batch,
        config=inputs.loaded.model,
        precision=spec.precision,
        dropout=dropout,
    )
    loss.backward()  # type: ignore[no-untyped-call]
    point("step.backward-done")
    training.lr = optim.step(
        training.optimizers,
        factor=factor(spec.schedule, step=step, steps=spec.steps),
    )
    point("step.optimizer-stepped")
    training.order = order
    training.step = step
    training.tokens_seen += spec.batch_size * spec.data.seq_length
    return loss.item()


def check_finite(training: Training) -> None:
    """Diverged, naming the tensor and the place, when something that would be saved is not finite.

    A loss that is not finite is no reason by itself: it may pass, and the weights are what counts.
    """
    tensors = [*training.parameters.items(), *optim.state_tensors(training.optimizers)]
    for name, tensor in tensors:
        least, most = torch.aminmax(tensor.detach())  # both are NaN when anything is
        if not (math.isfinite(least.item()) and math.isfinite(most.item())):
            flat = tensor.detach().flatten()
            index = int(torch.isfinite(flat).logical_not().nonzero()[0])
            raise Diverged(
                f"step {training.step}: {name} is {flat[index].item()} at element {index}; "
                "nothing was saved, the earlier checkpoints are as they were. Go back with "
                "--resume <an earlier step directory> and --allow-spec-change, and a lower rate"
            )
