"""trainer_state.json is read strictly: no default may quietly rewind the data."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import checkpoints
from tinyllm.state import TrainerState, decode_state, encode_state

GOOD: dict[str, Any] = json.loads(encode_state(checkpoints.state(12)))


def test_the_bytes_are_canonical() -> None:
    text = encode_state(checkpoints.state(12)).decode()
    assert text.startswith('{\n  "cursor": {\n    "epoch": 2,\n    "next_window": 0\n  },\n')
    assert text.endswith('"step": 12,\n  "tokens_seen": 768\n}\n')


@given(
    st.integers(0, 999_999),
    st.integers(0, 2**64 - 1),
    st.floats(0, allow_infinity=False),
    st.data(),
)
def test_what_is_written_is_read_back(step: int, number: int, lr: float, data: Any) -> None:
    kind = TrainerState
    state = kind(
        step=step,
        tokens_seen=data.draw(st.integers(0, 2**63 - 1)),
        cursor=checkpoints.state(step).cursor,
        generator=type(checkpoints.state(0).generator)(state=str(number), increment="1"),
        lr=lr,
        spec_sha256="0" * 64,
        git_sha=data.draw(st.sampled_from([None, "a" * 40, "b" * 64])),
    )
    assert decode_state(encode_state(state)) == state


@pytest.mark.parametrize("key", sorted(GOOD))
def test_a_missing_key_is_refused(key: str) -> None:
    """A state without its cursor once restarted the data from the beginning without an error."""
    state = {k: v for k, v in GOOD.items() if k != key}
    with pytest.raises(ValueError, match=key):
        decode_state(json.dumps(state).encode())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"best": "/nonexistent/step-10"}, "best"),
        ({"step": "12"}, "step"),
        ({"step": -1}, "step"),
        ({"step": 1_000_000}, "step"),
        ({"step": 12.5}, "step"),
        ({"lr": -0.1}, "lr"),
        ({"lr": None}, "lr"),
        ({"lr": float("inf")}, "malformed"),
        ({"cursor": {"epoch": 0}}, "next_window"),
        ({"cursor": {"epoch": 0, "next_window": -1}}, "next_window"),
        ({"generator": {"state": 5, "increment": "1"}}, "state"),
        ({"generator": {"state": "5", "increment": "2"}}, "odd"),
        ({"generator": {"state": str(2**64), "increment": "1"}}, "64 bits"),
        ({"generator": {"state": "5\n", "increment": "1"}}, "state"),
        ({"generator": {"state": "05", "increment": "1"}}, "state"),
        ({"generator": {"state": "0x5", "increment": "1"}}, "state"),
        ({"spec_sha256": "AB" * 32}, "spec_sha256"),
        ({"git_sha": "main"}, "git_sha"),
    ],
)
def test_a_wrong_value_is_refused_by_name(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_state(json.dumps(GOOD | change).encode())


@given(st.binary(max_size=200))
def test_rubbish_is_a_value_error_and_nothing_else(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_state(data)


@pytest.mark.parametrize("data", [b"[" * 100_000, b'{"cursor":' * 100_000, b"\xff\xfe{}", b""])
def test_deep_or_undecodable_json_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_state(data)
