"""Contents, trees, laying them out as files, and reading them back."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection.crash_states import (
    LayoutError,
    VisibleTree,
    differences,
    enumerate_states,
    erase,
    materialize,
    snapshot,
)
from fault_injection.crash_states.content import (
    CHUNK_BYTES,
    Content,
    ContentStore,
    Piece,
    applied,
    joined,
    of_blob,
    zeros,
)
from fault_injection.trace import FileType, Kind, Node, Operation, Trace
from tests.fault_injection.traces import Build, MemoryBlobs


def operation(kind: Kind, **fields: object) -> Operation:
    return Operation(index=0, kind=kind, began=0, ended=1, **fields)  # type: ignore[arg-type]


def on_bytes(data: bytes, op: Operation, written: bytes) -> bytes:
    """What an operation does to plain bytes."""
    end = op.offset + op.size
    match op.kind:
        case Kind.WRITE:
            padded = data.ljust(op.offset, b"\0")
            return padded[: op.offset] + written + padded[end:]
        case Kind.TRUNCATE:
            return data[: op.size].ljust(op.size, b"\0")
        case Kind.ALLOCATE:
            return data if op.keep_size else data.ljust(end, b"\0")
        case Kind.PUNCH:
            stop = min(end, len(data)) if op.keep_size else end
            size = max(0, stop - op.offset)
            return (
                data[: op.offset].ljust(op.offset if size else 0, b"\0")
                + bytes(size)
                + (data[stop:] if size else data[op.offset :])
            )
        case Kind.COLLAPSE:
            return data[: op.offset] + data[end:]
        case _:
            return data[: op.offset] + bytes(op.size) + data[op.offset :]


CONTENT_KINDS = st.sampled_from(
    [Kind.WRITE, Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE, Kind.PUNCH, Kind.COLLAPSE, Kind.INSERT]
)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(data=st.data())
def test_operations_on_pieces_are_operations_on_bytes(data: st.DataObject) -> None:
    blobs = MemoryBlobs()
    store = ContentStore(blobs)
    content, plain = Content((), 0), b""
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(CONTENT_KINDS)
        inside = kind in (Kind.COLLAPSE, Kind.INSERT)
        offset = data.draw(st.integers(0, len(plain) if inside else 30))
        written = data.draw(st.binary(min_size=1, max_size=12))
        op = operation(
            kind,
            offset=offset,
            size=len(written),
            blob=blobs.add(written),
            keep_size=data.draw(st.booleans()),
        )
        content, plain = applied(content, op), on_bytes(plain, op, written)
        assert store.read(content) == plain
        assert content.size == len(plain)
        assert store.digest(content) == ContentStore(blobs).digest(
            of_blob(blobs.add(plain), len(plain))
        )
        assert content == joined(content.pieces)


def test_the_digest_of_a_large_file_is_that_of_its_bytes_however_it_was_written() -> None:
    blobs = MemoryBlobs()
    head, tail = bytes(range(256)) * 5000, b"t" * (2 * CHUNK_BYTES)
    whole = of_blob(blobs.add(head + tail), len(head) + len(tail))
    parts = joined((Piece(blobs.add(head), 0, len(head)), Piece(blobs.add(tail), 0, len(tail))))
    store = ContentStore(blobs)
    assert whole != parts
    assert store.digest(whole) == store.digest(parts)
    assert store.digest(whole) != store.digest(zeros(whole.size))


def rich() -> Trace:
    """Every kind of entry, names of any byte, hard links, a read-only directory, a large file."""
    build = Build({"d": None, "d/old": b"old", "plain": b"p" * 100_000})
    build.create("big", b"B" * 700_000)
    build.write("big", b"C" * 300_000, offset=900_000)
    build.link("plain", "d/same")
    build.symlink("nowhere/at all", "d/link")
    build.symlink("plain", "also")
    build.sync()
    start = dict(build.start)
    root = start[0]
    entries = {**root.entries, b"\xff\xfe caf\xc3\xa9\n": 900, b"pipe": 901, b"closed": 902}
    start[0] = Node(0, FileType.DIRECTORY, 0o755, entries=entries)
    start[900] = Node(900, FileType.FILE, 0o600, blob=build.blobs.add(b"odd"), size=3)
    start[901] = Node(901, FileType.OTHER, 0o600)
    start[902] = Node(902, FileType.DIRECTORY, 0o555, entries={b"in": 903})
    start[903] = Node(903, FileType.FILE, 0o444, blob=build.blobs.add(b"in"), size=2)
    return Trace(start=start, operations=build.trace().operations, blobs=build.blobs)


def last_tree(trace: Trace, model: str = "kill") -> VisibleTree:
    return list(enumerate_states(trace, model=model))[-1].tree()


def test_what_is_laid_out_is_read_back_as_the_same_tree(tmp_path: Path) -> None:
    tree = last_tree(rich())
    materialize(tree, tmp_path / "state")
    back = snapshot(str(tmp_path / "state"))
    assert differences(tree, back) == ()
    assert back.digest == tree.digest
    assert back.read(b"big") == b"B" * 700_000 + bytes(200_000) + b"C" * 300_000
    assert (tmp_path / "state/plain").stat().st_ino == (tmp_path / "state/d/same").stat().st_ino
    assert os.readlink(tmp_path / "state/d/link") == "nowhere/at all"
    assert tree.listing(b"d") == (
        (b"link", FileType.SYMLINK),
        (b"old", FileType.FILE),
        (b"same", FileType.FILE),
    )
    erase(str(tmp_path / "state"))
    assert not (tmp_path / "state").exists()


def test_every_state_of_a_small_trace_survives_the_disk(tmp_path: Path) -> None:
    build = Build({"f": b"1" * 600})
    build.create("g", b"2" * 5000)
    build.link("g", "h")
    build.write("f", b"3" * 900)
    for number, state in enumerate(enumerate_states(build.trace(), model="posix")):
        materialize(state.tree(), tmp_path / str(number))
        assert snapshot(str(tmp_path / str(number))).digest == state.digest


def test_differences_name_the_path_and_both_sides() -> None:
    build = Build({"f": b"1"})
    build.write("f", b"2", synced="all")
    build.create("g")
    first, *_, last = enumerate_states(build.trace(), model="kill")
    lines = differences(first.tree(), last.tree())
    assert [line.partition(":")[0] for line in lines] == ["f", "g"]
    assert "file of 1 bytes" in lines[0]
    assert "nothing against file of 0 bytes" in lines[1]


def test_a_state_is_laid_out_only_in_an_empty_directory(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(LayoutError, match="empty directory"):
        materialize(last_tree(rich()), tmp_path)
    assert os.listdir(tmp_path) == ["mine"]


@pytest.mark.parametrize("exists", [False, True])
def test_when_the_disk_fills_nothing_is_left(tmp_path: Path, exists: bool) -> None:
    """RLIMIT_FSIZE stands in for a full disk, in a child so that nothing else is limited."""
    target = tmp_path / "state"
    if exists:
        target.mkdir()
    program = f"""
import resource, signal, sys
from fault_injection.crash_states import LayoutError, materialize
from tests.fault_injection.test_crash_states_trees import last_tree, rich
tree = last_tree(rich())
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, {resource.RLIM_INFINITY}))
try:
    materialize(tree, {str(target)!r})
except LayoutError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    assert "laying out a crash state of" in done.stdout
    assert "make room there" in done.stdout
    assert str(target) in done.stdout
    assert target.exists() is exists
    assert not exists or os.listdir(target) == []


def test_a_large_checkpoint_shares_what_its_states_have_in_common() -> None:
    """256 MB in four files, 20 states and more: the memory of one chunk, not of one state.

    (A gigabyte takes the same memory and four times as long to hash.)
    """
    program = """
import hashlib, os, resource, tempfile
from fault_injection.crash_states import enumerate_states
from fault_injection.trace import FileType, Kind, Node, Operation, Trace

size = 64 << 20
with tempfile.NamedTemporaryFile() as sparse:
    sparse.truncate(size)

    class Blobs:
        def read(self, key, offset=0, size=-1):
            return os.pread(sparse.fileno(), size, offset)

        def path(self, key):
            return sparse.name

    operations = []
    def add(kind, **fields):
        n = len(operations)
        operations.append(Operation(index=n, kind=kind, began=2 * n, ended=2 * n + 1, **fields))
    for n in range(1, 5):
        add(Kind.CREATE, inode=n, parent=0, name=b"f%d" % n, mode=0o644)
        add(Kind.WRITE, inode=n, size=size, blob="%064x" % n)
    start = {0: Node(0, FileType.DIRECTORY, 0o755)}
    trace = Trace(start=start, operations=tuple(operations), blobs=Blobs())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    states = sum(1 for _ in enumerate_states(trace, model="ext4"))
    print(states, (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=100
    )
    states, grown_mib = map(int, done.stdout.split())
    assert states >= 20
    assert grown_mib < 64
