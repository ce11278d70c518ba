"""A small decoder-only transformer, as functions of named parameters.

The shape is that of GPT-2: token and position embeddings, blocks of causal attention and a
two-layer perceptron, each behind a layer norm and added to the stream, a last norm, and a head.
Parameters are a dictionary from name to F32 tensor; :mod:`tinyllm.shapes` is the one list of them,
in the order in which they are made, trained and saved. Nothing here reads or changes torch's global
generator: the initial values are keyed by the seed, dropout by (seed, step), so there is no hidden
generator that a checkpoint would have to save.

With precision bf16 the matrices are rounded to bfloat16 for computing, and so is the stream; the
norms and the loss are computed in F32, and the gradients arrive at the F32 parameters.

Not covered: a key-value cache, and anything but one CPU thread.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tinyllm.shapes import shapes as shapes
from tinyllm.spec import ModelConfig

INITIAL_DEVIATION = 0.02


@dataclass(frozen=True, slots=True)
class Dropout:
    """Where the masks come from: ``rate`` of the values are dropped, drawn from ``generator``."""

    rate: float
    generator: torch.Generator


def is_hidden_matrix(name: str) -> bool:
    """Whether a parameter is a 2-D matrix inside a block, which is what Muon is for."""
    return name.startswith("blocks.") and ".norm." not in name


def initial_parameters(config: ModelConfig, *, seed: int) -> dict[str, Tensor]:
    """F32 parameters that need gradients: normal, but ones and zeros in the norms.

    What is added to the stream is scaled down with the depth, so that the stream's size does not
    grow with it.
    """
    generator = keyed_generator("parameters", seed)
    result = {}
    for name, shape in shapes(config).items():
        value = torch.empty(shape, dtype=torch.float32)
        if name.endswith("norm.weight"):
            value.fill_(1.0)
        elif name.endswith("norm.bias"):
            value.zero_()
        else:
            adds_to_stream = name.endswith(("attention.out.weight", "mlp.down.weight"))
            scale = (2 * config.layers) ** -0.5 if adds_to_stream else 1.0
            value.normal_(0.0, INITIAL_DEVIATION * scale, generator=generator)
        result[name] = value.requires_grad_()
    return result


def keyed_generator(purpose: str, *key: int) -> torch.Generator:
    """A torch generator that depends on nothing but ``purpose`` and ``key``."""
    text = " ".join([purpose, *map(str, key)])
    digest = hashlib.sha256(text.encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:4], "little"))


def logits(
    parameters: Mapping[str, Tensor],
    tokens: Tensor,
    *,
    config: ModelConfig,
    precision: str = "f32",
    dropout: Dropout | None = None,
) -> Tensor:
    """F32 logits, shape (batch, length, vocab), for int64 ``tokens`` of shape (batch, length)."""
    last = hidden(parameters, tokens, config=config, precision=precision, dropout=dropout)
    return F.linear(last, parameters["head.weight"].to(last.dtype)).float()


def hidden(
    parameters: Mapping[str, Tensor],
    tokens: Tensor,
    *,
    config: ModelConfig,
    precision: str = "f32",
    dropout: Dropout | None = None,
) -> Tensor:
    """What the head is put on: the stream after the last norm, (batch, length, width)."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, parameters[f"{name}.weight"].to(dtype))

    def norm(x: Tensor, name: str) -> Tensor:
        weight, bias = parameters[f"{name}.weight"], parameters[f"{name}.bias"]
        return F.layer_norm(x.float(), (config.width,), weight, bias).to(dtype)

    length = tokens.shape[1]
    stream = F.embedding(tokens, parameters["embed.tokens"].to(dtype))
    stream = stream + parameters["embed.positions"][:length].to(dtype)
    stream = drop(stream, dropout)
    for layer in range(config.layers):
        block = f"blocks.{layer}"
        qkv = linear(norm(stream, f"{block}.attention.norm"), f"{block}.attention.qkv")
        mixed = attend(qkv, heads=config.heads)
        stream = stream + drop(linear(mixed, f"{block}.attention.out"), dropout)
        wide = F.gelu(linear(norm(stream, f"{block}.mlp.norm"), f"{block}.mlp.up"))
        stream = stream + drop(linear(wide, f"{block}.mlp.down"), dropout)
    return norm(stream, "norm")


def attend(qkv: Tensor, *, heads: int) -> Tensor:
    """Causal attention: (batch, length, 3 * width) to (batch, length, width)."""
    batch, length, triple = qkv.shape
    width = triple // 3
    query, key, value = qkv.view(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, length, width)


def drop(x: Tensor, dropout: Dropout | None) -> Tensor:
    """Zero a share of ``x`` and scale up the rest. torch's own dropout takes no generator."""
    if dropout is None or dropout.rate == 0.0:
        return x
    kept = torch.empty_like(x).bernoulli_(1.0 - dropout.rate, generator=dropout.generator)
    return x * kept / (1.0 - dropout.rate)


def loss(
    parameters: Mapping[str, Tensor],
    batch: Tensor,
    *,
    config: ModelConfig,
    precision: str = "f32",
    dropout: Dropout | None = None,
) -> Tensor:
    """Mean cross entropy (F32, nats a token) of int64 ``batch``, shape (windows, length + 1)."""
    predicted = logits(
        parameters, batch[:, :-1], config=config, precision=precision, dropout=dropout
    )
    return F.cross_entropy(predicted.flatten(0, 1), batch[:, 1:].flatten())
