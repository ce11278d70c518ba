"""The primitives: short writes go on, a failed fsync is final, parents are made durable."""

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tinyllm.checkpoints import silent
from tinyllm import durable
from tinyllm.durable import (
    created_file,
    make_durable_directories,
    open_directory,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from tinyllm.errors import StorageFailed


def raising(number: int) -> Callable[..., int]:
    """A system call that fails."""

    def call(*arguments: object, **more: object) -> int:
        del arguments, more
        raise OSError(number, os.strerror(number))

    return call


@pytest.mark.parametrize("at_most", [1, 3, 7, 100])
def test_a_short_write_is_continued(
    tmp_path: Path, at_most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_write, sizes = os.write, []

    def short(fd: int, data: memoryview) -> int:
        sizes.append(min(len(data), at_most))
        return real_write(fd, data[:at_most])

    def short_gather(fd: int, parts: list[memoryview]) -> int:
        return short(fd, memoryview(b"".join(parts)))

    monkeypatch.setattr(os, "write", short)
    monkeypatch.setattr(os, "writev", short_gather)
    with open_directory(str(tmp_path)) as directory, created_file(directory, "x") as fd:
        write_all(fd, [b"abc", b"", memoryview(b"defgh"), b"i"], path="x")
    assert (tmp_path / "x").read_bytes() == b"abcdefghi"
    assert sum(sizes) == 9


def test_many_pieces_take_few_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = os.writev, []

    def counting(fd: int, parts: list[memoryview]) -> int:
        calls.append(len(parts))
        return real(fd, parts)

    monkeypatch.setattr(os, "writev", counting)
    pieces = [bytes([i % 256]) for i in range(2500)]
    with open_directory(str(tmp_path)) as directory, created_file(directory, "x") as fd:
        write_all(fd, pieces, path="x")
    assert (tmp_path / "x").read_bytes() == b"".join(pieces)
    assert calls == [1024, 1024, 452]


def test_a_write_that_writes_nothing_does_not_go_on_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "write", lambda *_: 0)
    with (
        pytest.raises(StorageFailed, match=r"x: cannot write: Input/output error \(EIO\)"),
        open_directory(str(tmp_path)) as directory,
        created_file(directory, "x") as fd,
    ):
        write_all(fd, [b"abc"], path=directory.at("x"))


def test_a_failed_fsync_is_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def fails_once(fd: int) -> None:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(StorageFailed, match=r"/x: cannot fsync: Input/output error \(EIO\)"):
        sync_file(7, path="/x")
    assert calls == [7]


def test_an_error_of_close_is_a_failed_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Network file systems report what they could not write when a file is closed."""
    real_close = os.close

    def close(fd: int) -> None:
        path = os.readlink(f"/proc/self/fd/{fd}")
        real_close(fd)
        if path.endswith("/x"):
            raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))

    monkeypatch.setattr(os, "close", close)
    with (
        pytest.raises(StorageFailed, match=r"/x: cannot close: .*\(EDQUOT\)"),
        open_directory(str(tmp_path)) as directory,
        created_file(directory, "x"),
    ):
        pass


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_where_a_directory_cannot_be_synced_the_work_goes_on_and_says_so(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[tuple[str, str]] = []
    with open_directory(str(tmp_path)) as directory:
        monkeypatch.setattr(os, "fsync", raising(number))
        sync_directory(directory, unsupported=lambda *words: said.append(words))
    assert said == [
        (
            str(tmp_path),
            "this file system cannot fsync a directory: durability is not guaranteed here",
        )
    ]


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC, errno.EROFS])
def test_any_other_error_of_a_directorys_fsync_is_a_failed_save(
    tmp_path: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_directory(str(tmp_path)) as directory:
        monkeypatch.setattr(os, "fsync", raising(number))
        with pytest.raises(StorageFailed, match="cannot fsync the directory") as caught:
            sync_directory(directory, unsupported=silent)
    assert caught.value.errno == number
    assert caught.value.exit_code == 5


def test_a_new_file_never_takes_over_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"old")
    (tmp_path / "link").symlink_to(tmp_path / "x")
    for name in ("x", "link"):
        with (
            pytest.raises(StorageFailed, match="cannot create"),
            open_directory(str(tmp_path)) as directory,
            created_file(directory, name),
        ):
            pass
    assert (tmp_path / "x").read_bytes() == b"old"


def test_errors_name_the_file_and_the_act(tmp_path: Path) -> None:
    with open_directory(str(tmp_path)) as directory:
        with pytest.raises(StorageFailed) as caught:
            rename(directory, "a", "b")
        assert str(caught.value) == (
            f"{tmp_path}/a: cannot rename it to b: No such file or directory (ENOENT)"
        )
        with (
            pytest.raises(StorageFailed, match=r"/c: cannot open the directory: .*ENOENT"),
            open_directory("c", parent=directory),
        ):
            pass


def synced(monkeypatch: pytest.MonkeyPatch, work: Callable[[], None]) -> list[str]:
    """The paths that ``work`` fsyncs, in order."""
    paths: list[str] = []
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: paths.append(os.readlink(f"/proc/self/fd/{fd}")))
        work()
    return paths


@pytest.mark.parametrize("made_before", [0, 1, 3, 4])
def test_every_new_name_and_every_level_of_the_run_is_made_durable(
    tmp_path: Path, made_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also levels that exist: a killed attempt may not have come to its fsync."""
    levels = ["artifacts", "runs", "r", "ckpt"]
    (tmp_path / "/".join(levels[:made_before])).mkdir(parents=True, exist_ok=True)
    path = tmp_path / "/".join(levels)
    paths = synced(monkeypatch, lambda: make_durable_directories(str(path), unsupported=silent))
    assert path.is_dir()
    assert paths == [str(path), *(str(parent) for parent in list(path.parents)[:4])]


def test_the_way_down_is_synced_however_long_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a/b/c/d/e/f/g"
    paths = synced(monkeypatch, lambda: make_durable_directories(str(path), unsupported=silent))
    assert paths == [str(path), *(str(parent) for parent in list(path.parents)[:7])]


def test_a_parent_that_may_not_be_read_is_its_owners(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "artifacts/runs/r/ckpt"
    path.mkdir(parents=True)
    real_open = os.open

    def refusing(name: str, *rest: object, **more: object) -> int:
        if name == str(tmp_path):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(name, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    make_durable_directories(str(path), unsupported=silent)
    with pytest.raises(StorageFailed, match="cannot open the directory"):
        make_durable_directories(str(tmp_path / "new"), unsupported=silent)


def test_what_stands_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "artifacts").write_bytes(b"")
    with pytest.raises(StorageFailed, match=r"/artifacts: cannot make the directory: .*EEXIST"):
        make_durable_directories(str(tmp_path / "artifacts" / "runs"), unsupported=silent)


def test_two_that_start_at_once_both_find_their_directories(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_mkdir = os.mkdir

    def beaten(path: str) -> None:
        real_mkdir(path)
        real_mkdir(path)  # as if the other had made it first

    monkeypatch.setattr(os, "mkdir", beaten)
    make_durable_directories(str(tmp_path / "a" / "b"), unsupported=silent)
    assert (tmp_path / "a" / "b").is_dir()


def test_starting_the_disk_early_is_only_a_hint(tmp_path: Path) -> None:
    with open_directory(str(tmp_path)) as directory, created_file(directory, "x") as fd:
        write_all(fd, [bytes(4096)], path="x")
        durable.start_writeback(fd, offset_bytes=0, size_bytes=4096)
    durable.start_writeback(-1, offset_bytes=0, size_bytes=4096)  # an error is none
