"""Windows, their order, and where a run is in it."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import runs
from tinyllm import data
from tinyllm.data import Position
from tinyllm.errors import SpecError
from tinyllm.pcg32 import Pcg32
from tinyllm.spec import read_spec
from tinyllm.tokenizer import encode, read_tokenizer


def _load(tmp_path: Path, sources: list[dict[str, str]], **more: int) -> data.Dataset:
    content = {"sources": sources, "seq_length": 4} | more
    spec = runs.write_spec(tmp_path / "spec.json", data=content)
    return data.load(read_spec(spec), tokenizer=None)


def test_windows_overlap_by_one_token_and_do_not_span_sources(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcdefghij")  # 10 tokens: 2 windows of 4 and a target
    (tmp_path / "b").write_bytes(b"12345")
    dataset = _load(tmp_path, [{"name": "a", "path": "a"}, {"name": "b", "path": "b"}])
    rows = [bytes(row.tolist()) for row in data.batch(dataset, [0, 1, 2])]
    assert rows == [b"abcde", b"efghi", b"12345"]
    assert data.batch(dataset, [2]).dtype == np.int64
    assert [name for name, _ in dataset.sources] == ["a", "b"]
    assert dataset.sources[1][1] == (
        "5994471abb01112afcc18159f6cc74b4f511b99806da59b3caf5a9c173cacfc5"
    )


def test_max_windows_takes_the_first(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    dataset = _load(tmp_path, [{"name": "a", "path": "a"}], max_windows=3)
    assert dataset.starts.tolist() == [0, 4, 8]


def test_a_file_of_tokens(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(np.array([0, 255, 1, 2, 3], dtype="<u2").tobytes())
    source = {"name": "t", "path": "t", "kind": "tokens-u16"}
    dataset = _load(tmp_path, [source])
    assert data.batch(dataset, [0]).tolist() == [[0, 255, 1, 2, 3]]
    (tmp_path / "t").write_bytes(np.array([0, 256, 1, 2, 3], dtype="<u2").tobytes())
    with pytest.raises(SpecError, match="token 256 at 1 is outside the model's vocab_size 256"):
        _load(tmp_path, [source])
    (tmp_path / "t").write_bytes(b"abc")
    with pytest.raises(SpecError, match="not a whole number of 16-bit tokens"):
        _load(tmp_path, [source])


def test_a_source_that_is_too_short_or_missing(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abcd")
    with pytest.raises(SpecError, match="source a: 4 tokens are too few for one window of 4"):
        _load(tmp_path, [{"name": "a", "path": "a"}])
    with pytest.raises(SpecError, match=r"source b .*/b cannot be opened: No such file"):
        _load(tmp_path, [{"name": "b", "path": "b"}])


def test_every_epoch_visits_every_window_once_in_an_order_of_its_own() -> None:
    order = data.open_order(data.first_position(7), windows=10)
    seen = []
    for _ in range(10):
        taken, order = data.take(order, count=3)
        seen += taken
    epochs = [seen[start : start + 10] for start in (0, 10, 20)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2]


@given(st.integers(0, 2**63 - 1), st.integers(1, 12), st.integers(1, 30), st.integers(0, 12))
def test_a_stored_position_continues_the_same_order(
    seed: int, windows: int, count: int, steps: int
) -> None:
    """Also at the end of an epoch, and when a batch is longer than one."""
    order = data.open_order(data.first_position(seed), windows=windows)
    for _ in range(steps):
        _, order = data.take(order, count=count)
    position = order.position
    assert 0 <= position.next_window < windows
    again = data.open_order(position, windows=windows)
    assert data.take(again, count=3 * count) == data.take(order, count=3 * count)
    plausible = data.implausible(position, seed=seed, windows=windows, consumed=steps * count)
    assert plausible == ""


def test_the_end_of_an_epoch_is_the_beginning_of_the_next() -> None:
    order = data.open_order(data.first_position(1), windows=6)
    _, after = data.take(order, count=6)
    assert after.position == Position(epoch=1, next_window=0, generator=order.after)


def test_a_position_that_cannot_be_is_explained() -> None:
    order = data.open_order(data.first_position(3), windows=6)
    _, order = data.take(order, count=8)
    good = order.position
    state, increment = good.generator.state, good.generator.increment
    wrong = [
        Position(good.epoch, good.next_window + 1, good.generator),
        Position(good.epoch + 1, good.next_window, good.generator),
        Position(good.epoch, good.next_window, Pcg32(state ^ 1, increment)),
        Position(good.epoch, good.next_window, Pcg32(state ^ (1 << 63), increment)),
        Position(good.epoch, good.next_window, Pcg32(state, increment + 2)),
        Position(good.epoch, good.next_window, data.first_position(3).generator),
    ]
    answers = [data.implausible(position, seed=3, windows=6, consumed=8) for position in wrong]
    assert ["cursor" in answer for answer in answers] == [True, True, False, False, False, False]
    assert all("generator state is not that of seed 3" in answer for answer in answers[2:])


def test_bytes_are_their_own_tokens() -> None:
    ids = encode("é!".encode(), tokenizer=None, vocab_size=256, where="here")
    assert ids.tolist() == [0xC3, 0xA9, 0x21]


def test_a_tokenizer_file() -> None:
    from tokenizers import Tokenizer

    content = read_tokenizer(runs.SMOKE / "tokenizer.json")
    text = "A checkpoint is the run written down, so that somebody else can take it up."
    ids = encode(text.encode(), tokenizer=content, vocab_size=384, where="here").tolist()
    assert len(ids) < len(text) / 1.5
    assert Tokenizer.from_str(content.decode()).decode(ids) == text


@pytest.mark.parametrize(
    ("tokenizer", "text", "vocab_size", "says"),
    [
        (b"{}", b"a", 384, "here: the tokenizer is not a tokenizer.json"),
        (b"\xff", b"a", 384, "here: the tokenizer is not a tokenizer.json"),
        (None, b"a\xff", 384, "here: not UTF-8 at byte 1"),
        (None, b"a", 383, "384 tokens, more than the model's vocab_size 383"),
    ],
)
def test_a_tokenizer_that_does_not_fit(
    tokenizer: bytes | None, text: bytes, vocab_size: int, says: str
) -> None:
    content = tokenizer or read_tokenizer(runs.SMOKE / "tokenizer.json")
    with pytest.raises(SpecError, match=says):
        encode(text, tokenizer=content, vocab_size=vocab_size, where="here")
