"""The JSON Schemas and the structs that read the same files say the same."""

import copy
import json
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import msgspec
import pytest
import referencing

from tests.tinyllm import checkpoints
from tinyllm import progress
from tinyllm.documents import decode_strictly
from tinyllm.evals import EvalResult, decode_summary
from tinyllm.generation_config import decode_generation_config
from tinyllm.heads import decode_head
from tinyllm.ledger import decode_ledger_row
from tinyllm.manifest import FileEntry, checkpoint_manifest, decode_manifest, encode_manifest
from tinyllm.schema_names import (
    EVAL_SCHEMA,
    GENERATION_SCHEMA,
    HEAD_SCHEMA,
    LEDGER_SCHEMA,
    MANIFEST_SCHEMA,
    PROGRESS_SCHEMA,
    SCHEMAS,
    TRAINER_STATE_SCHEMA,
    load_schema,
)
from tinyllm.state import decode_state, encode_state

ENTRY = FileEntry(sha256="0" * 64, size=7)
CHECKPOINT = json.loads(
    encode_manifest(
        checkpoint_manifest(
            step=3,
            files=dict.fromkeys(
                ["config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json"],
                ENTRY,
            ),
        )
    )
)
ENTRIES = {
    name: {"sha256": "0" * 64, "size": 1}
    for name in ("model.safetensors", "config.json", "MODEL_CARD.md", "ledger.json")
}
RELEASE = {
    "format": "tinyllm-manifest/1",
    "kind": "release",
    "model_id": "m",
    "version": "1.0",
    "files": ENTRIES | {"evals/summary.json": {"sha256": "0" * 64, "size": 1}},
}
STATE = json.loads(encode_state(checkpoints.state(12)))
GENERATION = {
    "max_new_tokens": 5,
    "temperature": 0.5,
    "top_k": 0,
    "top_p": 1,
    "seed": 3,
    "stop": ["."],
}
LEDGER_ROW = {"source": "a", "sha256": "0" * 64, "allowed_uses": ["train"], "revoked": False}
HEAD = {
    "name": "tone",
    "width": 2,
    "pooling": "mean",
    "classes": ["calm", "loud"],
    "weight": [[0.5, 1], [-1, 0]],
    "bias": [0, 0.1],
}
RESULT = {
    "name": "essays",
    "metric": "nats a token",
    "value": 5.9,
    "threshold": 6,
    "higher_is_better": False,
    "passed": True,
}
SUMMARY = {
    "model_id": "m",
    "run_id": "r",
    "step": 3,
    "suite": "all",
    "passed": True,
    "results": [RESULT],
}
SOURCES = (progress.SourceRecord("a", "0" * 64),)
LINES: tuple[progress.Line, ...] = (
    progress.Start(1, 8, "0" * 64, SOURCES),
    progress.Resume(2, 4, "step-000004", 8, "0" * 64, SOURCES),
    progress.step_line(1, 3, loss=1.5, lr=0.1),
    progress.step_line(1, 3, loss=float("nan"), lr=0.1),
    progress.Ckpt(1, 4, "step-000004"),
    progress.Skip(1, "LATEST", "is missing"),
    progress.Done(1, 8),
    progress.Error(1, 3, "x: cannot write"),
)

# Values put in every place of a good document, in turn.
REPLACEMENTS: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    2,
    1.5,
    2**63,
    1_000_000,
    "",
    "x",
    "0",
    "0\n",
    "a" * 40,
    "a" * 64,
    "a" * 64 + "\n",
    "../x",
    [],
    {},
    ["", "x"],
    {"x": 1},
)


def variants(document: Any) -> Iterator[Any]:
    """The document with one thing changed: a key gone, a key more, a value replaced."""
    yield document
    for path in _places(document):
        for value in REPLACEMENTS:
            changed = copy.deepcopy(document)
            _at(changed, path[:-1])[path[-1]] = value
            yield changed
        if isinstance(_at(document, path[:-1]), dict):
            changed = copy.deepcopy(document)
            del _at(changed, path[:-1])[path[-1]]
            yield changed
    for path in [(), *_places(document)]:
        if isinstance(_at(document, path), dict):
            for key in ("extra", "evals/summary.json", "heads/../x", "MANIFEST.json", "/x"):
                changed = copy.deepcopy(document)
                _at(changed, path)[key] = {"sha256": "0" * 64, "size": 1}
                yield changed


def _places(document: Any, above: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items: list[tuple[Any, Any]] = []
    if isinstance(document, dict):
        items = list(document.items())
    elif isinstance(document, list):
        items = list(enumerate(document))
    found = []
    for key, value in items:
        found.append((*above, key))
        found += _places(value, (*above, key))
    return found


def _at(document: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        document = document[key]
    return document


def _decode_line(data: bytes) -> None:
    try:
        msgspec.json.decode(data, type=progress.Line, strict=True)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error


def _decode_result(data: bytes) -> None:
    decode_strictly(data, EvalResult)


def _beyond_the_schema(document: Any) -> bool:
    """What only the struct can say: a generator's increment is odd, a head's sizes agree."""
    try:
        if "generator" in document:
            return int(document["generator"]["increment"]) % 2 == 0
        if "classes" in document:
            count = len(set(document["classes"])) + len(document["classes"])
            lengths = [len(row) for row in document["weight"]]
            return (count, lengths) != (4, [document["width"]] * 2) or len(document["bias"]) != 2
    except (KeyError, TypeError, ValueError):
        pass
    return False


@pytest.mark.parametrize(
    ("name", "document", "decode"),
    [
        (MANIFEST_SCHEMA, CHECKPOINT, decode_manifest),
        (MANIFEST_SCHEMA, RELEASE, decode_manifest),
        (TRAINER_STATE_SCHEMA, STATE, decode_state),
        (GENERATION_SCHEMA, GENERATION, decode_generation_config),
        (LEDGER_SCHEMA, LEDGER_ROW, decode_ledger_row),
        (HEAD_SCHEMA, HEAD, decode_head),
        (EVAL_SCHEMA, RESULT, _decode_result),
    ],
)
def test_schema_and_struct_accept_and_refuse_the_same(
    name: str, document: Any, decode: Callable[[bytes], Any]
) -> None:
    validator = jsonschema.Draft202012Validator(load_schema(name))
    accepted = refused = 0
    for variant in variants(document):
        by_schema = validator.is_valid(variant)
        try:
            decode(json.dumps(variant).encode())
            by_struct = True
        except ValueError:
            by_struct = False
        if _beyond_the_schema(variant):
            continue
        assert by_schema == by_struct, variant
        accepted += by_schema
        refused += not by_schema
    assert accepted >= 1
    assert refused > 50


def test_the_summary_is_a_definition_of_the_schema_of_a_result() -> None:
    schema = load_schema(EVAL_SCHEMA)
    registry = referencing.Registry().with_resource(
        "eval-result", referencing.Resource.from_contents(schema)
    )
    validator = jsonschema.Draft202012Validator(
        {"$ref": "eval-result#/$defs/summary"}, registry=registry
    )
    accepted = refused = 0
    for variant in variants(SUMMARY):
        by_schema = validator.is_valid(variant)
        try:
            decode_summary(json.dumps(variant).encode())
            by_struct = True
        except ValueError:
            by_struct = False
        assert by_schema == by_struct, variant
        accepted += by_schema
        refused += not by_schema
    assert accepted > 10
    assert refused > 100


@pytest.mark.parametrize("line", LINES)
def test_every_line_that_is_written_fits_the_schema(line: progress.Line) -> None:
    validator = jsonschema.Draft202012Validator(load_schema(PROGRESS_SCHEMA))
    document = json.loads(msgspec.json.encode(line))
    validator.validate(document)
    for key in document:
        lacking = {k: v for k, v in document.items() if k != key}
        assert not validator.is_valid(lacking), key
        with pytest.raises(ValueError, match=r"."):
            _decode_line(json.dumps(lacking).encode())
    assert not validator.is_valid(document | {"extra": 1})


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schemas_are_of_the_draft_that_they_name(name: str) -> None:
    schema = load_schema(name)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    jsonschema.Draft202012Validator.check_schema(schema)


def test_what_is_saved_fits_the_schemas(tmp_path: Any) -> None:
    ckpt = checkpoints.make_ckpt(tmp_path)
    checkpoints.save(ckpt, 4)
    for file, name in (
        ("MANIFEST.json", MANIFEST_SCHEMA),
        ("trainer_state.json", TRAINER_STATE_SCHEMA),
        ("generation_config.json", GENERATION_SCHEMA),
    ):
        jsonschema.validate(
            json.loads((ckpt / "step-000004" / file).read_text()), load_schema(name)
        )
