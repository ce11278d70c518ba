"""Writing past the page cache: the bytes, the calls, and file systems that know no such thing."""

import errno
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness import explore
from tests.direct_io import DirectIo
from tests.tinyllm.checkpoints import make_ckpt, save, tree
from tinyllm import pastcache
from tinyllm.durable import Bytes, created_file, open_directory
from tinyllm.errors import StorageFailed
from tinyllm.pastcache import CHUNK_BYTES, write_stream
from tinyllm.paths import ckpt_dir, run_dir
from tinyllm.verification import verify_directory

BLOCK = 4096


def content(size_bytes: int) -> bytes:
    """Bytes of which no two blocks are alike."""
    numbers = (n.to_bytes(8, "little") for n in range(size_bytes // 8 + 1))
    return b"".join(numbers)[:size_bytes]


def written(directory: Path, data: bytes, *, cuts: tuple[int, ...] = ()) -> bytes:
    """``data`` written as a large file, in pieces that end at ``cuts``, and read back."""
    bounds = [0, *sorted(cuts), len(data)]
    pieces: list[Bytes] = [data[a:b] for a, b in pairwise(bounds)]
    with open_directory(str(directory)) as opened, created_file(opened, "x") as fd:
        path = opened.at("x")
        assert write_stream(fd, [pieces], size_bytes=len(data), path=path) == len(data)
    found = (directory / "x").read_bytes()
    (directory / "x").unlink()
    return found


@dataclass
class Calls:
    """``os.write``, each call with whether it was past the cache, and failing or cut on demand."""

    direct: DirectIo
    fails: Callable[[bool], int] = lambda _: 0
    most_bytes: int = 1 << 30
    sizes: list[tuple[bool, int]] = field(default_factory=list)

    def write(self, fd: int, data: memoryview) -> int:
        past_cache = self.direct.is_on(fd, data)
        if number := self.fails(past_cache):
            raise OSError(number, os.strerror(number))
        size = self.real(fd, data[: self.most_bytes])
        self.sizes.append((past_cache, size))
        return size

    real = staticmethod(os.write)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    found = Calls(DirectIo(monkeypatch))
    monkeypatch.setattr(os, "write", found.write)
    monkeypatch.setattr(pastcache, "SMALL_BYTES", 0)
    return found


SIZES = [1, BLOCK - 1, BLOCK, BLOCK + 1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1]
SIZES += [3 * CHUNK_BYTES, 3 * CHUNK_BYTES + BLOCK + 5]


@pytest.mark.parametrize("size_bytes", SIZES)
def test_whole_blocks_go_past_the_cache_and_the_end_does_not(
    tmp_path: Path, calls: Calls, size_bytes: int
) -> None:
    data = content(size_bytes)
    assert written(tmp_path, data) == data
    end = size_bytes % BLOCK
    assert sum(size for past, size in calls.sizes if past) == size_bytes - end
    assert [size for past, size in calls.sizes if not past] == [end] * bool(end)


@given(
    size_bytes=st.integers(1, 5 * BLOCK),
    cuts=st.lists(st.integers(0, 5 * BLOCK), max_size=6).map(tuple),
    chunk=st.sampled_from([BLOCK, 2 * BLOCK]),
)
def test_any_pieces_give_their_bytes(
    tmp_path_factory: pytest.TempPathFactory, size_bytes: int, cuts: tuple[int, ...], chunk: int
) -> None:
    directory = tmp_path_factory.mktemp("pieces")
    data = content(size_bytes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pastcache, "SMALL_BYTES", 0)
        patch.setattr(pastcache, "CHUNK_BYTES", chunk)
        assert written(directory, data, cuts=tuple(min(c, size_bytes) for c in cuts)) == data


def test_a_small_file_is_written_in_one_call(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pastcache, "SMALL_BYTES", 8192)
    data = content(8192)
    assert written(tmp_path, data) == data
    assert calls.sizes == [(False, 8192)]


def test_a_system_without_o_direct(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pastcache, "_O_DIRECT", 0)
    data = content(CHUNK_BYTES + 5)
    assert written(tmp_path, data) == data
    assert not any(past for past, _ in calls.sizes)


def test_a_file_system_that_does_not_know_the_flag(
    tmp_path: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls.direct = DirectIo(monkeypatch, known=False)
    data = content(CHUNK_BYTES + 5)
    assert written(tmp_path, data) == data
    assert not any(past for past, _ in calls.sizes)


def test_a_file_system_that_takes_the_flag_but_not_the_write(tmp_path: Path, calls: Calls) -> None:
    calls.fails = lambda past: errno.EINVAL if past else 0
    data = content(2 * CHUNK_BYTES + 5)
    assert written(tmp_path, data) == data
    assert calls.sizes == [(False, CHUNK_BYTES), (False, CHUNK_BYTES), (False, 5)]


@pytest.mark.parametrize("most_bytes", [8 * BLOCK, BLOCK + 100])
def test_a_short_write_is_continued(tmp_path: Path, calls: Calls, most_bytes: int) -> None:
    """Past the cache as long as it ends at a block, else in the common way."""
    calls.most_bytes = most_bytes
    data = content(CHUNK_BYTES + 5)
    assert written(tmp_path, data) == data
    assert [past for past, _ in calls.sizes].count(True) == (1 if most_bytes % BLOCK else 64)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_an_error_names_the_file(tmp_path: Path, calls: Calls, number: int) -> None:
    calls.fails = lambda _: number
    said = f"{re.escape(str(tmp_path / 'x'))}: cannot write: "
    with pytest.raises(StorageFailed, match=said):
        written(tmp_path, content(CHUNK_BYTES))


def test_a_save_past_the_cache_survives_a_power_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    """What went past the cache is as little durable before its fsync as anything else."""
    monkeypatch.setattr(pastcache, "SMALL_BYTES", 0)
    monkeypatch.setattr(pastcache, "CHUNK_BYTES", BLOCK)

    def setup(root: Path) -> None:
        save(make_ckpt(root), 4)

    def second(root: Path) -> None:
        print("saved", *save(ckpt_dir(run_dir(root, "r")), 8))

    def check(root: Path, told: list[str]) -> None:
        ckpt = ckpt_dir(run_dir(root, "r"))
        named = (ckpt / "LATEST").read_text().strip()
        assert verify_directory(str(ckpt / named)).verifies
        assert named == "step-000008" or not told

    found = explore(setup=setup, workload=second, check=check, models=["posix"])
    found.raise_for_violations()
    assert any("write" in operation for operation in found.operations)

    monkeypatch.setattr("tinyllm.writer.sync_file", lambda *_, **__: None)
    without = explore(setup=setup, workload=second, check=check, models=["xfs"])
    assert without.violations


def test_the_bytes_are_those_of_a_save_through_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = make_ckpt(tmp_path / "one"), make_ckpt(tmp_path / "other")
    save(one, 4)
    monkeypatch.setattr(pastcache, "SMALL_BYTES", 0)
    save(other, 4)
    assert tree(one) == tree(other)
