"""The bytes of a tensor file: canonical, readable by the library, and never a second copy."""

import json
import os
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from tinyllm import tensors
from tinyllm.tensor_files import TensorInfo, read_metadata, read_table, read_tensors
from tinyllm.tensors import lay_out, pieces


def file_bytes(named: list[tuple[str, torch.Tensor]], **metadata: str) -> bytes:
    """The whole file; what the layout promised is checked on the way."""
    layout = lay_out(named, metadata=metadata)
    data = b"".join(bytes(piece) for piece in pieces(layout))
    assert len(data) == layout.size_bytes
    return data


def test_a_known_file_byte_for_byte() -> None:
    data = file_bytes(
        [("b", torch.tensor([1.0, -2.0])), ("a", torch.tensor(0.5))], step="3", format="tinyllm"
    )
    header = (
        '{"__metadata__":{"format":"tinyllm","step":"3"},'
        '"a":{"data_offsets":[0,4],"dtype":"F32","shape":[]},'
        '"b":{"data_offsets":[4,12],"dtype":"F32","shape":[2]}}'
    )
    padded = header + " " * (-len(header) % 8)
    assert data == (
        len(padded).to_bytes(8, "little")
        + padded.encode()
        + bytes.fromhex("0000003f" + "0000803f" + "000000c0")
    )


@st.composite
def named_tensors(draw: st.DrawFn) -> list[tuple[str, torch.Tensor]]:
    names = draw(st.lists(st.text(min_size=1, max_size=12), unique=True, max_size=6))
    result = []
    for name in names:
        if name == "__metadata__":
            continue
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.int8, torch.uint8]))
        seed = draw(st.integers(0, 99))
        tensor = torch.randint(0, 100, shape, generator=torch.Generator().manual_seed(seed))
        tensor = tensor.to(dtype)
        if tensor.dim() >= 2 and draw(st.booleans()):
            tensor = tensor.transpose(0, -1)
        result.append((name, tensor))
    return result


@settings(deadline=None, max_examples=60)
@given(named_tensors(), st.randoms(use_true_random=False))
def test_any_order_gives_the_same_bytes_and_the_library_reads_them(
    named: list[tuple[str, torch.Tensor]], random: object
) -> None:
    data = file_bytes(named, b="2", a="1", c="3")
    shuffled = list(named)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert file_bytes(shuffled, c="3", a="1", b="2") == data
    loaded = safetensors.torch.load(data)
    assert set(loaded) == {name for name, _ in named}
    for name, tensor in named:
        assert loaded[name].dtype == tensor.dtype
        assert torch.equal(loaded[name], tensor)


def test_every_tensor_begins_at_a_multiple_of_its_element_size() -> None:
    named = [
        ("a", torch.zeros(3, dtype=torch.int8)),
        ("b", torch.zeros(3, dtype=torch.bfloat16)),
        ("c", torch.zeros(3)),
    ]
    data = file_bytes(named)
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    header = json.loads(data[8 : 8 + length])
    assert [header[name]["data_offsets"] for name in "cba"] == [[0, 12], [12, 18], [18, 21]]


def test_a_contiguous_tensor_is_written_from_its_own_memory() -> None:
    tensor = torch.zeros(4, 4)
    layout = lay_out([("w", tensor)], metadata={})
    assert not layout.copies
    _, view = pieces(layout)
    tensor[0, 0] = 1.0
    assert bytes(view[:4]) == bytes.fromhex("0000803f")


@pytest.mark.parametrize("shape", [(40, 64), (3, 5, 512), (1, 4096), (2048, 2)])
def test_a_tensor_that_is_not_contiguous_is_copied_in_bounded_pieces(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "PIECE_BYTES", 1024)
    base = torch.arange(torch.Size(shape).numel(), dtype=torch.float32)
    tensor = base.reshape(shape).transpose(0, -1)
    layout = lay_out([("w", tensor)], metadata={})
    parts = list(pieces(layout))[1:]
    assert layout.copies is not tensor.is_contiguous()
    assert all(len(part) <= 1024 for part in parts)
    data = b"".join(bytes(part) for part in parts)
    assert data == tensor.contiguous().numpy().tobytes()


def test_a_header_that_readers_refuse_is_refused_when_it_would_be_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The library once wrote a header of 126 MB that it then would not read."""
    named = [(f"layer{i:04d}" + "x" * 60, torch.zeros(0)) for i in range(100)]
    size = len(lay_out(named, metadata={}).header) - 8
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", size)
    lay_out(named, metadata={})
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", size - 1)
    with pytest.raises(ValueError, match=f"100 tensors takes {size} bytes"):
        lay_out(named, metadata={})


def test_our_limit_is_the_librarys(tmp_path: Path) -> None:
    """A header of exactly the limit is read; with eight more the library refuses."""
    for extra, readable in ((0, True), (8, False)):
        length = tensors.MAX_HEADER_BYTES + extra
        path = tmp_path / f"{extra}.safetensors"
        with open(path, "wb") as file:
            file.write(length.to_bytes(8, "little") + b"{}")
            file.write(b" " * (length - 2))
        fd = os.open(path, os.O_RDONLY)
        if readable:
            assert read_table(fd) == {}
        else:
            with pytest.raises(ValueError, match="safetensors"):
                read_table(fd)
        os.close(fd)
        path.unlink()


@pytest.mark.parametrize(
    ("named", "message"),
    [
        ([("a", torch.zeros(1)), ("a", torch.zeros(2))], "'a' is taken"),
        ([("__metadata__", torch.zeros(1))], "is taken"),
        ([("a", torch.zeros(1, dtype=torch.float64))], "torch.float64"),
    ],
)
def test_what_cannot_be_laid_out_is_refused_by_name(
    named: list[tuple[str, torch.Tensor]], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        lay_out(named, metadata={})


def test_a_file_is_read_through_its_descriptor_after_its_name_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(file_bytes([("w", torch.arange(6.0).reshape(2, 3))], step="3"))
    fd = os.open(path, os.O_RDONLY)
    path.unlink()
    assert read_metadata(fd) == {"step": "3"}
    assert read_table(fd) == {"w": TensorInfo("F32", (2, 3))}
    assert torch.equal(read_tensors(fd)["w"], torch.arange(6.0).reshape(2, 3))
    os.close(fd)


def test_a_loaded_tensor_does_not_share_the_file(tmp_path: Path) -> None:
    """Views of a mapped file change, or crash, when the file is written in place."""
    path = tmp_path / "x.safetensors"
    data = file_bytes([("w", torch.zeros(2))])
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    loaded = read_tensors(fd)["w"]
    os.close(fd)
    with open(path, "r+b") as file:
        file.seek(len(data) - 8)
        file.write(b"\xff" * 8)
    assert torch.equal(loaded, torch.zeros(2))
    loaded += 1
    assert path.read_bytes()[-8:] == b"\xff" * 8


def test_metadata_comes_out_sorted_where_the_library_does_not_sort(tmp_path: Path) -> None:
    data = file_bytes([("w", torch.zeros(1))], z="1", y="2", x="3", w="4")
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    assert data.index(b'"w":"4"') < data.index(b'"x":"3"') < data.index(b'"z":"1"')
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"w": "4", "x": "3", "y": "2", "z": "1"}
