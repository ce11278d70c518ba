"""The train spec: one JSON file that says everything about a run, read strictly.

Every key is known or an error that names it, every number has bounds, and nothing is coerced. The
``model`` object is kept as the bytes that stand in the file, because it becomes the checkpoint's
``config.json`` verbatim. The run is identified by the sha256 of the whole file.

``docs/train-spec.md`` describes each key. Not covered: the data, and what is in a tokenizer; they
are read by their own modules.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct

from tinyllm.documents import decode_strictly
from tinyllm.errors import SpecError
from tinyllm.inputs import read_input

SPEC_LIMIT_BYTES = 1 << 20
MAX_STEPS = 999_999  # a step directory's name has six digits

Count = Annotated[int, Meta(ge=1, le=1 << 30)]
Fraction = Annotated[float, Meta(ge=0.0, le=1.0)]
BelowOne = Annotated[float, Meta(ge=0.0, lt=1.0)]
Rate = Annotated[float, Meta(gt=0.0, le=1000.0)]
Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
FilePath = Annotated[str, Meta(min_length=1, max_length=4096)]


class ModelConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The decoder's shape, and where its tokens come from."""

    tl_tokenizer: Literal["bytes", "file"]
    vocab_size: Annotated[int, Meta(ge=2, le=1 << 20)]
    width: Annotated[int, Meta(ge=1, le=1 << 16)]
    layers: Annotated[int, Meta(ge=1, le=1024)]
    heads: Annotated[int, Meta(ge=1, le=1024)]
    context: Annotated[int, Meta(ge=1, le=1 << 20)]


class Source(Struct, frozen=True, forbid_unknown_fields=True):
    """One file of training data. ``name`` is what a ledger of sources knows it by."""

    name: Name
    path: FilePath
    kind: Literal["text", "tokens-u16"] = "text"


class Data(Struct, frozen=True, forbid_unknown_fields=True):
    """Where the windows come from. ``seq_length`` is in tokens; ``max_windows`` bounds an epoch."""

    sources: Annotated[tuple[Source, ...], Meta(min_length=1, max_length=1024)]
    seq_length: Annotated[int, Meta(ge=1, le=1 << 20)]
    max_windows: Count | None = None


class AdamW(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="adamw"):
    """AdamW; the numbers are those of ``torch.optim.AdamW``."""

    lr: Rate
    betas: tuple[BelowOne, BelowOne] = (0.9, 0.95)
    eps: Rate = 1e-8
    weight_decay: Fraction = 0.0


class Sgd(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="sgd"):
    """SGD with momentum; the numbers are those of ``torch.optim.SGD``."""

    lr: Rate
    momentum: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.9
    weight_decay: Fraction = 0.0


class Muon(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="muon"):
    """Muon for the hidden matrices, and the AdamW that goes beside it for the rest."""

    lr: Rate
    adamw: AdamW
    momentum: Annotated[float, Meta(gt=0.0, lt=1.0)] = 0.95
    weight_decay: Fraction = 0.0


class Schedule(Struct, frozen=True, forbid_unknown_fields=True):
    """How the learning rate goes; see :mod:`tinyllm.schedule`."""

    name: Literal["constant", "linear", "cosine"]
    warmup_steps: Annotated[int, Meta(ge=0, le=MAX_STEPS)] = 0
    final_factor: Fraction = 0.0


class TrainSpec(Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content. ``model`` and ``generation_config`` are kept as bytes, which are empty
    when the latter is left out."""

    model: msgspec.Raw
    data: Data
    optimizer: AdamW | Sgd | Muon
    schedule: Schedule
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)]
    batch_size: Annotated[int, Meta(ge=1, le=1 << 20)]
    steps: int
    ckpt_every: int
    keep_ckpts: int
    precision: Literal["f32", "bf16"] = "f32"
    dropout: BelowOne = 0.0
    tokenizer: FilePath | None = None
    generation_config: msgspec.Raw = msgspec.Raw()


@dataclass(frozen=True, slots=True)
class LoadedSpec:
    """A spec that was read and checked: its own content, the model's, and the file's identity."""

    path: Path
    sha256: str
    spec: TrainSpec
    model: ModelConfig

    def resolve(self, path: str) -> Path:
        """A path of the spec, which is relative to the spec's own directory."""
        return self.path.parent / path

    @property
    def optimizer_name(self) -> str:
        """``adamw``, ``sgd`` or ``muon``."""
        return str(self.spec.optimizer.__struct_config__.tag)

    @property
    def config_bytes(self) -> bytes:
        """``config.json``: the model object, verbatim."""
        return bytes(self.spec.model)

    @property
    def generation_config_bytes(self) -> bytes | None:
        """``generation_config.json``, verbatim, when the spec has one."""
        return bytes(self.spec.generation_config) or None


def read_spec(path: Path) -> LoadedSpec:
    """Read and check a train spec; SpecError says what is wrong in which file."""
    content = read_input(path, what="train spec", limit_bytes=SPEC_LIMIT_BYTES)
    spec = _decode(content, TrainSpec, where=f"train spec {path}")
    model = parse_model_config(bytes(spec.model), where=f"train spec {path}, model")
    if bytes(spec.generation_config):
        _decode(bytes(spec.generation_config), dict, where=f"train spec {path}, generation_config")
    for problem in _problems(spec, model):
        raise SpecError(f"train spec {path}: {problem}")
    return LoadedSpec(path=path, sha256=hashlib.sha256(content).hexdigest(), spec=spec, model=model)


def parse_model_config(content: bytes, *, where: str) -> ModelConfig:
    """A model object or a ``config.json``; SpecError begins with ``where``."""
    model = _decode(content, ModelConfig, where=where)
    if model.width % model.heads:
        raise SpecError(
            f"{where}: width {model.width} is not divisible by heads {model.heads}; "
            "each head takes an equal part of the width"
        )
    if model.tl_tokenizer == "bytes" and model.vocab_size != 256:
        raise SpecError(f"{where}: vocab_size {model.vocab_size} with tl_tokenizer bytes; use 256")
    return model


def _problems(spec: TrainSpec, model: ModelConfig) -> list[str]:
    """What is wrong with a spec whose every key is right by itself."""
    problems = []
    if not 1 <= spec.steps <= MAX_STEPS:
        problems.append(f"steps {spec.steps} is not in 1..{MAX_STEPS}")
    if not 1 <= spec.ckpt_every <= MAX_STEPS:
        problems.append(f"ckpt_every {spec.ckpt_every} is not in 1..{MAX_STEPS}")
    if not 1 <= spec.keep_ckpts <= MAX_STEPS:
        problems.append(
            f"keep_ckpts {spec.keep_ckpts} is not in 1..{MAX_STEPS}; the newest checkpoint is "
            f"always kept, and {MAX_STEPS} keeps all"
        )
    if spec.schedule.warmup_steps > spec.steps:
        problems.append(
            f"warmup_steps {spec.schedule.warmup_steps} is more than steps {spec.steps}"
        )
    if spec.data.seq_length > model.context:
        problems.append(
            f"seq_length {spec.data.seq_length} is more than the model's context {model.context}"
        )
    if (model.tl_tokenizer == "file") != (spec.tokenizer is not None):
        problems.append('tokenizer names a file exactly when the model says "tl_tokenizer": "file"')
    names = [source.name for source in spec.data.sources]
    problems += [f"two sources are named {name}" for name in names if names.count(name) > 1]
    return problems


T = TypeVar("T")


def _decode(content: bytes, kind: type[T], *, where: str) -> T:
    try:
        return decode_strictly(content, kind)
    except ValueError as error:
        raise SpecError(f"{where}: {error}") from None
