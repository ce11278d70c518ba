"""A manifest may be damaged or hostile; no name of it is used before it was checked."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.manifest import FileEntry, checkpoint_manifest, decode_manifest, encode_manifest

ENTRY = FileEntry(sha256="0" * 64, size=7)
FILES = ("config.json", "model.safetensors", "optimizer.safetensors", "trainer_state.json")
GOOD: dict[str, Any] = json.loads(
    encode_manifest(checkpoint_manifest(step=3, files=dict.fromkeys(FILES, ENTRY)))
)


def with_file(name: str) -> bytes:
    """A manifest that also lists ``name``."""
    files = GOOD["files"] | {name: {"sha256": "0" * 64, "size": 1}}
    return json.dumps(GOOD | {"files": files}).encode()


def test_what_is_written_is_read_back() -> None:
    manifest = checkpoint_manifest(step=3, files=dict.fromkeys(FILES, ENTRY))
    assert decode_manifest(encode_manifest(manifest)) == manifest
    assert list(GOOD) == ["files", "format", "kind", "step"]


@pytest.mark.parametrize("name", ["tokenizer.json", "heads/a.json", "evals/summary.json", "A-b_1"])
def test_a_plain_name_is_taken(name: str) -> None:
    assert name in decode_manifest(with_file(name)).files


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("/etc/passwd", "absolute"),
        ("../x", "leads out"),
        ("heads/../../x", "leads out"),
        ("..", "leads out"),
        ("a\\b", "backslash"),
        ("a\0b", "NUL"),
        ("MANIFEST.json", "manifest itself"),
        ("", "neither"),
        (".", "neither"),
        (".hidden", "neither"),
        ("a/b", "neither"),
        ("heads/x", "neither"),
        ("heads/a/b.json", "neither"),
        ("evals/other.json", "neither"),
        ("x\n", "neither"),
        ("x" * 129, "neither"),
        ("\N{FULLWIDTH FULL STOP}\N{FULLWIDTH FULL STOP}/x", "neither"),
    ],
)
def test_a_name_that_leads_elsewhere_is_refused(name: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode_manifest(with_file(name))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "tinyllm-manifest/2"}, "tinyllm-manifest/2"),
        ({"format": None}, "format"),
        ({"kind": "backup"}, "backup"),
        ({"kind": "release"}, "step"),
        ({"step": "3"}, "step"),
        ({"step": -1}, "step"),
        ({"extra": 1}, "extra"),
        ({"files": []}, "files"),
        ({"files": {}}, "does not list config.json, model.safetensors"),
        ({"files": GOOD["files"] | {"x": {"sha256": "0" * 63, "size": 1}}}, "sha256"),
        ({"files": GOOD["files"] | {"x": {"sha256": "0" * 64, "size": -1}}}, "size"),
        ({"files": GOOD["files"] | {"x": {"sha256": "0" * 64, "size": 2**70}}}, "size"),
        ({"files": GOOD["files"] | {"x": {"sha256": "0" * 64}}}, "size"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_manifest(json.dumps(GOOD | change).encode())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
def test_rubbish_is_a_value_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_manifest(data)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_a_good_manifest_with_one_wrong_value_is_a_value_error(key: str, value: object) -> None:
    document = GOOD | {key: value}
    if document == GOOD or (key == "step" and type(value) is int and 0 <= value <= 999_999):
        return
    with pytest.raises(ValueError, match=r"."):
        decode_manifest(json.dumps(document).encode())


def test_deep_nesting_is_a_value_error() -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_manifest(b'{"files":' * 100_000)
