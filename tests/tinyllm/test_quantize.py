"""int4 and bfloat16 are bit for bit what their formulas say, and so are the files made of them."""

import json
import math
import os
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import save_file

from tinyllm.conversion import pieces, plan
from tinyllm.forms import DTYPES, GROUP_SIZES
from tinyllm.quantize import (
    can_quantise,
    dequantise,
    from_bfloat16,
    overflows,
    quantise,
    to_bfloat16,
)
from tinyllm.tensor_files import read_tensors
from tinyllm.weights import WeightsReader, WeightsUnusable, read_layout

Floats = npt.NDArray[np.float32]
FINITE = st.floats(width=32, allow_nan=False, allow_infinity=False)


def f32(value: float) -> float:
    """Rounded to float32, by the C library and not by numpy."""
    return float(struct.unpack("<f", struct.pack("<f", value))[0])


def by_hand(row: list[float], group: int) -> tuple[bytes, list[float], list[float]]:
    """The formula with Python's numbers: the packed row, its scales, and what is read back.

    A quotient or product of two float32 in double precision, rounded once more to float32, is the
    float32 quotient or product: 53 bits are more than twice 24 and 2.
    """
    scales, levels = [], []
    for start in range(0, len(row), group):
        values = row[start : start + group]
        scale = f32(max(abs(v) for v in values) / 7)
        scales.append(scale)
        for value in values:
            level = round(f32(value / scale)) if scale else 0  # to the nearest, ties to even
            levels.append(max(-7, min(7, level)))
    packed = bytes(
        (low & 15) | (high & 15) << 4 for low, high in zip(levels[::2], levels[1::2], strict=True)
    )
    read = [f32(level * scales[i // group]) for i, level in enumerate(levels)]
    return packed, scales, read


def assert_formula(rows: Floats, group: int) -> None:
    packed, scales = quantise(rows, group=group)
    read = dequantise(packed, scales)
    for number, row in enumerate(rows.tolist()):
        expected = by_hand(row, group)
        assert packed[number].tobytes() == expected[0]
        assert scales[number].tolist() == expected[1]
        assert read[number].tolist() == expected[2]


@pytest.mark.parametrize("group", GROUP_SIZES)
def test_int4_is_its_formula_bit_for_bit(group: int) -> None:
    generator = np.random.default_rng(group)
    for spread in (1e-45, 1e-38, 1e-3, 1.0, 1e38):
        rows = (generator.standard_normal((16, 4 * group)) * spread).clip(-3.4e38, 3.4e38)
        assert_formula(rows.astype(np.float32), group)


@given(arrays.arrays(np.float32, (2, 64), elements=FINITE))
def test_int4_is_its_formula_for_any_finite_values(rows: Floats) -> None:
    assert_formula(rows, 32)
    packed, scales = quantise(rows, group=32)
    assert np.isfinite(dequantise(packed, scales)).all()
    assert not np.any((packed & 15) == 8)
    assert not np.any((packed >> 4) == 8)


def test_the_bytes_of_a_known_row() -> None:
    """The first weight is in the low nibble; halves go to the even neighbour; -7 is 9."""
    row = [7.0, -7.0, 0.5, 1.5, -0.5, -1.5, 2.5, 0.0, *[1.0] * 24]
    packed, scales = quantise(np.array([row], dtype=np.float32), group=32)
    assert scales.tolist() == [[1.0]]
    assert packed.tobytes().hex() == "97" + "20" + "e0" + "02" + "11" * 12
    assert dequantise(packed, scales)[0, :8].tolist() == [7, -7, 0, 2, 0, -2, 2, 0]


def test_every_nibble_is_read_as_twos_complement() -> None:
    packed = np.arange(256, dtype=np.uint8).reshape(1, 256)
    scales = np.array([[0.5, 1, 2, 4]], dtype=np.float32)
    read = dequantise(packed, scales)[0].reshape(4, 64, 2)
    for number, scale in enumerate(scales[0].tolist()):
        for byte in range(64):
            nibbles = (64 * number + byte) & 15, (64 * number + byte) >> 4
            expected = [scale * (n - 16 if n >= 8 else n) for n in nibbles]
            assert read[number, byte].tolist() == expected


def test_a_group_of_zeros_and_one_too_small_to_have_a_scale() -> None:
    tiny = np.float32(1e-45)
    rows = np.array([[0.0] * 32 + [tiny] * 32], dtype=np.float32)
    packed, scales = quantise(rows, group=32)
    assert (scales.tolist(), packed.tobytes()) == ([[0.0, 0.0]], bytes(32))
    assert dequantise(packed, scales).tolist() == [[0.0] * 64]


@pytest.mark.parametrize(
    ("shape", "group", "can"),
    [
        ((3, 64), 32, True),
        ((3, 64), 64, True),
        ((3, 64), 128, False),
        ((3, 48), 32, False),
        ((64,), 32, False),
        ((1, 2, 64), 32, False),
        ((0, 64), 32, False),
        ((64, 0), 32, False),
        ((), 32, False),
    ],
)
def test_what_gets_int4(shape: tuple[int, ...], group: int, can: bool) -> None:
    assert can_quantise(shape, group=group) is can


@given(arrays.arrays(np.uint32, 64, elements=st.integers(0, 2**32 - 1)))
def test_bfloat16_is_torchs(bits: npt.NDArray[np.uint32]) -> None:
    floats = bits.view(np.float32)
    floats = np.where(np.isfinite(floats), floats, np.float32(1)).astype(np.float32)
    theirs = torch.from_numpy(floats.copy()).to(torch.bfloat16)
    ours = to_bfloat16(floats)
    assert ours.tobytes() == theirs.view(torch.int16).numpy().tobytes()
    assert from_bfloat16(ours).tobytes() == theirs.float().numpy().tobytes()
    assert overflows(ours).tolist() == torch.isinf(theirs).nonzero().reshape(-1).tolist()


def test_bfloat16_rounds_halves_to_even() -> None:
    halves = np.array([0x3F808000, 0x3F818000, 0x3F808001, 0xBF818000], dtype=np.uint32)
    assert to_bfloat16(halves.view(np.float32)).tolist() == [0x3F80, 0x3F82, 0x3F81, 0xBF82]


# ------------------------------------------------------------------------ whole files


def file_of(path: Path, tensors: dict[str, Floats]) -> bytes:
    save_file(tensors, path)
    return path.read_bytes()


def converted(path: Path, *, dtype: str, group: int = 32) -> tuple[bytes, dict[str, float]]:
    """The new file, put together piece by piece as it is written, and the errors by name."""
    with path.open("rb") as file:
        layout = read_layout(file.fileno(), size_bytes=path.stat().st_size)
        conversion = plan(layout, dtype=dtype, group_size=group)
        with WeightsReader(file.fileno(), layout, path=str(path)) as reader:
            data = b"".join(bytes(piece) for piece in pieces(conversion, reader))
    assert len(data) == conversion.size_bytes
    return data, {e.name: e.relative_error for e in conversion.errors}


def some_tensors() -> dict[str, Floats]:
    generator = np.random.default_rng(3)
    shapes = {
        "a": (6, 64),
        "b": (64,),
        "c": (4, 6),
        "d": (0, 64),
        "e": (2, 2, 32),
        "zeros": (2, 32),
    }
    tensors = {n: generator.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    tensors["zeros"][:] = 0
    return tensors


def test_f32_is_the_file_itself(tmp_path: Path) -> None:
    data = file_of(tmp_path / "x", some_tensors())
    assert converted(tmp_path / "x", dtype="f32") == (data, {})


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_the_file_is_what_the_formulas_say_of_each_tensor(tmp_path: Path, dtype: str) -> None:
    tensors = some_tensors()
    file_of(tmp_path / "x", tensors)
    data, errors = converted(tmp_path / "x", dtype=dtype)
    (tmp_path / "y").write_bytes(data)
    with (tmp_path / "y").open("rb") as file:
        stored = read_tensors(file.fileno())
    expected = {}
    for name, value in tensors.items():
        if dtype == "int4" and name in ("a", "zeros"):
            packed, scales = quantise(value, group=32)
            expected[f"{name}.qweight"] = torch.from_numpy(packed)
            expected[f"{name}.scales"] = torch.from_numpy(scales)
        else:
            expected[name] = torch.from_numpy(value).to(torch.bfloat16)
    assert sorted(stored) == sorted(expected)
    for name, value in expected.items():
        assert stored[name].dtype == value.dtype
        assert torch.equal(stored[name], value), name
    assert sorted(errors) == (sorted(tensors) if dtype == "int4" else [])


def test_scales_come_right_after_their_weights_and_lie_aligned(tmp_path: Path) -> None:
    file_of(tmp_path / "x", some_tensors())
    data, _ = converted(tmp_path / "x", dtype="int4")
    header = int.from_bytes(data[:8], "little")

    places = json.loads(data[8 : 8 + header])
    assert places.pop("__metadata__") == {"format": "pt"}
    order = sorted(places, key=lambda name: (places[name]["data_offsets"], name))
    assert order.index("a.scales") == order.index("a.qweight") + 1
    assert (8 + header) % 8 == 0
    for name, place in places.items():
        width = {"U8": 1, "BF16": 2, "F32": 4}[place["dtype"]]
        assert place["data_offsets"][0] % width == 0, name


def test_the_error_is_the_relative_frobenius_norm(tmp_path: Path) -> None:
    tensors = some_tensors()
    file_of(tmp_path / "x", tensors)
    _, errors = converted(tmp_path / "x", dtype="int4")
    for name, value in tensors.items():
        if name == "a":
            now = dequantise(*quantise(value, group=32)).astype(np.float64)
        else:
            now = from_bfloat16(to_bfloat16(value)).astype(np.float64)
        norm = float(np.linalg.norm(value.astype(np.float64)))
        change = float(np.linalg.norm(value - now))
        assert errors[name] == pytest.approx(change / norm if norm else 0.0, rel=1e-12)
    assert 0.05 < errors["a"] < 0.2
    assert errors["b"] < 0.004
    assert errors["zeros"] == errors["d"] == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_pieces_are_bounded_however_large_a_tensor_is(
    tmp_path: Path, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And a tensor that goes over many pieces is the same as one that does not."""
    tensors = {"big": np.random.default_rng(1).standard_normal((64, 256)).astype(np.float32)}
    file_of(tmp_path / "x", tensors)
    whole = converted(tmp_path / "x", dtype=dtype)
    monkeypatch.setattr("tinyllm.conversion.PIECE_BYTES", 4096)
    monkeypatch.setattr("tinyllm.conversion._INT4_COUNT", 1000)
    path = tmp_path / "x"
    with path.open("rb") as file:
        layout = read_layout(file.fileno(), size_bytes=path.stat().st_size)
        conversion = plan(layout, dtype=dtype, group_size=32)
        with WeightsReader(file.fileno(), layout, path=str(path)) as reader:
            sizes = []
            data = b""
            for piece in pieces(conversion, reader):
                sizes.append(len(piece))
                data += bytes(piece)
    assert data == whole[0]
    assert len(sizes) > 10
    assert max(sizes) <= 4096
    # In other pieces the squares are added up in another order.
    errors = {e.name: e.relative_error for e in conversion.errors}
    assert errors == pytest.approx(whole[1], rel=1e-12)


def test_an_odd_width_is_not_held_back_in_memory(tmp_path: Path) -> None:
    """No row is whole groups, so everything becomes BF16, each tensor in its turn."""
    tensors = {name: np.full((5, 33), n, dtype=np.float32) for n, name in enumerate("abc")}
    file_of(tmp_path / "x", tensors)
    path = tmp_path / "x"
    with path.open("rb") as file:
        layout = read_layout(file.fileno(), size_bytes=path.stat().st_size)
        conversion = plan(layout, dtype="int4", group_size=32)
        with WeightsReader(file.fileno(), layout, path=str(path)) as reader:
            left = [reader.left_bytes for _ in pieces(conversion, reader)]
    assert [name for name, _, _ in conversion.tensors] == ["a", "b", "c"]
    assert left == sorted(left, reverse=True)
    assert len(set(left)) == 4


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("name", ["a", "b"])
def test_what_is_not_finite_is_refused(tmp_path: Path, dtype: str, value: float, name: str) -> None:
    tensors = some_tensors()
    tensors[name].reshape(-1)[7] = value
    file_of(tmp_path / "x", tensors)
    with pytest.raises(WeightsUnusable, match="a value is not finite"):
        converted(tmp_path / "x", dtype=dtype)


def test_two_tensors_that_would_have_one_name(tmp_path: Path) -> None:
    tensors = {"a": np.ones((1, 32), np.float32), "a.scales": np.ones(2, np.float32)}
    file_of(tmp_path / "x", tensors)
    with pytest.raises(ValueError, match=r"two tensors would be named a\.scales"):
        converted(tmp_path / "x", dtype="int4")


@given(st.binary(max_size=200))
def test_rubbish_is_no_weights_file(data: bytes) -> None:

    fd = os.memfd_create("rubbish")
    try:
        os.write(fd, data)
        with pytest.raises(ValueError, match=r"."):
            read_layout(fd, size_bytes=len(data))
    finally:
        os.close(fd)


@given(st.data())
def test_a_header_that_lies_is_refused_or_right(data: st.DataObject) -> None:

    entry = st.fixed_dictionaries(
        {
            "dtype": st.sampled_from(["F32", "F16", "F32 "]),
            "shape": st.lists(st.integers(-1, 4), max_size=3),
            "data_offsets": st.tuples(st.integers(-1, 40), st.integers(-1, 40)),
        }
    )
    header = data.draw(st.dictionaries(st.sampled_from("ab"), entry))
    text = json.dumps(header).encode()
    content = len(text).to_bytes(8, "little") + text + bytes(data.draw(st.integers(0, 40)))
    fd = os.memfd_create("header")
    try:
        os.write(fd, content)
        try:
            layout = read_layout(fd, size_bytes=len(content))
        except ValueError:
            return
        assert layout.data_bytes == sum(4 * place.count for place in layout.tensors)
        assert len(layout.tensors) == len(header)
    finally:
        os.close(fd)
