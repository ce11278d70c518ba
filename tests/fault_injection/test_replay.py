"""A trace that is done again leaves what the traced program left."""

import ctypes
import os
from pathlib import Path

import pytest

from fault_injection import replay as replay_module
from fault_injection.crash_states.containment import contains
from fault_injection.crash_states.snapshot import snapshot
from fault_injection.replay import Replay, ReplayError, lay_out
from fault_injection.trace import Kind, Operation, Trace
from tests.fault_injection.traces import Build

NEW = b"n" * 5000


def _everything() -> Build:
    """Every kind of operation that the builder knows, and names that move while they are used."""
    b = Build({"d": None, "d/c": b"C" * 4096, "a": b"A" * 1000, "b": b""})
    b.create("new", NEW)
    b.mkdir("made")
    b.rename("new", "made/new")
    b.write("made/new", b"more", synced="all")
    b.write("made/new", b"over", offset=10, synced="data")
    b.rename("made", "moved")
    b.fsync("moved/new")
    b.fsync("moved")
    b.link("a", "moved/a")
    b.unlink("a")
    b.write("moved/a", b"by its other name")
    b.symlink("there", "link")
    b.exchange("moved/a", "d/c")
    b.write("d/c", b"exchanged", offset=0)
    b.truncate("b", 700)
    b.rename("b", "moved/new")
    b.fdatasync("d")
    b.link(b.tmpfile(b"nameless at first"), "named")
    b.mkdir("gone")
    b.rmdir("gone")
    b.sync()
    b.output("saved\n")
    return b


def test_the_tree_is_that_of_the_trace_at_every_place(tmp_path: Path) -> None:
    trace = _everything().trace()
    for place in range(len(trace.operations) + 1):
        root = tmp_path / str(place)
        root.mkdir()
        lay_out(trace, str(root))
        with Replay(trace, str(root)) as replay:
            replay.run(place)
        assert contains(trace, "kill", place, snapshot(str(root))) is None, place


def test_it_goes_on_from_where_it_stopped(tmp_path: Path) -> None:
    trace = _everything().trace()
    lay_out(trace, str(tmp_path))
    with Replay(trace, str(tmp_path)) as replay:
        for place in range(len(trace.operations) + 1):
            replay.run(place)
    assert contains(trace, "kill", len(trace.operations), snapshot(str(tmp_path))) is None
    assert (tmp_path / "d" / "c").read_bytes() == b"exchanged" + b"A" * 991 + b"by its other name"


def test_an_unlinked_file_is_still_written_to(tmp_path: Path) -> None:
    b = Build({"a": b"A"})
    inode = b.inode("a")
    b.unlink("a")
    b.write(inode, b"unseen")
    b.fsync(inode)
    lay_out(b.trace(), str(tmp_path))
    with Replay(b.trace(), str(tmp_path)) as replay:
        replay.run(3)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("kind", "keep_size", "expected"),
    [
        (Kind.ALLOCATE, False, b"A" * 4096 + bytes(8192)),
        (Kind.ALLOCATE, True, b"A" * 4096),
    ],
)
def test_room_is_allocated(tmp_path: Path, kind: Kind, keep_size: bool, expected: bytes) -> None:
    b = Build({"a": b"A" * 4096})
    operation = Operation(
        0, kind, 0, 1, inode=b.inode("a"), offset=4096, size=8192, keep_size=keep_size
    )
    trace = Trace(b.trace().start, (operation,), b.blobs)
    lay_out(trace, str(tmp_path))
    with Replay(trace, str(tmp_path)) as replay:
        replay.run(1)
    assert (tmp_path / "a").read_bytes() == expected


def test_a_hard_link_of_the_starting_tree_is_one_file(tmp_path: Path) -> None:
    b = Build({"a": b"A"})
    root = b.start[0]
    b.start[0] = type(root)(0, root.type, root.mode, entries={b"a": 1, b"z": 1})
    lay_out(b.trace(), str(tmp_path))
    assert (tmp_path / "a").samefile(tmp_path / "z")


def test_a_replacing_rename_can_be_let_settle(tmp_path: Path) -> None:
    """The call is made, on a file and on a directory; what it is good for, realfs shows."""
    b = Build({"old": b"old", "empty": None})
    b.create("new", NEW)
    b.rename("new", "old")
    b.mkdir("made")
    b.rename("made", "empty")
    lay_out(b.trace(), str(tmp_path))
    with Replay(b.trace(), str(tmp_path), settles=True) as replay:
        replay.run(5)
    assert sorted(os.listdir(tmp_path)) == ["empty", "old"]
    assert (tmp_path / "old").read_bytes() == NEW


def test_what_cannot_be_done_again_is_named(tmp_path: Path) -> None:
    b = Build({"a": b"A"})
    b.rename("a", "c")
    (tmp_path / "c").mkdir()
    with (
        Replay(b.trace(), str(tmp_path)) as replay,
        pytest.raises(ReplayError, match=r"^operation 0, rename-c#1: .*No such file"),
    ):
        replay.run(1)


def test_a_call_that_fails_is_an_error_of_the_system() -> None:

    ctypes.set_errno(0)
    with pytest.raises(OSError, match="fallocate: Bad file descriptor"):
        replay_module._call("fallocate", -1, 0, ctypes.c_int64(0), ctypes.c_int64(1))
