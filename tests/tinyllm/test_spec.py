"""The train spec is read strictly: what is wrong is named, and nothing else ever happens."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import runs
from tinyllm.errors import SpecError
from tinyllm.spec import (
    AdamW,
    Data,
    ModelConfig,
    Muon,
    Schedule,
    Sgd,
    Source,
    TrainSpec,
    parse_model_config,
    read_spec,
)

BASE = runs.spec_content()


def _read(tmp_path: Path, content: object) -> None:
    path = tmp_path / "spec.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    read_spec(path)


def _changed(where: str, value: object) -> dict[str, Any]:
    """The base spec with one value replaced; ``where`` is like ``data.seq_length``."""
    content: dict[str, Any] = json.loads(json.dumps(BASE))
    *above, last = where.split(".")
    place = content
    for key in above:
        place = place[key]
    place[last] = value
    return content


def test_the_model_object_is_kept_byte_for_byte(tmp_path: Path) -> None:
    model = (
        '{ "width":32,\n  "layers": 1, "heads":\t2, "tl_tokenizer": "bytes", '
        '"vocab_size": 256, "context": 32 }'
    )
    content = json.dumps(BASE | {"model": "MODEL"}).replace('"MODEL"', model)
    path = tmp_path / "spec.json"
    path.write_text(content)
    loaded = read_spec(path)
    assert loaded.config_bytes == model.encode()
    assert (loaded.model.width, loaded.generation_config_bytes) == (32, None)


def test_generation_config_is_kept_byte_for_byte() -> None:
    loaded = read_spec(runs.SMOKE / "file-tokenizer.json")
    assert loaded.generation_config_bytes is not None
    assert json.loads(loaded.generation_config_bytes)["top_k"] == 40
    assert loaded.generation_config_bytes in (runs.SMOKE / "file-tokenizer.json").read_bytes()


def test_the_optimizers_of_the_smoke_configs() -> None:
    kinds = {name: read_spec(runs.SMOKE / f"{name}.json") for name in runs.CONFIGS}
    assert isinstance(kinds["adamw"].spec.optimizer, AdamW)
    assert isinstance(kinds["sgd"].spec.optimizer, Sgd)
    assert isinstance(kinds["muon"].spec.optimizer, Muon)
    assert [kinds[name].optimizer_name for name in ("adamw", "sgd", "muon")] == [
        "adamw",
        "sgd",
        "muon",
    ]


@pytest.mark.parametrize("where", ["colour", "data.colour", "model.colour", "optimizer.colour"])
def test_an_unknown_key_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(SpecError, match=r"spec\.json.*colour"):
        _read(tmp_path, _changed(where, 1))


@pytest.mark.parametrize("key", ["model", "data", "optimizer", "schedule", "seed", "steps"])
def test_a_missing_key_is_named(tmp_path: Path, key: str) -> None:
    with pytest.raises(SpecError, match=key):
        _read(tmp_path, {name: value for name, value in BASE.items() if name != key})


@pytest.mark.parametrize(
    ("where", "value", "says"),
    [
        ("steps", 0, "steps 0 is not in 1..999999"),
        ("steps", 1_000_000, "steps 1000000 is not in 1..999999"),
        ("steps", 16.0, "steps"),
        ("steps", "16", "steps"),
        ("steps", True, "steps"),
        ("ckpt_every", 0, "ckpt_every 0"),
        ("keep_ckpts", 0, "keep_ckpts 0 is not in 1..999999; the newest checkpoint is always kept"),
        ("keep_ckpts", -1, "keep_ckpts -1"),
        ("batch_size", 0, "batch_size"),
        ("seed", -1, "seed"),
        ("seed", 2**63, "seed"),
        ("dropout", 1.0, "dropout"),
        ("precision", "f16", "precision"),
        ("schedule.name", "step", "schedule"),
        ("schedule.warmup_steps", 17, "warmup_steps 17 is more than steps 16"),
        ("optimizer.name", "adam", "optimizer"),
        ("optimizer.lr", 0, "lr"),
        ("optimizer.betas", [0.9, 1.0], "betas"),
        ("optimizer.lr", None, "lr"),
        ("data.sources", [], "sources"),
        ("data.seq_length", 33, "seq_length 33 is more than the model's context 32"),
        ("data.max_windows", 0, "max_windows"),
        ("model.heads", 3, "width 32 is not divisible by heads 3"),
        ("model.vocab_size", 257, "vocab_size 257 with tl_tokenizer bytes"),
        ("model.tl_tokenizer", "file", "tokenizer names a file exactly when"),
        ("model", 7, "model"),
        ("tokenizer", "tokenizer.json", "tokenizer names a file exactly when"),
        ("generation_config", [], "generation_config"),
        ("generation_config", None, "generation_config"),
    ],
)
def test_a_wrong_value_is_named(tmp_path: Path, where: str, value: object, says: str) -> None:
    with pytest.raises(SpecError, match=rf"(?s)spec\.json.*{says}"):
        _read(tmp_path, _changed(where, value))


def test_a_source_has_a_name_of_its_own(tmp_path: Path) -> None:
    source = {"name": "a", "path": "a.txt"}
    with pytest.raises(SpecError, match="two sources are named a"):
        _read(tmp_path, _changed("data.sources", [source, source]))
    with pytest.raises(SpecError, match="name"):
        _read(tmp_path, _changed("data.sources", [source | {"name": "a/b"}]))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "truncated"),
        ("[]", "got `array`"),
        ("{", "truncated"),
        (json.dumps(BASE) + "}", "trailing"),
        (json.dumps(BASE)[:-1] + ', "seed": 2}', "'seed' stands twice"),
        (json.dumps(BASE).replace('"heads"', '"width": 32, "heads"'), "'width' stands twice"),
        ("[" * 100_000, "nested too deeply|recursion|array"),
        (json.dumps(BASE).replace('"seed": 1729', '"seed": NaN'), "malformed|invalid"),
    ],
)
def test_what_is_not_a_spec_at_all(tmp_path: Path, content: str, says: str) -> None:
    with pytest.raises(SpecError, match=says):
        _read(tmp_path, content)


def test_what_is_not_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "large").write_bytes(b" " * ((1 << 20) + 1))
    for name, says in [
        ("fifo", "not a regular file"),
        ("large", "1048577 bytes; at most 1048576"),
        (".", "not a regular file|cannot be opened"),
        ("missing", "No such file"),
        ("a\0b", "null byte"),
    ]:
        with pytest.raises(SpecError, match=says):
            read_spec(tmp_path / name)


def test_the_documentation_names_every_key_and_its_example_is_a_spec(tmp_path: Path) -> None:
    text = (runs.SMOKE.parent / "docs/train-spec.md").read_text()
    _read(tmp_path, text.split("```json\n")[1].split("```")[0])
    structs = (TrainSpec, ModelConfig, Data, Source, AdamW, Sgd, Muon, Schedule)
    for kind in structs:
        for name in kind.__struct_fields__:
            assert f"`{name}`" in text, f"{kind.__name__}.{name}"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_rubbish_is_refused(content: bytes) -> None:
    with pytest.raises(SpecError, match="here"):
        parse_model_config(content, where="here")


@given(st.sampled_from(sorted(BASE)), json_values)
def test_a_spec_with_one_rubbish_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, key: str, value: object
) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish.json"
    path.write_text(json.dumps(BASE | {key: value}))
    try:
        spec = read_spec(path).spec
    except SpecError as error:
        said = str(error)
    else:
        said = f"{path} is right"
        assert 1 <= spec.steps <= 999_999
        assert spec.keep_ckpts >= 1
    assert str(path) in said
