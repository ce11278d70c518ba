"""The documents that a release is decided on, fed rubbish: refused in words, never with a crash."""

import contextlib
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import releases
from tinyllm.card import card_problems, card_template, placeholders
from tinyllm.chat import decode_tokenizer_config, template_problems
from tinyllm.evals import decode_summary, summary_problems
from tinyllm.generation_config import decode_generation_config
from tinyllm.heads import decode_head
from tinyllm.ledger import decode_ledger_row, ledger_problems
from tinyllm.manifest import RELEASE_REQUIRED, decode_manifest
from tinyllm.progress import SourceRecord

SUMMARY = json.loads((releases.EXAMPLE / "summary.json").read_text())
HEAD = json.loads((releases.EXAMPLE / "head.json").read_text())
LEDGER = json.loads((releases.EXAMPLE / "ledger.json").read_text())
SOURCES = (SourceRecord("essays", LEDGER[0]["sha256"]),)
MANIFEST: dict[str, Any] = {
    "format": "tinyllm-manifest/1",
    "kind": "release",
    "model_id": "m",
    "version": "1",
    "files": {
        name: {"sha256": "0" * 64, "size": 1}
        for name in (
            "MODEL_CARD.md",
            "config.json",
            "evals/summary.json",
            "heads/tone.json",
            "ledger.json",
            "model.safetensors",
        )
    },
}

DECODERS: dict[str, tuple[Callable[[bytes], object], Any]] = {
    "summary": (decode_summary, SUMMARY),
    "head": (decode_head, HEAD),
    "ledger row": (decode_ledger_row, LEDGER[0]),
    "manifest": (decode_manifest, MANIFEST),
    "generation config": (decode_generation_config, {"top_k": 3, "stop": ["x"]}),
    "tokenizer config": (decode_tokenizer_config, {"chat_template": "x", "model_max_length": 8}),
}

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "train", "x" * 300, "../x", "essays", "smoke", "\0"])
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=8,
)


def changed(document: Any, data: st.DataObject) -> Any:
    """``document`` with one to three of its values replaced, dropped, or put in anew."""
    document = json.loads(json.dumps(document))
    for _ in range(data.draw(st.integers(1, 3))):
        place = document
        while True:
            keys = list(place) if isinstance(place, dict) else list(range(len(place)))
            if not keys:
                break
            key = data.draw(st.sampled_from(keys))
            if isinstance(place[key], dict | list) and place[key] and data.draw(st.booleans()):
                place = place[key]
                continue
            if data.draw(st.booleans()):
                place[key] = data.draw(JSON)
            else:
                del place[key]
            break
    return document


@pytest.mark.parametrize("name", DECODERS)
@given(data=st.data())
def test_rubbish_is_refused_with_a_reason(name: str, data: st.DataObject) -> None:
    """The decoders are asked for one kind of error only, whatever the bytes."""
    decode, good = DECODERS[name]
    content = data.draw(
        st.binary(max_size=60)
        | JSON.map(lambda value: json.dumps(value).encode())
        | st.just(None).map(lambda _: json.dumps(changed(good, data)).encode())
        | st.integers(0, len(json.dumps(good))).map(lambda n: json.dumps(good).encode()[:n])
    )
    with contextlib.suppress(ValueError):
        decode(content)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b"NaN",
        b"\x00{\x00}",
        b'"\\ud800"',
        b"1" * 10_000,
        b"[1e999]",
        b'{"seed": 1e400}',
    ],
    ids=lambda content: content[:8].hex() or "empty",
)
def test_what_parsers_stumble_over(name: str, content: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        DECODERS[name][0](content)


@given(data=st.data())
def test_no_ledger_talks_the_gate_round(data: st.DataObject) -> None:
    """When nothing is wrong, then every row allows training, none is revoked, the source is there:
    read again by another parser."""
    rows = changed([LEDGER[0], LEDGER[0] | {"source": "more"}], data)
    content = json.dumps(rows).encode()
    if ledger_problems(content, SOURCES):
        return
    assert isinstance(rows, list)
    assert all("train" in row["allowed_uses"] and row["revoked"] is False for row in rows)
    assert any((r["source"], r["sha256"]) == (SOURCES[0].name, SOURCES[0].sha256) for r in rows)


@given(data=st.data())
def test_no_summary_talks_the_gate_round(data: st.DataObject) -> None:
    second = SUMMARY["results"][0] | {"name": "more", "higher_is_better": True, "threshold": 1.0}
    summary = changed(SUMMARY | {"results": [SUMMARY["results"][0], second]}, data)
    problems = summary_problems(json.dumps(summary).encode(), model_id="smoke", run_id="r", step=3)
    if problems:
        return
    assert (summary["model_id"], summary["run_id"], summary["step"]) == ("smoke", "r", 3)
    assert summary["passed"] is True
    assert summary["results"]
    for result in summary["results"]:
        assert result["passed"] is True
        above, exactly = (
            result["value"] - result["threshold"],
            result["value"] == result["threshold"],
        )
        assert exactly or (above > 0) is result["higher_is_better"]


def test_the_good_ones_open_it() -> None:
    assert ledger_problems(json.dumps(LEDGER).encode(), SOURCES) == []
    content = json.dumps(SUMMARY).encode()
    assert summary_problems(content, model_id="smoke", run_id="r", step=3) == []
    for decode, good in DECODERS.values():
        decode(json.dumps(good).encode())


@given(data=st.data())
def test_a_head_that_is_read_can_be_multiplied(data: st.DataObject) -> None:
    small = {"name": "h", "width": 2, "pooling": "last", "classes": ["a", "b"]}
    document = changed(small | {"weight": [[1, 2], [3, 4]], "bias": [0, 0]}, data)
    try:
        head = decode_head(json.dumps(document).encode())
    except ValueError:
        return
    assert [len(row) for row in head.weight] == [head.width] * len(head.classes)
    assert len(head.bias) == len(set(head.classes)) == len(head.classes)


@given(st.text(max_size=80))
def test_a_card_with_a_placeholder_in_any_surroundings_is_none(text: str) -> None:
    for name in placeholders(card_template())[:3]:
        found = card_problems(f"{text} {{{{{name}}}}} {text}".encode(errors="replace"))
        assert found, text


@given(st.binary(max_size=60))
def test_any_bytes_are_judged_as_a_card_and_as_a_template(data: bytes) -> None:
    for problems in (card_problems(data), template_problems(data)):
        assert all(problems)


@given(st.text(alphabet="{}%# abi.()_'|mesg+1", max_size=40))
def test_any_template_is_judged_and_none_gets_out(text: str) -> None:
    assert all(template_problems(text.encode()))


@pytest.mark.parametrize(
    "name",
    ["", "/x", "../x", "heads/../x", "heads/x", "heads/.json", "heads/a/b.json", "evals/x.json",
     "MANIFEST.json", "a\\b", "a\0", "a\n", ".x", "evals/summary.json/", "heads/x.json\n"],
)  # fmt: skip
def test_names_that_no_manifest_may_hold(name: str) -> None:
    files = MANIFEST["files"] | {name: {"sha256": "0" * 64, "size": 1}}
    with pytest.raises(ValueError, match="file name"):
        decode_manifest(json.dumps(MANIFEST | {"files": files}).encode())


@pytest.mark.parametrize("name", sorted(RELEASE_REQUIRED))
def test_a_release_lists_at_least_these(name: str) -> None:
    files = {n: e for n, e in MANIFEST["files"].items() if n != name}
    with pytest.raises(ValueError, match=f"does not list {name}"):
        decode_manifest(json.dumps(MANIFEST | {"files": files}).encode())
