"""Blobs are kept on disk, once each, and a stored trace comes back as it was."""

import errno
import hashlib
import os
import random
import sys
from pathlib import Path

import pytest

from fault_injection import spool as spool_module
from fault_injection.labels import Labeller, label_name, stable_names
from fault_injection.spool import CHUNK_BYTES, SMALL_BYTES, Spool
from fault_injection.trace import FileType, Kind, Node, Operation, Trace
from fault_injection.tracestore import load_trace, save_trace
from tests.direct_io import DirectIo


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


SMALL, LARGE = b"small", bytes(range(256)) * 1024


def test_equal_content_is_stored_once(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    tickets = [spool.add(data) for data in (SMALL, LARGE, b"", LARGE, SMALL)]
    spool.flush()
    assert [t.key for t in tickets] == [sha(SMALL), sha(LARGE), "", sha(LARGE), sha(SMALL)]
    assert [t.size for t in tickets] == [5, len(LARGE), 0, len(LARGE), 5]
    assert os.listdir(tmp_path / "blobs") == [sha(LARGE)]
    assert (tmp_path / "small.bin").read_bytes() == SMALL
    spool.close()


def test_blobs_are_read_in_pieces_and_as_files(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))
    spool.add(b"before")
    keys = [spool.add(data).key or sha(data) for data in (SMALL, LARGE)]
    spool.flush()
    for key, data in zip(keys, (SMALL, LARGE), strict=True):
        assert spool.read(key) == data
        assert spool.read(key, 2) == data[2:]
        assert spool.read(key, 1, 3) == data[1:4]
        assert spool.read(key, 3, 10**9) == data[3:]
        assert spool.read(key, len(data) + 5, 3) == b""
        assert Path(spool.path(key)).read_bytes() == data
        assert spool.holds(key)
    assert spool.read("") == b""
    assert Path(spool.path("")).read_bytes() == b""
    assert spool.path(keys[0]) == spool.path(keys[0])
    with pytest.raises(KeyError):
        spool.read("0" * 64)
    with pytest.raises(KeyError):
        spool.path("0" * 64)
    spool.close()


@pytest.mark.parametrize("size", [10, SMALL_BYTES, SMALL_BYTES + 1, len(LARGE)])
def test_pieces_of_files_now_and_later(tmp_path: Path, size: int) -> None:
    (tmp_path / "source").write_bytes(b"head" + LARGE)
    spool = Spool(str(tmp_path / "spool"))
    fd = os.open(tmp_path / "source", os.O_RDONLY)
    now = spool.add_file(fd, 4, size)
    later = spool.add_file_later(fd, 4, size)
    short = spool.add_file_later(os.open(tmp_path / "source", os.O_RDONLY), len(LARGE), size)
    spool.flush()
    assert now.key == later.key == sha(LARGE[:size])
    assert (short.key, short.size) == (sha(LARGE[len(LARGE) - 4 :][:size]), min(size, 4))
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)
    spool.close()


def test_memory_of_a_process_in_pieces(tmp_path: Path) -> None:
    import ctypes

    spool = Spool(str(tmp_path))
    big = ctypes.create_string_buffer(LARGE * 10, len(LARGE) * 10)
    pieces = ((ctypes.addressof(big), len(LARGE) * 9), (ctypes.addressof(big) + 5, 100))
    large = spool.add_memory(os.getpid(), pieces)
    small = spool.add_memory(os.getpid(), pieces[1:])
    prefixes = [spool.prefix(large, size) for size in (7, SMALL_BYTES + 9, 10**9)]
    spool.flush()
    whole = LARGE * 9 + LARGE[5:105]
    assert [t.key for t in (large, small)] == [sha(whole), sha(LARGE[5:105])]
    assert [t.key for t in prefixes] == [sha(whole[:7]), sha(whole[: SMALL_BYTES + 9]), sha(whole)]
    spool.close()


@pytest.mark.parametrize("works", [True, False])
def test_large_pieces_are_copied_past_the_page_cache_where_that_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works: bool
) -> None:
    real, direct = os.pwrite, DirectIo(monkeypatch)
    past: list[bool] = []

    def pwrite(fd: int, data: memoryview, offset: int) -> int:
        past.append(direct.is_on(fd, data))
        if past[-1] and not works:
            raise OSError(errno.EINVAL, "Invalid argument")
        return real(fd, data, offset)

    monkeypatch.setattr(os, "pwrite", pwrite)
    monkeypatch.setattr(spool_module, "PAST_CACHE_BYTES", 0)
    data = random.Random(1).randbytes(3 * CHUNK_BYTES + 4096 + 5)
    (tmp_path / "source").write_bytes(data)
    spool = Spool(str(tmp_path / "spool"))
    tickets = [spool.add_file_later(os.open(tmp_path / "source", os.O_RDONLY), 0, len(data))]
    spool.flush()
    with open(tmp_path / "source", "rb") as source:
        tickets.append(spool.add_file(source.fileno(), 3, 2 * CHUNK_BYTES))
    spool.flush()
    assert [t.key for t in tickets] == [sha(data), sha(data[3 : 2 * CHUNK_BYTES + 3])]
    assert spool.read(tickets[0].key) == data
    # The last chunk, which is no whole block, is written in the common way.
    once, again = [True] * 3 + [False], [True] * 2
    assert past == once + again if works else past.count(True) == 2
    spool.close()


def test_blobs_that_look_alike_at_their_ends_are_told_apart(tmp_path: Path) -> None:
    data = [bytes(200_000), bytes(100_000) + b"x" + bytes(99_999), bytes(200_000), bytes(199_999)]
    spool = Spool(str(tmp_path / "spool"))
    tickets = []
    for number, content in enumerate(data):
        (tmp_path / str(number)).write_bytes(content)
        fd = os.open(tmp_path / str(number), os.O_RDONLY)
        tickets.append(spool.add_file_later(fd, 0, len(content)))
    spool.flush()
    assert [ticket.key for ticket in tickets] == [sha(content) for content in data]
    assert sorted(os.listdir(tmp_path / "spool" / "blobs")) == sorted({sha(c) for c in data})
    assert [spool.read(ticket.key) for ticket in tickets] == data
    spool.close()


def test_a_full_disk_is_an_error_of_the_recording(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise OSError(28, "No space left on device")

    spool = Spool(str(tmp_path))
    monkeypatch.setattr(Spool, "_make_blob", fails)
    spool.add(LARGE)
    with pytest.raises(OSError, match="No space left"):
        spool.flush()
    spool.close()


def test_what_a_killed_recording_left_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "new-1").write_bytes(b"half")
    (tmp_path / "small.bin").write_bytes(b"left over")
    spool = Spool(str(tmp_path))
    spool.add(LARGE)
    key = spool.add(SMALL).key
    spool.flush()
    assert os.listdir(tmp_path / "blobs") == [sha(LARGE)]
    assert spool.read(key) == SMALL
    spool.close()


def test_what_is_large_is_not_held_in_memory(tmp_path: Path) -> None:
    """128 MiB written in one call under a limit of address space that it would not fit in."""
    code = f"""
import os, resource, sys
from fault_injection.spool import Spool
fd = os.open({str(tmp_path / "big")!r}, os.O_CREAT | os.O_RDWR)
os.truncate(fd, 128 << 20)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
spool = Spool({str(tmp_path / "spool")!r})
limit = used + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
spool.add_file_later(fd, 0, 128 << 20)
spool.flush()
"""
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
    assert os.waitpid(pid, 0)[1] == 0
    (blob,) = (tmp_path / "spool" / "blobs").iterdir()
    assert blob.stat().st_size == 128 << 20
    blob.unlink()


def a_trace(spool: Spool) -> Trace:
    nodes = {
        0: Node(0, FileType.DIRECTORY, 0o755, {b"\xff\n": 1, "grün".encode(): 2}),
        1: Node(1, FileType.FILE, 0o600, blob=sha(LARGE), size=len(LARGE)),
        2: Node(2, FileType.SYMLINK, 0o777, target=b"\x80/x"),
    }
    operations = (
        Operation(0, Kind.CREATE, 1, 2, inode=3, parent=0, name=b"a\xfe", mode=0o644, place="p#1"),
        Operation(
            1, Kind.WRITE, 3, 4, inode=3, size=5, blob=sha(SMALL), synced="all", call="write"
        ),
        Operation(2, Kind.RENAME, 5, 8, 1, 3, 0, b"a\xfe", 0, b"b", replaced=-1, site="t.py:1 f()"),
        Operation(3, Kind.OUTPUT, 6, 7, stream="stdout", size=5, blob=sha(SMALL)),
    )
    return Trace(start=nodes, operations=operations, blobs=spool)


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_trace_is_stored_and_loaded(tmp_path: Path, elsewhere: bool) -> None:
    spool = Spool(str(tmp_path / "one"))
    spool.add(SMALL)
    spool.add(LARGE)
    spool.flush()
    trace = a_trace(spool)
    where = str(tmp_path / ("two" if elsewhere else "one"))
    save_trace(trace, where)
    loaded = load_trace(where)
    assert loaded.start == trace.start
    assert loaded.operations == trace.operations
    assert loaded.blobs.read(sha(SMALL)) == SMALL
    assert loaded.blobs.read(sha(LARGE)) == LARGE
    save_trace(loaded, str(tmp_path / "three"))
    again = load_trace(str(tmp_path / "three"))
    assert again.operations == trace.operations
    first = Path(where, "trace.json").read_bytes()
    assert (tmp_path / "three" / "trace.json").read_bytes() == first
    for stored in (trace, loaded, again):
        assert isinstance(stored.blobs, Spool)
        stored.blobs.close()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{}", "not a trace of format durability-trace/1"),
        ("[]", "not a trace"),
        ('{"format": "durability-trace/1"}', "damaged"),
        (
            '{"format": "durability-trace/1", "start": [], "operations": [{"kind": "write"}]}',
            "damaged",
        ),
        ('{"format": "durability-trace/1", "start": [], "operations": [{"kind": "x"}]}', "'x'"),
        ("{", "Expecting"),
    ],
)
def test_a_damaged_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "trace.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        load_trace(str(tmp_path))


def test_no_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_trace(str(tmp_path / "absent"))
    (tmp_path / "trace.json").write_text(
        '{"format": "durability-trace/1", "start": [], "operations": []}'
    )
    with pytest.raises(FileNotFoundError, match="no recorded blobs"):
        load_trace(str(tmp_path))


def test_labels() -> None:
    labels = Labeller()
    assert [labels.place("rename", b"LATEST") for _ in range(2)] == [
        "rename-LATEST#1",
        "rename-LATEST#2",
    ]
    assert labels.place("write", b"LATEST") == "write-LATEST#1"
    assert label_name(b"a/b \xff#~") == "a%2fb%20%ff%23%7e"
    assert label_name(b"x" * 50) == "x" * 40
    assert label_name(b".") == "."


def test_names_that_two_recordings_do_not_share_are_written_as_one(tmp_path: Path) -> None:
    spool = Spool(str(tmp_path))

    def made(name: bytes) -> Trace:
        trace = a_trace(spool)
        extra = Operation(4, Kind.CREATE, 9, 10, inode=9, parent=0, name=name)
        return Trace(trace.start, (*trace.operations, extra), spool)

    stable = stable_names(made(b".tmpAbC"), made(b".tmpXyZ"))
    assert stable == {b"a\xfe", b"b", b"\xff\n", "grün".encode()}
    labels = Labeller(stable)
    assert [labels.place("create", name) for name in (b".tmp1", b"b", b".tmp2", b".", b"~")] == [
        "create-~#1",
        "create-b#1",
        "create-~#2",
        "create-.#1",
        "create-~#3",
    ]
    spool.close()


def test_the_threads_end_with_the_flush(tmp_path: Path) -> None:
    """Whoever forks after a recording forks one thread."""
    import threading

    before = threading.active_count()
    spool = Spool(str(tmp_path))
    spool.add(LARGE)
    assert threading.active_count() == before + 2
    spool.flush()
    assert threading.active_count() == before
    spool.add(LARGE)
    spool.close()
    assert threading.active_count() == before
