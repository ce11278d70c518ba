"""From a model directory to a model that can be run: releases in each form, and checkpoints.

The weights become F32 tensors, whatever they are stored as: bfloat16 exactly, int4 by its formula
(see ``quantize``). So one model computes the same everywhere, and an int4 release takes the memory
of an F32 one while it runs.

A directory is verified against its manifest first, and the weights are read from the very file that
was verified.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tinyllm.chat import TOKENIZER_CONFIG_FILE, TokenizerConfig, decode_tokenizer_config
from tinyllm.durable import open_directory
from tinyllm.errors import ModelUnusable, SpecError
from tinyllm.forms import GROUP_SIZES
from tinyllm.generation_config import GenerationConfig, decode_generation_config
from tinyllm.guarded import Unreadable, open_regular, read_bounded
from tinyllm.heads import LinearHead, decode_head, head_file
from tinyllm.manifest import CONFIG_FILE, GENERATION_FILE, MODEL_FILE, TOKENIZER_FILE
from tinyllm.quantize import dequantise
from tinyllm.shapes import shapes
from tinyllm.spec import ModelConfig, parse_model_config
from tinyllm.tensor_files import read_tensors
from tinyllm.verification import MAX_SMALL_BYTES, verify_directory

_QWEIGHT, _SCALES = ".qweight", ".scales"


@dataclass(frozen=True, slots=True)
class Model:
    """A model in memory. ``parameters`` are F32; ``stored_as`` is f32, bf16 or int4.

    ``tokenizer`` is the content of ``tokenizer.json`` (None: bytes are the tokens), ``heads`` are
    by name, ``chat`` is None without a chat template.
    """

    path: str
    config: ModelConfig
    stored_as: str
    parameters: Mapping[str, Tensor]
    generation: GenerationConfig
    tokenizer: bytes | None
    chat: TokenizerConfig | None
    heads: Mapping[str, LinearHead]


def load_model(path: str, *, verify: bool) -> Model:
    """See :func:`tinyllm.load`."""
    contents, fd = _verified(path) if verify else _unverified(path)
    try:
        return _assemble(path, contents, fd)
    except (ValueError, SpecError) as error:
        raise ModelUnusable(f"{path}: {error}") from error
    finally:
        os.close(fd)


def _verified(path: str) -> tuple[Mapping[str, bytes], int]:
    verdict = verify_directory(os.path.abspath(path), keep_open=(MODEL_FILE,))
    if not verdict.verifies:
        raise ModelUnusable(f"{path} does not verify: {verdict.why()}")
    return verdict.contents, verdict.descriptors[MODEL_FILE]


def _unverified(path: str) -> tuple[Mapping[str, bytes], int]:
    contents = {}
    with open_directory(path) as directory:
        names = [CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE]
        if os.path.isdir(os.path.join(path, "heads")):
            names += [f"heads/{name}" for name in sorted(os.listdir(os.path.join(path, "heads")))]
        try:
            for name in names:
                if name == CONFIG_FILE or os.path.lexists(directory.at(name)):
                    what = name
                    contents[name] = read_bounded(directory, name, limit_bytes=MAX_SMALL_BYTES)
            what = MODEL_FILE
            fd, _ = open_regular(directory, MODEL_FILE)
        except Unreadable as error:
            raise ModelUnusable(f"{directory.at(what)}: {error.reason}") from error
    return contents, fd


def _assemble(path: str, contents: Mapping[str, bytes], fd: int) -> Model:
    config = parse_model_config(contents[CONFIG_FILE], where=CONFIG_FILE)
    parameters, stored_as = _parameters(read_tensors(fd), config)
    tokenizer = contents.get(TOKENIZER_FILE) if config.tl_tokenizer == "file" else None
    if config.tl_tokenizer == "file" and tokenizer is None:
        raise ValueError(f"{TOKENIZER_FILE} is not there, but {CONFIG_FILE} needs it")
    heads = {}
    for name, data in contents.items():
        if name.startswith("heads/"):
            head = decode_head(data)
            if head_file(head.name) != name or head.width != config.width:
                raise ValueError(f"{name} is the head {head.name} of width {head.width}")
            heads[head.name] = head
    chat = contents.get(TOKENIZER_CONFIG_FILE)
    return Model(
        path=path,
        config=config,
        stored_as=stored_as,
        parameters=parameters,
        generation=decode_generation_config(contents.get(GENERATION_FILE, b"{}")),
        tokenizer=tokenizer,
        chat=None if chat is None else decode_tokenizer_config(chat),
        heads=heads,
    )


def _parameters(stored: Mapping[str, Tensor], config: ModelConfig) -> tuple[dict[str, Tensor], str]:
    """The F32 parameters, and the form in which they were stored; ValueError when they do not
    fit."""
    result, forms, used = {}, set(), set()
    for name, shape in shapes(config).items():
        packed = f"{name}{_QWEIGHT}", f"{name}{_SCALES}"
        if name in stored:
            used.add(name)
            form = {torch.float32: "f32", torch.bfloat16: "bf16"}.get(stored[name].dtype)
            if form is None:
                raise ValueError(f"{name} is {stored[name].dtype}, not F32 or BF16")
            value = stored[name].to(torch.float32)
        elif all(part in stored for part in packed):
            used.update(packed)
            form, value = "int4", _dequantised(name, stored[packed[0]], stored[packed[1]])
        else:
            raise ValueError(f"{MODEL_FILE} has no {name}")
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} is {list(value.shape)}, not {list(shape)}")
        forms.add(form)
        result[name] = value
    unknown = sorted(set(stored) - used)
    if unknown:
        raise ValueError(f"{MODEL_FILE} has tensors of no use: {', '.join(unknown[:3])}")
    return result, "int4" if "int4" in forms else "bf16" if "bf16" in forms else "f32"


def _dequantised(name: str, packed: Tensor, scales: Tensor) -> Tensor:
    fits = (
        (packed.dtype, scales.dtype) == (torch.uint8, torch.float32)
        and packed.ndim == scales.ndim == 2
        and packed.shape[0] == scales.shape[0]
        and any(scales.shape[1] * group == 2 * packed.shape[1] for group in GROUP_SIZES)
    )
    if not fits:
        raise ValueError(
            f"{name}{_QWEIGHT} {list(packed.shape)} and {name}{_SCALES} {list(scales.shape)} do "
            f"not go together in groups of {', '.join(map(str, GROUP_SIZES))}"
        )
    return torch.from_numpy(dequantise(packed.numpy(), scales.numpy()))
