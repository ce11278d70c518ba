"""torch's optimizers over named parameters, and their states as named tensors.

AdamW and SGD take all parameters. Muon steps the matrices inside the blocks, and an AdamW beside
it the embeddings, head and norms, as its authors prescribe.

Each parameter's own state is saved as ``<name>.exp_avg`` and ``<name>.exp_avg_sq`` (AdamW) or
``<name>.momentum_buffer`` (SGD and Muon). AdamW also counts its updates inside its state; that
count is the run's step and is restored from it.

Not covered: parameter groups with rates of their own.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyllm import spec
from tinyllm.model import is_hidden_matrix

MOMENTS = ("exp_avg", "exp_avg_sq")
MOMENTUM = ("momentum_buffer",)


@dataclass(frozen=True, slots=True)
class Stepper:
    """One torch optimizer: its base rate, its parameters by name, and the tensors of a state."""

    optimizer: torch.optim.Optimizer
    base_lr: float
    parameters: Mapping[str, Tensor]
    state_names: tuple[str, ...]
    counts_steps: bool


@dataclass(frozen=True, slots=True)
class Optimizers:
    """What steps a model. ``name`` is the spec's; the first stepper's rate is the run's rate."""

    name: str
    steppers: tuple[Stepper, ...]


def make(chosen: spec.AdamW | spec.Sgd | spec.Muon, parameters: Mapping[str, Tensor]) -> Optimizers:
    """The optimizers that the spec asks for, with their states all zero.

    torch would make the states at the first step, some of them in the memory layout of a gradient,
    which need not be contiguous. A restored state is contiguous, and a matrix product rounds
    differently when a layout does: so the layout is decided here, for both.
    """
    optimizers = _choose(chosen, parameters)
    zeros = {
        f"{name}.{kind}": torch.zeros(parameter.shape)
        for name, kind, parameter, _ in _state_places(optimizers)
    }
    restore(optimizers, zeros, step=0)
    return optimizers


def _choose(
    chosen: spec.AdamW | spec.Sgd | spec.Muon, parameters: Mapping[str, Tensor]
) -> Optimizers:
    if isinstance(chosen, spec.AdamW):
        return Optimizers(name="adamw", steppers=(_adamw(chosen, parameters),))
    if isinstance(chosen, spec.Sgd):
        return Optimizers(name="sgd", steppers=(_sgd(chosen, parameters),))
    hidden = {name: value for name, value in parameters.items() if is_hidden_matrix(name)}
    others = {name: value for name, value in parameters.items() if name not in hidden}
    return Optimizers(name="muon", steppers=(_muon(chosen, hidden), _adamw(chosen.adamw, others)))


def _adamw(chosen: spec.AdamW, parameters: Mapping[str, Tensor]) -> Stepper:
    optimizer = torch.optim.AdamW(
        list(parameters.values()),
        lr=chosen.lr,
        betas=chosen.betas,
        eps=chosen.eps,
        weight_decay=chosen.weight_decay,
        fused=True,  # one call for all parameters, not ten for each
    )
    return Stepper(optimizer, chosen.lr, parameters, MOMENTS, counts_steps=True)


def _sgd(chosen: spec.Sgd, parameters: Mapping[str, Tensor]) -> Stepper:
    optimizer = torch.optim.SGD(
        list(parameters.values()),
        lr=chosen.lr,
        momentum=chosen.momentum,
        weight_decay=chosen.weight_decay,
    )
    return Stepper(optimizer, chosen.lr, parameters, MOMENTUM, counts_steps=False)


def _muon(chosen: spec.Muon, parameters: Mapping[str, Tensor]) -> Stepper:
    optimizer = torch.optim.Muon(
        list(parameters.values()),
        lr=chosen.lr,
        momentum=chosen.momentum,
        weight_decay=chosen.weight_decay,
    )
    return Stepper(optimizer, chosen.lr, parameters, MOMENTUM, counts_steps=False)


def step(optimizers: Optimizers, *, factor: float) -> float:
    """One update at ``factor`` times each base rate; clears the gradients. Returns the rate."""
    for stepper in optimizers.steppers:
        for group in stepper.optimizer.param_groups:
            group["lr"] = stepper.base_lr * factor
        stepper.optimizer.step()
        stepper.optimizer.zero_grad(set_to_none=True)
    return optimizers.steppers[0].base_lr * factor


def state_shapes(name: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Name and shape of every state tensor that the optimizer ``name`` keeps for parameters."""
    result = {}
    for parameter, shape in shapes.items():
        alone = name == "sgd" or (name == "muon" and is_hidden_matrix(parameter))
        for kind in MOMENTUM if alone else MOMENTS:
            result[f"{parameter}.{kind}"] = shape
    return result


def state_tensors(optimizers: Optimizers) -> list[tuple[str, Tensor]]:
    """The states by name; the tensors themselves, not copies."""
    return [
        (f"{name}.{kind}", stepper.optimizer.state[parameter][kind])
        for name, kind, parameter, stepper in _state_places(optimizers)
    ]


def restore(optimizers: Optimizers, tensors: Mapping[str, Tensor], *, step: int) -> None:
    """Put saved states in place, as they were after update number ``step``.

    ``tensors`` are adopted, not copied, and must lie in memory that torch allocated: where a
    tensor lies decides how a kernel rounds, and a view into a file's bytes may lie anywhere.
    """
    for name, kind, parameter, stepper in _state_places(optimizers):
        state = stepper.optimizer.state[parameter]
        state[kind] = tensors[f"{name}.{kind}"]
        if stepper.counts_steps:
            state["step"] = torch.tensor(float(step), dtype=torch.float32)


def _state_places(optimizers: Optimizers) -> Iterator[tuple[str, str, Tensor, Stepper]]:
    """(parameter's name, kind of state, parameter, stepper) in the one order that is saved."""
    for stepper in optimizers.steppers:
        for name, parameter in stepper.parameters.items():
            for kind in stepper.state_names:
                yield name, kind, parameter, stepper
