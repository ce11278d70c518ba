"""The progress file: whole lines, a torn end cut off, anything else left alone and named."""

import json
import math
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm import progress
from tinyllm.errors import ResumeRefused, StorageFailed

LINE = b'{"kind":"step","attempt":2,"step":7,"loss":1.0,"loss_bits":"3f800000","lr":0.1}\n'


def _open(path: Path) -> progress.Progress:
    return progress.open_progress(path, progress.read_history(path))


def test_lines_as_they_are_written(tmp_path: Path) -> None:
    opened = _open(tmp_path / "p")
    source = progress.SourceRecord("essays", "ab")
    written: list[progress.Line] = [
        progress.Start(1, 16, "cd", (source,)),
        progress.step_line(1, 1, loss=5.5, lr=0.25),
        progress.Ckpt(1, 1, "step-000001"),
        progress.Skip(1, "LATEST", "is empty"),
        progress.Resume(1, 4, "step-000004", 16, "cd", ()),
        progress.Error(1, 4, "x: no space"),
        progress.Done(1, 16),
    ]
    for line in written:
        progress.emit(opened, line)
    progress.sync(opened)
    progress.close(opened)
    assert (tmp_path / "p").read_text().splitlines() == [
        (
            '{"kind":"start","attempt":1,"steps":16,"spec_sha256":"cd",'
            '"sources":[{"name":"essays","sha256":"ab"}]}'
        ),
        '{"kind":"step","attempt":1,"step":1,"loss":5.5,"loss_bits":"40b00000","lr":0.25}',
        '{"kind":"ckpt","attempt":1,"step":1,"name":"step-000001"}',
        '{"kind":"skip","attempt":1,"name":"LATEST","reason":"is empty"}',
        (
            '{"kind":"resume","attempt":1,"step":4,"name":"step-000004","steps":16,'
            '"spec_sha256":"cd","sources":[]}'
        ),
        '{"kind":"error","attempt":1,"step":4,"message":"x: no space"}',
        '{"kind":"done","attempt":1,"step":16}',
    ]
    history = progress.read_history(tmp_path / "p")
    assert (history.attempts, history.sources) == (1, ())
    assert history.last == progress.LineHead(kind="done", attempt=1, step=16)


@pytest.mark.parametrize(
    ("loss", "bits"), [(math.nan, "7fc00000"), (math.inf, "7f800000"), (-math.inf, "ff800000")]
)
def test_a_loss_that_is_no_number_is_null_and_its_bits(loss: float, bits: str) -> None:
    line = progress.step_line(1, 3, loss=loss, lr=0.5)
    assert (line.loss, line.loss_bits) == (None, bits)


def test_a_line_is_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened = _open(tmp_path / "p")
    writes = []
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: writes.append(data) or real(fd, data))
    progress.emit(opened, progress.Done(1, 2))
    progress.close(opened)
    assert writes == [b'{"kind":"done","attempt":1,"step":2}\n']


@pytest.mark.parametrize(
    "torn",
    [
        b"{",
        LINE[:1],
        LINE[:20],
        LINE[:-1],
        LINE[:30] + b"\0" * 100,
        b"\0" * 5000,
        LINE[:30] + b"\0" * 20 + LINE,  # a block in the middle never reached the disk
    ],
)
def test_a_torn_end_is_cut_off(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(LINE + torn)
    history = progress.read_history(path)
    assert path.read_bytes() == LINE + torn, "reading changed it"
    assert (history.attempts, history.whole_bytes) == (2, len(LINE))
    opened = progress.open_progress(path, history)
    progress.emit(opened, progress.Done(opened.attempt, 8))
    progress.close(opened)
    assert path.read_bytes() == LINE + b'{"kind":"done","attempt":3,"step":8}\n'


def test_a_cut_is_durable_before_anything_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "p"
    path.write_bytes(LINE + b"{")
    calls = []
    for name in ("ftruncate", "fsync"):
        monkeypatch.setattr(os, name, lambda *_, name=name: calls.append(name))
    progress.close(_open(path))
    assert calls == ["ftruncate", "fsync"]


@pytest.mark.parametrize(
    "content",
    [
        b"my notes\n",
        b"my notes",
        LINE + b"what is this\n" + LINE,
        LINE.replace(b'"step"', b'"stop"'),
        LINE.replace(b'"attempt":2', b'"attempt":"2"'),
        b"[" * 100_000 + b"\n",
        b"x" * ((1 << 20) + 5),
        LINE + b"{" * ((1 << 20) + 5),
        b"\xff\xfe\n",
    ],
)
def test_what_no_crash_explains_is_refused_and_left(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "p"
    path.write_bytes(content)
    with pytest.raises(ResumeRefused, match=r"progress file .*/p, line \d is not one"):
        progress.read_history(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("kind", ["fifo", "directory", "symlink"])
def test_what_is_not_a_file_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "p"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ResumeRefused, match="move it away"):
        progress.read_history(path)


@given(st.binary(max_size=80), st.integers(0, 3))
def test_rubbish_is_cut_or_refused_and_whole_lines_survive(
    tmp_path_factory: pytest.TempPathFactory, rubbish: bytes, before: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "rubbish"
    path.write_bytes(LINE * before + rubbish)
    try:
        history = progress.read_history(path)
    except ResumeRefused:
        return
    assert history.whole_bytes == len(LINE) * before
    opened = progress.open_progress(path, history)
    progress.emit(opened, progress.Done(opened.attempt, 9))
    progress.close(opened)
    assert [json.loads(line)["step"] for line in path.read_bytes().splitlines()] == [7] * before + [
        9
    ]


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    full = progress.Progress(tmp_path / "p", os.open("/dev/full", os.O_WRONLY), 1)
    with pytest.raises(StorageFailed, match=r"/p: cannot append a line.*ENOSPC"):
        progress.emit(full, progress.Done(1, 2))
    progress.close(full)
