"""Our own results: written durably, and never over those of an earlier or another run."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.durable import (
    MARKER,
    RESULT_NAMES,
    fresh_directory,
    make_directory,
    sync_directory,
    write_durably,
)
from harness.errors import UsageError


def leave_results(out: Path, mark: str) -> None:
    """What a run leaves: every file of ours, and a bundle."""
    for name in RESULT_NAMES:
        if name == "failures":
            (out / name / "bundle").mkdir(parents=True)
            (out / name / "bundle" / "case.json").write_text(mark)
        else:
            (out / name).write_text(mark)


def listing(path: Path) -> list[str]:
    return sorted(p.name for p in path.iterdir())


def test_it_replaces_the_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_durably(path, "old")
    write_durably(path, b"new \xff")
    assert path.read_bytes() == b"new \xff"
    assert listing(tmp_path) == ["a"]
    write_durably(path, "text é")
    assert path.read_text(encoding="utf-8") == "text é"


def test_the_order_is_write_fsync_rename_fsync_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fsync after the rename, or before the bytes were flushed, would protect nothing."""
    said: list[str] = []
    fsync, rename = os.fsync, os.rename

    def seen_fsync(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        size = os.fstat(descriptor).st_size
        said.append("fsync directory" if name == str(tmp_path) else f"fsync {size} bytes")
        fsync(descriptor)

    def seen_rename(old: object, new: object) -> None:
        said.append(f"rename to {os.path.basename(str(new))}")
        rename(str(old), str(new))

    monkeypatch.setattr(os, "fsync", seen_fsync)
    monkeypatch.setattr(os, "rename", seen_rename)
    write_durably(tmp_path / "a", b"x" * 1000)
    assert said == ["fsync 1000 bytes", "rename to a", "fsync directory"]


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    write_durably(tmp_path / "a", "old")

    def fails(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, call, fails)
    with pytest.raises(OSError, match="Input/output error"):
        write_durably(tmp_path / "a", "new")
    assert (tmp_path / "a").read_text() == "old"
    assert listing(tmp_path) == ["a"]


def test_a_directory_without_fsync_is_let_pass_but_an_error_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answers(number: int) -> None:
        def fails(_: int) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "fsync", fails)

    answers(22)  # EINVAL
    sync_directory(tmp_path)
    answers(5)  # EIO
    with pytest.raises(OSError, match="Input/output error"):
        sync_directory(tmp_path)


def test_directories_are_made_and_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "f").write_text("")
    with pytest.raises(NotADirectoryError, match=r"'.*/f'"):
        make_directory(tmp_path / "f")


def test_earlier_results_move_aside_whole(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with fresh_directory(out) as fresh:
        assert fresh.moved_to is None
        assert fresh.notes() == []
        leave_results(out, "first")
    with fresh_directory(out) as fresh:
        assert fresh.moved_to == out / "previous" / "0001"
        assert fresh.notes() == [f"the earlier results moved to {out / 'previous' / '0001'}"]
        assert listing(out) == [MARKER, "previous"]
        leave_results(out, "second")
    with fresh_directory(out):
        pass
    assert listing(out / "previous" / "0001") == sorted(RESULT_NAMES)
    assert (out / "previous/0001/failures/bundle/case.json").read_text() == "first"
    assert (out / "previous/0002/result.json").read_text() == "second"


def test_it_acts_at_once_and_without_a_with_block(tmp_path: Path) -> None:
    (tmp_path / MARKER).write_text("")
    (tmp_path / "result.json").write_text("first")
    fresh = fresh_directory(tmp_path)
    assert not (tmp_path / "result.json").exists()
    fresh.close()


def test_a_run_that_left_nothing_makes_no_empty_history(tmp_path: Path) -> None:
    for _ in range(3):
        with fresh_directory(tmp_path):
            pass
    assert listing(tmp_path) == [MARKER]


def test_what_is_not_ours_stays_where_it_is(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with fresh_directory(tmp_path):
        leave_results(tmp_path, "first")
    (tmp_path / "previous").mkdir()
    (tmp_path / "previous" / "keep-me").mkdir()
    with fresh_directory(tmp_path, keep_whole=0, keep_results=0):
        pass
    assert listing(tmp_path) == [MARKER, "notes.txt", "previous"]
    assert listing(tmp_path / "previous") == ["keep-me"]


def test_files_of_our_names_that_we_did_not_write_are_refused(tmp_path: Path) -> None:
    """``--out .`` in somebody's project must not carry their ``failures`` away."""
    (tmp_path / "failures").mkdir()
    with (
        pytest.raises(UsageError, match=r"holds failures, which no run of durability wrote"),
        fresh_directory(tmp_path),
    ):
        pass
    assert listing(tmp_path) == ["failures"]


def test_results_whose_marker_got_lost_are_known_by_their_format(tmp_path: Path) -> None:
    """Archives of CI systems leave dotfiles out."""
    leave_results(tmp_path, '{"format": "durability-result/1"}')
    with fresh_directory(tmp_path) as fresh:
        assert fresh.moved_to == tmp_path / "previous" / "0001"


def test_the_history_is_bounded_and_says_what_it_dropped(tmp_path: Path) -> None:
    for number in range(6):
        with fresh_directory(tmp_path, keep_whole=2, keep_results=4) as fresh:
            leave_results(tmp_path, f"run {number}")
    with fresh_directory(tmp_path, keep_whole=2, keep_results=4) as fresh:
        pass
    previous = tmp_path / "previous"
    assert listing(previous) == ["0003", "0004", "0005", "0006"]
    assert listing(previous / "0003") == ["result.json"]
    assert listing(previous / "0004") == ["result.json"]
    assert listing(previous / "0005") == sorted(RESULT_NAMES)
    assert fresh.notes()[1:] == [
        "of the older runs 0004 only result.json is kept",
        "removed the oldest runs: 0002",
    ]


def test_temporary_files_of_a_killed_run_are_removed(tmp_path: Path) -> None:
    (tmp_path / ".durable-0123456789abcdef.tmp").write_text("torn")
    (tmp_path / ".durable-mine.tmp").write_text("not of ours")
    with fresh_directory(tmp_path):
        assert listing(tmp_path) == [MARKER, ".durable-mine.tmp"]


HOLDER = """
import sys
from pathlib import Path
from harness.durable import fresh_directory
with fresh_directory(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""

FORKER = """
import os, sys
from pathlib import Path
from harness.durable import fresh_directory
with fresh_directory(Path(sys.argv[1])):
    if os.fork() == 0:
        sys.stdin.read()
    else:
        print("left", flush=True)
    os._exit(0)
"""


def test_two_runs_never_share_a_directory_and_a_killed_one_leaves_no_lock(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        with (
            pytest.raises(UsageError, match="another run is writing to"),
            fresh_directory(tmp_path),
        ):
            pass
        holder.send_signal(signal.SIGKILL)
    with fresh_directory(tmp_path) as fresh:
        assert fresh.path == tmp_path


def test_a_child_does_not_inherit_the_lock(tmp_path: Path) -> None:
    """Forked attempts may outlive a killed harness for a moment; the next run must start."""
    with subprocess.Popen(
        [sys.executable, "-c", FORKER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        assert parent.stdout.readline() == b"left\n"
        assert parent.wait() == 0
        with fresh_directory(tmp_path) as fresh:  # its child is alive: it waits for our input
            assert fresh.path == tmp_path
        parent.stdin.close()
        assert parent.stdout.read() == b""  # and now it has ended


def test_a_directory_that_cannot_hold_results_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(UsageError, match="cannot hold results"), fresh_directory(path):
            pass


@pytest.mark.parametrize("kind", ["fifo", "symlink", "directory"])
def test_a_strange_marker_is_refused_without_waiting(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / MARKER
    if kind == "fifo":
        os.mkfifo(marker)
    elif kind == "symlink":
        marker.symlink_to(tmp_path / "elsewhere")
    else:
        marker.mkdir()
    with pytest.raises(UsageError), fresh_directory(tmp_path):
        pass
    assert listing(tmp_path) == [MARKER]
