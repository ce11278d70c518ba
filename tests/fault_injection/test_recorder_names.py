"""The recorder sees every way to make, move and remove a name, and none that failed."""

import itertools
import os
from pathlib import Path

import pytest

from fault_injection.crash_states import enumerate_states
from fault_injection.trace import Kind
from tests.fault_injection.recorded import SYSCALL, record, spelled


def test_files_directories_links_and_their_end(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
os.mkdir("d")
os.close(os.open("d/f", os.O_CREAT | os.O_WRONLY, 0o640))
os.link("d/f", "g")
os.symlink("d/f", "s")
os.rename("g", "d/h")
os.unlink("d/f")
os.unlink("d/h")
os.unlink("s")
os.rmdir("d")
""",
    )
    assert spelled(run) == [
        "mkdir 1 at 0/d",
        "create 2 at 1/f",
        "link 2 at 0/g",
        "symlink 3 at 0/s to d/f",
        "rename 2 from 0/g to 1/h",
        "unlink 2 at 1/f",
        "unlink 2 at 1/h",
        "unlink 3 at 0/s",
        "rmdir 1 at 0/d",
    ]
    assert run.places == [
        "mkdir-d#1",
        "create-f#1",
        "link-g#1",
        "symlink-s#1",
        "rename-h#1",
        "unlink-f#1",
        "unlink-h#1",
        "unlink-s#1",
        "rmdir-d#1",
    ]
    assert [op.place for op in run.trace.operations] == run.places
    assert run.ops(Kind.CREATE)[0].mode == 0o640 & ~os.umask(os.umask(0o22))


def test_calls_that_fail_are_no_operations(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
def fails(function, *args):
    try:
        function(*args)
    except OSError:
        return
    raise SystemExit("succeeded: %r" % (args,))
os.mkdir("d")
open("d/f", "w").close()
fails(os.mkdir, "d")
fails(os.mkdir, "absent/d")
fails(os.rmdir, "d")                       # not empty: foreseen as a change, seen to be none
fails(os.unlink, "d")
fails(os.unlink, "absent")
fails(os.rename, "absent", "x")
fails(os.rename, "d", "d/below")
fails(os.link, "absent", "x")
fails(os.symlink, "x", "d")
fails(os.open, "d/f", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
fails(os.open, "d", os.O_CREAT | os.O_WRONLY)
fails(os.open, "absent/f", os.O_CREAT | os.O_WRONLY)
fails(os.open, "d/f/g", os.O_CREAT | os.O_WRONLY)
fails(os.open, "n" * 300, os.O_CREAT | os.O_WRONLY)
fails(os.truncate, "absent", 1)
""",
    )
    assert spelled(run) == ["mkdir 1 at 0/d", "create 2 at 1/f"]


def test_a_rename_over_a_name_says_what_lost_it(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
for name in "abc":
    open(name, "w").close()
os.rename("a", "b")
os.link("b", "b2")
os.rename("b", "b2")   # two names of one file: POSIX says that nothing happens
os.rename("c", "b")
os.mkdir("d1")
os.mkdir("d2")
os.rename("d1", "d2")
""",
    )
    assert spelled(run)[3:] == [
        "rename 1 from 0/a to 0/b over 2",
        "link 1 at 0/b2",
        "rename 3 from 0/c to 0/b over 1",
        "mkdir 4 at 0/d1",
        "mkdir 5 at 0/d2",
        "rename 4 from 0/d1 to 0/d2 over 5",
    ]
    renames = [place for place in run.places if place.startswith("rename")]
    assert renames == ["rename-b#1", "rename-b#2", "rename-d2#1"]


def test_renameat2_flags(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
open("a", "w").close()
open("b", "w").close()
assert call("renameat2", -100, b"a", -100, b"b", 1) == -17
assert call("renameat2", -100, b"a", -100, b"c", 1) == 0
assert call("renameat2", -100, b"c", -100, b"b", 2) == 0
assert call("renameat2", -100, b"c", -100, b"absent", 2) == -2
os.mkdir("d")
assert call("renameat2", -100, b"d", -100, b"b", 2) == 0
""",
    )
    assert spelled(run)[2:] == [
        "rename 1 from 0/a to 0/c",
        "exchange 1 from 0/c to 0/b with 2",
        "mkdir 3 at 0/d",
        "exchange 3 from 0/d to 0/b with 1",
    ]
    assert run.places[2:] == ["rename-c#1", "exchange-b#1", "mkdir-d#1", "exchange-b#2"]


def test_a_directory_with_children_is_renamed_and_used_under_its_new_name(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
os.makedirs("step.tmp/sub")
f = open("step.tmp/sub/f", "w")
d = os.open("step.tmp", os.O_RDONLY)
os.rename("step.tmp", "step")
f.write("by the old descriptor")
f.close()
open("step/sub/g", "w").close()
os.close(os.open("h", os.O_CREAT | os.O_WRONLY, dir_fd=d))
""",
    )
    assert spelled(run) == [
        "mkdir 1 at 0/step.tmp",
        "mkdir 2 at 1/sub",
        "create 3 at 2/f",
        "rename 1 from 0/step.tmp to 0/step",
        "write 3 0+21",
        "create 4 at 2/g",
        "create 5 at 1/h",
    ]


def test_relative_paths_descriptors_of_directories_and_chdir(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, sys
root = sys.argv[1]
os.mkdir("a")
os.mkdir("a/b")
d = os.open("a", os.O_RDONLY)
os.mkdir("c", dir_fd=d)
os.chdir("a/b")
open("../x", "w").close()
os.fchdir(d)
open("./b/../y", "w").close()
os.rename("x", "z", src_dir_fd=d, dst_dir_fd=d)
os.symlink(root + "/a/b", root + "/link")
open(root + "/link/w", "w").close()
os.symlink("later", root + "/dangling")
open(root + "/dangling", "w").close()
os.mkdir(root + "/slash/")
os.unlink("y", dir_fd=d)
os.rmdir("c", dir_fd=d)
""",
    )
    assert spelled(run) == [
        "mkdir 1 at 0/a",
        "mkdir 2 at 1/b",
        "mkdir 3 at 1/c",
        "create 4 at 1/x",
        "create 5 at 1/y",
        "rename 4 from 1/x to 1/z",
        f"symlink 6 at 0/link to {tmp_path}/root/a/b",
        "create 7 at 2/w",
        "symlink 8 at 0/dangling to later",
        "create 9 at 0/later",
        "mkdir 10 at 0/slash",
        "unlink 5 at 1/y",
        "rmdir 3 at 1/c",
    ]


def test_names_of_any_byte(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
for name in (b"\\xff\\xfe", b"a b", b"new\\nline", b"hash#1", b"-", "gr\\u00fcn".encode()):
    os.close(os.open(name, os.O_CREAT | os.O_WRONLY))
os.rename(b"\\xff\\xfe", b"\\x01" * 20)
""",
    )
    assert [op.name for op in run.trace.operations[:6]] == [
        b"\xff\xfe",
        b"a b",
        b"new\nline",
        b"hash#1",
        b"-",
        "grün".encode(),
    ]
    assert run.places == [
        "create-%ff%fe#1",
        "create-a%20b#1",
        "create-new%0aline#1",
        "create-hash%231#1",
        "create--#1",
        "create-gr%c3%bcn#1",
        "rename-" + ("%01" * 20)[:40] + "#1",
    ]


def test_a_file_without_a_name_gets_one(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
f = os.open(".", os.O_TMPFILE | os.O_RDWR)
os.write(f, b"whole")
os.fsync(f)
os.link(f"/proc/self/fd/{f}", "by-proc", src_dir_fd=0, follow_symlinks=True)
g = os.dup(os.open(".", os.O_TMPFILE | os.O_RDWR))
os.write(g, b"two")
result = call("linkat", g, b"", -100, b"by-descriptor", 0x1000)
if result == -2:                      # before Linux 6.10 only root may
    os.link(f"/proc/self/fd/{g}", "by-descriptor", src_dir_fd=0, follow_symlinks=True)
os.write(f, b" and more")
""",
    )
    assert spelled(run) == [
        "create 1 at 0/",
        "write 1 0+5",
        "fsync 1",
        "link 1 at 0/by-proc",
        "create 2 at 0/",
        "write 2 0+3",
        "link 2 at 0/by-descriptor",
        "write 1 5+9",
    ]
    assert run.places == [
        "create-~#1",
        "write-~#1",
        "fsync-~#1",
        "link-by-proc#1",
        "create-~#2",
        "write-~#2",
        "link-by-descriptor#1",
        "write-~#3",
    ]


def test_openat2_creat_and_nofollow(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
import struct
how = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, 0o600, 0)
d = os.open(".", os.O_RDONLY)
assert call("openat2", d, b"a", how, 24) > 0
in_root = struct.pack("=QQQ", os.O_CREAT | os.O_WRONLY, 0o600, 0x10)
os.mkdir("jail")
j = os.open("jail", os.O_RDONLY)
assert call("openat2", j, b"/b", in_root, 24) > 0
os.symlink("elsewhere", "link")
nofollow = struct.pack("=QQQ", os.O_CREAT | os.O_NOFOLLOW, 0o600, 0)
assert call("openat2", d, b"link", nofollow, 24) < 0
if "creat" in NUMBERS:
    assert call("creat", b"c", 0o600) > 0
else:
    os.open("c", os.O_CREAT | os.O_WRONLY)
""",
    )
    assert spelled(run) == [
        "create 1 at 0/a",
        "mkdir 2 at 0/jail",
        "create 3 at 2/b",
        "symlink 4 at 0/link to elsewhere",
        "create 5 at 0/c",
    ]


def test_what_is_no_file_is_present_and_never_opened(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, socket
os.mkfifo("fifo")
s = socket.socket(socket.AF_UNIX)
s.bind("socket")
f = os.open("fifo", os.O_RDWR)
os.write(f, b"into a pipe, not into the tree")
os.fsync
os.rename("fifo", "fifo2")
os.unlink("socket")
""",
    )
    assert spelled(run) == [
        "create 1 at 0/fifo",
        "create 2 at 0/socket",
        "rename 1 from 0/fifo to 0/fifo2",
        "unlink 2 at 0/socket",
    ]
    assert [op.mode & 0o170000 for op in run.ops(Kind.CREATE)] == [0o010000, 0o140000]


def test_an_inode_number_used_again_is_a_new_inode(tmp_path: Path) -> None:
    """ext4 gives a new file the number of the one just removed."""
    run = record(
        tmp_path,
        """
import os
for i in range(3):
    with open("f", "w") as f:
        f.write(str(i))
    os.unlink("f")
""",
    )
    assert [op.inode for op in run.ops(Kind.CREATE)] == [1, 2, 3]
    assert [op.inode for op in run.ops(Kind.WRITE)] == [1, 2, 3]


def test_what_was_there_before_is_the_durable_start(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "d").mkdir(parents=True)
    (root / "d" / "old").write_bytes(b"old bytes")
    (root / "big").write_bytes(bytes(range(256)) * 512)
    os.link(root / "big", root / "d" / "same")
    (root / "link").symlink_to("d/old")
    os.mkfifo(root / "fifo")
    run = record(tmp_path, "open('d/old', 'a').write('!'); import os; os.unlink('big')")
    trace = run.trace
    assert trace.start[0].entries == {b"big": 1, b"d": 2, b"fifo": 3, b"link": 4}
    assert trace.start[2].entries == {b"old": 5, b"same": 1}
    assert trace.start[4].target == b"d/old"
    assert [str(trace.start[i].type) for i in range(6)] == [
        "directory",
        "file",
        "directory",
        "other",
        "symlink",
        "file",
    ]
    assert trace.blobs.read(trace.start[1].blob) == bytes(range(256)) * 512
    assert spelled(run) == ["write 5 9+1", "unlink 1 at 0/big"]


@pytest.mark.parametrize("synced", [False, True])
def test_a_file_moved_in_from_outside_brings_its_content(tmp_path: Path, synced: bool) -> None:
    """It is data not yet synced, unless the program has fsynced it out there."""
    run = record(
        tmp_path,
        f"""
import os
with open("../outside", "w") as f:
    f.write("content")
    f.flush()
    if {synced}:
        os.fsync(f.fileno())
os.rename("../outside", "inside")
os.rename("inside", "../away")
os.rename("../away", "back")
""",
    )
    brought = ["create 2 at 1/outside", "write 2 0+7", *(["fsync 2"] if synced else [])]
    assert spelled(run) == [
        *brought,
        "rename 2 from 1/outside to 0/inside",
        "rename 2 from 0/inside to 1/away",
        "rename 2 from 1/away to 0/back",
    ]
    assert 1 in run.trace.start  # the directory outside: no name under the root leads to it
    assert run.places == ["rename-inside#1", "rename-away#1", "rename-back#1"]
    assert [op.place for op in run.trace.operations if op.place] == run.places


@pytest.mark.parametrize("call", ["rename", "link"])
@pytest.mark.parametrize("synced", [False, True])
def test_what_was_synced_outside_keeps_its_content_when_it_is_moved_in(
    tmp_path: Path, call: str, synced: bool
) -> None:
    """Its write had ended when its sync began, and its sync when it was moved."""
    run = record(
        tmp_path,
        f"""
import os
with open("../outside", "w") as f:
    f.write("content")
    f.flush()
    if {synced}:
        os.fsync(f.fileno())
os.{call}("../outside", "inside")
""",
    )
    trace = run.trace
    assert all(a.ended < b.began for a, b in itertools.pairwise(trace.operations))
    trees = [state.tree() for state in enumerate_states(trace, model="posix")]
    found = {tree.read(b"inside") for tree in trees if b"inside" in tree.entries}
    assert found == {b"content"} if synced else {b"", b"content"} < found


def test_a_file_from_before_the_attempt_is_durable_when_it_is_moved_in(tmp_path: Path) -> None:
    (tmp_path / "old").write_bytes(b"old")
    run = record(tmp_path, "import os; os.link('../old', 'a'); os.rename('../old', 'b')")
    assert spelled(run) == [
        "create 2 at 1/old",
        "write 2 0+3",
        "fsync 2",
        "link 2 at 0/a",
        "rename 2 from 1/old to 0/b",
    ]


def test_a_file_moved_in_with_the_number_of_a_dead_one_is_another(tmp_path: Path) -> None:
    """Where the file system gives a number again at once (ext4); elsewhere it proves nothing."""
    run = record(
        tmp_path,
        """
import os
open("f", "w").close()
number = os.stat("f").st_ino
os.unlink("f")
for i in range(50):
    with open(f"../outside-{i}", "w") as f:
        f.write("new")
        if os.fstat(f.fileno()).st_ino == number:
            break
os.rename(f"../outside-{i}", "moved-in")
""",
    )
    assert [op.inode for op in run.ops(Kind.CREATE, Kind.UNLINK, Kind.WRITE)] == [1, 1, 3, 3]
    assert run.ops(Kind.RENAME)[0].inode == 3


def test_a_directory_moved_in_brings_its_children(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
os.makedirs("../stage/sub")
open("../stage/sub/f", "w").write("x" * 10)
os.symlink("sub/f", "../stage/link")
os.rename("../stage", "stage")
open("stage/sub/f", "a").write("more")
""",
    )
    assert spelled(run) == [
        "mkdir 2 at 1/stage",
        "symlink 3 at 2/link to sub/f",
        "mkdir 4 at 2/sub",
        "create 5 at 4/f",
        "write 5 0+10",
        "rename 2 from 1/stage to 0/stage",
        "write 5 10+4",
    ]


def test_modes_times_and_attributes_are_places_only(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.chmod("f", 0o600)
os.fchmod(f, 0o644)
os.utime("f")
os.utime(f)
os.chown("f", -1, -1)
os.chmod(".", 0o755)
try:
    os.setxattr("f", "user.x", b"1")
except OSError:
    pass
""",
    )
    assert run.places == [
        "create-f#1",
        "meta-f#1",
        "meta-f#2",
        "meta-f#3",
        "meta-f#4",
        "meta-f#5",
        "meta-.#1",
        "meta-f#6",
    ]
    assert spelled(run)[1:6] == ["meta 1"] * 5
