"""The parameters of a model: their names and shapes, without torch.

A release compares a checkpoint with this list, and has no other use for torch.
"""

from tinyllm.spec import ModelConfig


def shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every parameter, in order."""
    width = config.width
    result: dict[str, tuple[int, ...]] = {
        "embed.tokens": (config.vocab_size, width),
        "embed.positions": (config.context, width),
    }
    for layer in range(config.layers):
        block = f"blocks.{layer}"
        result[f"{block}.attention.norm.weight"] = (width,)
        result[f"{block}.attention.norm.bias"] = (width,)
        result[f"{block}.attention.qkv.weight"] = (3 * width, width)
        result[f"{block}.attention.out.weight"] = (width, width)
        result[f"{block}.mlp.norm.weight"] = (width,)
        result[f"{block}.mlp.norm.bias"] = (width,)
        result[f"{block}.mlp.up.weight"] = (4 * width, width)
        result[f"{block}.mlp.down.weight"] = (width, 4 * width)
    result["norm.weight"] = (width,)
    result["norm.bias"] = (width,)
    result["head.weight"] = (config.vocab_size, width)
    return result
