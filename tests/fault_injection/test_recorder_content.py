"""The recorder sees every way to change what is in a file, with its offset, length and bytes."""

import hashlib
from pathlib import Path

import pytest

from fault_injection.trace import Kind
from tests.fault_injection.recorded import SYSCALL, record, spelled


def test_offsets_of_every_write_call(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(f, b"0123456789")
os.lseek(f, 4, os.SEEK_SET)
os.writev(f, [b"ab", b"", b"cd"])
os.pwrite(f, b"XY", 1)
os.pwritev(f, [b"p", b"q"], 8)
g = os.dup(f)
os.write(g, b"dup")                  # one open file: one offset
os.lseek(f, 20, os.SEEK_SET)
os.write(f, b"after a hole")
h = os.open("f", os.O_WRONLY)
os.write(h, b"H")
h = os.open(f"/proc/self/fd/{f}", os.O_RDWR)
os.write(h, b"hh")
assert os.write(f, b"") == 0
assert call("write", 99, b"x", 1) == -9
r = os.open("f", os.O_RDONLY)
assert call("write", r, b"x", 1) == -9
""",
    )
    assert spelled(run)[1:] == [
        "write 1 0+10",
        "write 1 4+4",
        "write 1 1+2",
        "write 1 8+2",
        "write 1 8+3",
        "write 1 20+12",
        "write 1 0+1",
        "write 1 0+2",
    ]


def test_appends_go_to_the_end_whatever_the_offset(tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "log").write_bytes(b"line\n")
    run = record(
        tmp_path,
        SYSCALL
        + """
f = os.open("log", os.O_WRONLY | os.O_APPEND)
g = os.open("log", os.O_WRONLY | os.O_APPEND)
os.write(f, b"two\\n")
os.write(g, b"three\\n")
os.pwrite(f, b"four\\n", 0)          # Linux appends all the same
h = os.open("log", os.O_RDWR)
RWF_APPEND = 16
os.pwritev(h, [b"five\\n"], 2, RWF_APPEND)
os.pwritev(h, [b"L"], 0)
""",
    )
    assert spelled(run) == [
        "write 1 5+4",
        "write 1 9+6",
        "write 1 15+5",
        "write 1 20+5",
        "write 1 0+1",
    ]


def test_writes_that_imply_a_sync(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
a = os.open("a", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
os.write(a, b"all")
b = os.open("b", os.O_CREAT | os.O_WRONLY | os.O_DSYNC)
os.write(b, b"data")
c = os.open("c", os.O_CREAT | os.O_WRONLY)
os.pwritev(c, [b"flag"], 0, os.RWF_SYNC)
os.pwritev(c, [b"flag"], 4, os.RWF_DSYNC)
os.pwritev(c, [b"none"], 8, 0)
""",
    )
    assert [op.synced for op in run.ops(Kind.WRITE)] == ["all", "data", "all", "data", ""]


def test_a_short_write_is_as_long_as_it_was(tmp_path: Path) -> None:
    """RLIMIT_FSIZE: the first write is cut at the limit, the next fails with EFBIG."""
    run = record(
        tmp_path,
        """
import os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
f = os.open("f", os.O_CREAT | os.O_WRONLY)
assert os.write(f, bytes(range(150))) == 100
try:
    os.write(f, b"more")
except OSError as error:
    assert error.errno == 27
g = os.open("g", os.O_CREAT | os.O_WRONLY)
assert os.pwrite(g, b"p" * 60, 70) == 30
try:
    os.pwrite(g, b"q", 200)
except OSError as error:
    assert error.errno == 27
""",
    )
    assert spelled(run) == ["create 1 at 0/f", "write 1 0+100", "create 2 at 0/g", "write 2 70+30"]
    assert run.trace.blobs.read(run.ops(Kind.WRITE)[0].blob) == bytes(range(100))


def test_a_full_disk_is_no_write(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
f = os.open("f", os.O_CREAT | os.O_WRONLY)
try:
    os.write(os.open("/dev/full", os.O_WRONLY), b"x")
except OSError:
    os.write(f, b"failed elsewhere")
""",
    )
    assert spelled(run) == ["create 1 at 0/f", "write 1 0+16"]


def test_copies_inside_the_kernel_are_writes(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
import ctypes
data = bytes(range(256)) * 1024
source = os.open("../source", os.O_CREAT | os.O_RDWR)
os.write(source, data)
os.lseek(source, 0, os.SEEK_SET)
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(f, b"head")
assert os.sendfile(f, source, 10, 1000) == 1000
assert os.copy_file_range(source, f, 50) == 50           # both offsets move
assert os.copy_file_range(source, f, 500, 0, 2) == 500   # into the middle, at its own offset
r, w = os.pipe()
os.write(w, b"through a pipe")
assert os.splice(r, f, 100) == 14
os.write(w, b"elsewhere")
at = ctypes.c_int64(3)
assert call("splice", r, None, f, ctypes.byref(at), 100, 0) == 9
assert os.sendfile(f, source, len(data), 100) == 0       # nothing left: no write
os.lseek(source, 0, os.SEEK_SET)
assert os.sendfile(f, source, None, 10 ** 6) == len(data)
""",
    )
    assert spelled(run) == [
        "create 1 at 0/f",
        "write 1 0+4",
        "write 1 4+1000",
        "write 1 1004+50",
        "write 1 2+500",
        "write 1 1054+14",
        "write 1 3+9",
        "write 1 1068+262144",
    ]
    assert run.places == [
        "create-f#1",
        "write-f#1",
        *(f"copy-f#{n}" for n in range(1, 7)),
    ]


def test_truncation(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
open("f", "w").write("0123456789")
os.truncate("f", 4)
f = os.open("f", os.O_RDWR)
os.ftruncate(f, 20)
os.ftruncate(f, 20)
open("f", "w").close()
os.close(os.open("f", os.O_RDONLY | os.O_TRUNC))
os.symlink("f", "l")
os.truncate("l", 3)
try:
    os.ftruncate(os.open("f", os.O_RDONLY), 1)
except OSError:
    pass
open("f", "r+").write("z")
""",
    )
    assert spelled(run) == [
        "create 1 at 0/f",
        "write 1 0+10",
        "truncate 1 to 4",
        "truncate 1 to 20",
        "truncate 1 to 20",
        "truncate 1 to 0",
        "truncate 1 to 0",
        "symlink 2 at 0/l to f",
        "truncate 1 to 3",
        "write 1 0+1",
    ]


def test_allocation_in_its_modes(tmp_path: Path) -> None:
    """On a file system that can collapse and insert (ext4, xfs), and on one that cannot."""
    run = record(
        tmp_path,
        SYSCALL
        + """
KEEP, PUNCH, COLLAPSE, ZERO, INSERT = 1, 2, 8, 16, 32
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(f, b"\\1" * 16384)
os.posix_fallocate(f, 0, 20000)
assert call("fallocate", f, KEEP, 20000, 10000) == 0
assert call("fallocate", f, PUNCH | KEEP, 4096, 4096) == 0
print([call("fallocate", f, mode, offset, size) for mode, offset, size in (
    (ZERO, 19000, 3000), (ZERO | KEEP, 0, 10), (COLLAPSE, 0, 4096), (INSERT, 4096, 8192))])
assert call("fallocate", f, PUNCH, 0, 10) < 0            # punching must keep the size
assert call("fallocate", f, 0, 0, 0) < 0
""",
    )
    expected = [
        "create 1 at 0/f",
        "write 1 0+16384",
        "allocate 1 0+20000",
        "allocate 1 20000+10000 keep",
        "punch 1 4096+4096 keep",
        "punch 1 19000+3000",
        "punch 1 0+10 keep",
        "collapse 1 0+4096",
        "insert 1 4096+8192",
    ]
    worked = [True] * 5 + [result == 0 for result in eval(run.stdout)]
    assert [w for w, done in zip(expected, worked, strict=True) if done] == [
        text for text in spelled(run) if not text.startswith("output")
    ]


def test_cloned_ranges_are_writes_where_the_file_system_can(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
import fcntl, struct
open("a", "wb").write(b"x" * 8192)
a, b = os.open("a", os.O_RDONLY), os.open("b", os.O_CREAT | os.O_RDWR)
try:
    fcntl.ioctl(b, 0x40049409, a)
    fcntl.ioctl(b, 0x4020940d, struct.pack("=qQQQ", a, 0, 4096, 8192))
    print("cloned")
except OSError:
    pass
""",
    )
    cloned = ["write 2 0+8192", "write 2 8192+4096"] if run.stdout else []
    assert [text for text in spelled(run) if "output" not in text][3:] == cloned
    assert run.places[3] == "copy-b#1"


def test_hard_links_and_files_that_are_unlinked_but_open(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
f = os.open("a", os.O_CREAT | os.O_RDWR)
os.link("a", "b")
os.write(f, b"one")
g = os.open("b", os.O_WRONLY | os.O_APPEND)
os.unlink("a")
os.write(g, b"two")
os.unlink("b")
os.write(f, b"gone")
os.fsync(g)
""",
    )
    assert spelled(run) == [
        "create 1 at 0/a",
        "link 1 at 0/b",
        "write 1 0+3",
        "unlink 1 at 0/a",
        "write 1 3+3",
        "unlink 1 at 0/b",
        "write 1 3+4",
        "fsync 1",
    ]
    assert run.places[-2:] == ["write-a#2", "fsync-b#1"]


def test_a_file_opened_outside_by_a_hard_link_is_the_same_file(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
open("f", "w").close()
os.link("f", "../outside")
open("../outside", "w").write("through the other name")
""",
    )
    assert spelled(run) == ["create 1 at 0/f", "truncate 1 to 0", "write 1 0+22"]
    assert run.places == ["create-f#1"]  # kills are made at places of calls under the root


@pytest.mark.parametrize("size", [(1 << 16) + 1, 5 << 20])
def test_large_writes_are_spooled_and_stored_once(tmp_path: Path, size: int) -> None:
    run = record(
        tmp_path,
        f"""
import os
data = bytes(range(251)) * ({size} // 251 + 1)
data = data[:{size}]
for name in ("a", "b", "c"):
    f = os.open(name, os.O_CREAT | os.O_WRONLY)
    os.write(f, data)
os.writev(f, [data[:100], data[100:]])
""",
    )
    data = (bytes(range(251)) * (size // 251 + 1))[:size]
    writes = run.ops(Kind.WRITE)
    assert [op.blob for op in writes] == [hashlib.sha256(data).hexdigest()] * 4
    assert len(list((tmp_path / "spool" / "blobs").iterdir())) == 1
    assert Path(run.trace.blobs.path(writes[0].blob)).read_bytes() == data


def test_what_was_appended_is_kept_though_it_is_changed_at_once(tmp_path: Path) -> None:
    """Large appends are copied from the file, afterwards: what changes them has to wait."""
    run = record(
        tmp_path,
        """
import os
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(f, b"A" * 3_000_000)
os.pwrite(f, b"B" * 3_000_000, 0)
os.write(f, b"C" * 3_000_000)
os.truncate("f", 0)
os.lseek(f, 0, os.SEEK_SET)
os.write(f, b"D" * 3_000_000)
open("f", "w").close()
os.pwrite(f, b"E" * 3_000_000, 0)
os.unlink("f")
os.pwrite(f, b"F" * 3_000_000, 3_000_000)
os.close(f)
""",
    )
    written = [run.trace.blobs.read(op.blob) for op in run.ops(Kind.WRITE)]
    assert written == [bytes([letter]) * 3_000_000 for letter in b"ABCDEF"]


def test_ordinary_libraries_are_seen_alike(tmp_path: Path) -> None:
    """C stdio, numpy and sqlite3 write as they like; the trace rebuilds what they left."""
    run = record(
        tmp_path,
        """
import numpy, sqlite3, shutil, json, pickle, tempfile, pathlib
numpy.save("a.npy", numpy.arange(1000.0))
numpy.arange(5000).tofile("b.bin")
numpy.savez("c.npz", x=numpy.ones(10), y=numpy.zeros(3))
numpy.memmap("a.npy", mode="r")
db = sqlite3.connect("d.sqlite")
db.execute("create table t (a)")
with db:
    db.executemany("insert into t values (?)", [(i,) for i in range(1000)])
with db:
    db.execute("delete from t where a < 500")
db.close()
shutil.copyfile("b.bin", "e.bin")
shutil.copytree(".", "../copy")
shutil.move("../copy", "copy")
shutil.rmtree("copy")
with tempfile.NamedTemporaryFile("w", dir=".", delete=False) as f:
    json.dump({"step": 1}, f)
pathlib.Path(f.name).replace("state.json")
pathlib.Path("p.pickle").write_bytes(pickle.dumps(list(range(100))))
""",
    )
    assert len(run.places) > 40


def test_the_bytes_of_a_call_that_was_answered_with_half(tmp_path: Path) -> None:
    from fault_injection import seccomp
    from fault_injection.recorder import Call, Outcome
    from fault_injection.seccomp import Notification

    def answer(note: Notification, call: Call, listener: int) -> Outcome | None:
        if call.place == "write-f#1":
            copy = seccomp.duplicate_fd(note.tid, note.args[0])
            data = seccomp.read_memory(note.tid, note.args[1], 3)
            with open(copy, "wb", buffering=0) as file:
                file.write(data)
            seccomp.respond_value(listener, note.id, 3)
            return ("wrote", 3)
        if call.place == "write-f#2":
            seccomp.respond_errno(listener, note.id, 28)
            return "failed"
        return None

    run = record(
        tmp_path,
        """
import os
f = os.open("f", os.O_CREAT | os.O_WRONLY)
assert os.write(f, b"abcdef") == 3
try:
    os.write(f, b"lost")
except OSError as error:
    assert error.errno == 28
os.write(f, b"def")
""",
        answer=answer,
    )
    assert spelled(run) == ["create 1 at 0/f", "write 1 0+3", "write 1 3+3"]
    assert (tmp_path / "root" / "f").read_bytes() == b"abcdef"


def test_a_sync_of_a_path_only_descriptor_fails_and_counts_for_nothing(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """import os
open("a", "w").write("x")
for name, sync in (("a", os.fsync), ("a", os.fdatasync), (".", os.fsync)):
    fd = os.open(name, os.O_PATH)
    try:
        sync(fd)
    except OSError:
        pass
    os.close(fd)
""",
    )
    assert run.places == ["create-a#1", "write-a#1"]
