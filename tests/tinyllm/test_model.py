"""The model and its optimizers: shapes, keyed randomness, and states in one layout."""

from pathlib import Path

import pytest
import torch

from tests.tinyllm import runs
from tinyllm import model, optim, training
from tinyllm.model import Dropout
from tinyllm.spec import ModelConfig, read_spec

CONFIG = ModelConfig(tl_tokenizer="bytes", vocab_size=256, width=8, layers=2, heads=2, context=6)


def _bits(values: dict[str, torch.Tensor]) -> dict[str, bytes]:
    return {name: value.detach().numpy().tobytes() for name, value in values.items()}


def test_every_parameter_has_its_shape_and_is_f32() -> None:
    parameters = model.initial_parameters(CONFIG, seed=1)
    assert {name: tuple(value.shape) for name, value in parameters.items()} == model.shapes(CONFIG)
    assert {value.dtype for value in parameters.values()} == {torch.float32}
    hidden = [name for name in parameters if model.is_hidden_matrix(name)]
    assert len(hidden) == 4 * CONFIG.layers
    assert all(parameters[name].ndim == 2 for name in hidden)


def test_nothing_depends_on_or_changes_the_global_generator() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = _bits(model.initial_parameters(CONFIG, seed=3))
    inputs = training.read_inputs(runs.SMOKE / "sgd.json")  # with dropout
    training.advance(training.begin(inputs))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert _bits(model.initial_parameters(CONFIG, seed=3)) == first
    assert _bits(model.initial_parameters(CONFIG, seed=4)) != first


def test_a_keyed_generator_depends_on_its_key_alone() -> None:
    draws = [
        torch.rand(4, generator=model.keyed_generator(*key)).tolist()
        for key in [("dropout", 1, 2), ("dropout", 1, 3), ("dropout", 12), ("dropout", 1, 2)]
    ]
    assert draws[0] == draws[3]
    assert draws[0] != draws[1] != draws[2]


def test_a_token_sees_only_what_came_before_it() -> None:
    parameters = model.initial_parameters(CONFIG, seed=1)
    tokens = torch.tensor([[1, 2, 3, 4, 5, 6]])
    changed = torch.tensor([[1, 2, 3, 9, 9, 9]])
    first = model.logits(parameters, tokens, config=CONFIG)
    second = model.logits(parameters, changed, config=CONFIG)
    assert torch.equal(first[:, :3], second[:, :3])
    assert not torch.equal(first[:, 3:], second[:, 3:])
    assert first.shape == (1, 6, 256)


def test_bf16_computes_in_bf16_and_keeps_f32() -> None:
    parameters = model.initial_parameters(CONFIG, seed=1)
    batch = torch.arange(7).repeat(2, 1)
    exact = model.loss(parameters, batch, config=CONFIG)
    rounded = model.loss(parameters, batch, config=CONFIG, precision="bf16")
    rounded.backward()  # type: ignore[no-untyped-call]
    assert (exact.dtype, rounded.dtype) == (torch.float32, torch.float32)
    assert exact.item() != rounded.item()
    assert exact.item() == pytest.approx(rounded.item(), rel=1e-2)
    assert {value.grad.dtype for value in parameters.values() if value.grad is not None} == {
        torch.float32
    }


def test_dropout_keeps_the_mean_and_is_exact_in_what_it_drops() -> None:
    dropout = Dropout(rate=0.25, generator=model.keyed_generator("dropout", 1, 1))
    values = model.drop(torch.ones(100, 100), dropout)
    assert sorted(values.unique().tolist()) == pytest.approx([0.0, 1 / 0.75])
    assert values.mean().item() == pytest.approx(1.0, abs=0.02)
    assert model.drop(values, None) is values


@pytest.mark.parametrize("config", ["adamw", "sgd", "muon"])
def test_a_restored_optimizer_goes_on_with_the_same_bits(config: str) -> None:
    """The states' memory layout included: Muon's matrix products round by it."""
    inputs = training.read_inputs(runs.SMOKE / f"{config}.json")
    going = training.begin(inputs)
    for _ in range(3):
        training.advance(going)
    states = optim.state_tensors(going.optimizers)
    assert all(value.is_contiguous() for _, value in states)
    names = optim.state_shapes(inputs.loaded.optimizer_name, model.shapes(inputs.loaded.model))
    assert {name: tuple(value.shape) for name, value in states} == names
    parameters = {
        name: value.detach().clone().requires_grad_() for name, value in going.parameters.items()
    }
    optimizers = optim.make(inputs.loaded.spec.optimizer, parameters)
    optim.restore(optimizers, {name: value.clone() for name, value in states}, step=3)
    resumed = training.Training(inputs, parameters, optimizers, going.order, step=3)
    for _ in range(3):
        assert training.advance(resumed) == training.advance(going)
    assert _bits(dict(resumed.parameters)) == _bits(dict(going.parameters))
    assert _bits(dict(optim.state_tensors(resumed.optimizers))) == _bits(
        dict(optim.state_tensors(going.optimizers))
    )


def test_every_field_of_the_restored_state_matters() -> None:
    """AdamW's own count of steps, which no file holds, is one of them."""
    inputs = training.read_inputs(runs.SMOKE / "adamw.json")
    going = training.begin(inputs)
    for _ in range(2):
        training.advance(going)
    states = {name: value.clone() for name, value in optim.state_tensors(going.optimizers)}
    saved = {name: value.detach().clone() for name, value in going.parameters.items()}
    training.advance(going)
    for name in [*states, "step"]:
        parameters = {key: value.clone().requires_grad_() for key, value in saved.items()}
        optimizers = optim.make(inputs.loaded.spec.optimizer, parameters)
        wrong = {key: value + 1 if key == name else value.clone() for key, value in states.items()}
        optim.restore(optimizers, wrong, step=3 if name == "step" else 2)
        order = training.begin(inputs).order
        _, order = training.data.take(order, count=8)
        resumed = training.Training(inputs, parameters, optimizers, order, step=2)
        training.advance(resumed)
        assert _bits(dict(resumed.parameters)) != _bits(dict(going.parameters)), name


def test_muon_steps_the_matrices_and_adamw_the_rest() -> None:
    loaded = read_spec(runs.SMOKE / "muon.json")
    shapes = model.shapes(loaded.model)
    names = optim.state_shapes("muon", shapes)
    assert "blocks.0.mlp.up.weight.momentum_buffer" in names
    assert "embed.tokens.exp_avg" in names
    assert "blocks.0.mlp.norm.weight.exp_avg_sq" in names
    assert len(names) == 4 + 2 * (len(shapes) - 4)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_named(value: float) -> None:
    state = training.begin(training.read_inputs(runs.SMOKE / "sgd.json"))
    training.check_finite(state)
    with torch.no_grad():
        state.parameters["blocks.1.mlp.up.weight"][3, 4] = value
    says = rf"step 0: blocks\.1\.mlp\.up\.weight is -?(nan|inf) at element {3 * 32 + 4}"
    with pytest.raises(training.Diverged, match=says):
        training.check_finite(state)


def test_an_optimizer_state_that_is_not_finite_is_named() -> None:
    state = training.begin(training.read_inputs(runs.SMOKE / "adamw.json"))
    dict(optim.state_tensors(state.optimizers))["norm.bias.exp_avg_sq"][0] = float("inf")
    with pytest.raises(training.Diverged, match=r"norm\.bias\.exp_avg_sq is inf at element 0"):
        training.check_finite(state)


def test_a_loss_falls(tmp_path: Path) -> None:
    spec = runs.write_spec(tmp_path / "spec.json", steps=40)
    state = training.begin(training.read_inputs(spec))
    seen = [training.advance(state) for _ in range(40)]
    assert seen[-1] < seen[0] - 1.0
