"""The order of a trace: threads, processes, syncs, and what the world saw meanwhile."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from fault_injection.trace import Kind
from tests.fault_injection.recorded import (
    SYSCALL,
    Recorded,
    killed_at,
    light,
    record,
    spelled,
)


def test_every_way_to_sync(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        SYSCALL
        + """
f = os.open("f", os.O_CREAT | os.O_WRONLY)
os.write(f, b"x")
os.fsync(os.open("f", os.O_RDONLY))    # any descriptor of the file will do
os.fdatasync(os.dup(f))
d = os.open(".", os.O_RDONLY)
os.fsync(d)
os.mkdir("sub")
os.fsync(os.open("sub", os.O_RDONLY))
os.fdatasync(d)
call("sync_file_range", f, 0, 0, 7)
assert call("syncfs", d) == 0
os.sync()
assert call("fsync", 99) == -9
os.fsync(os.open("../spool", os.O_RDONLY))
""",
    )
    assert spelled(run)[2:] == [
        "fsync 1",
        "fdatasync 1",
        "fsync 0",
        "mkdir 2 at 0/sub",
        "fsync 2",
        "fdatasync 0",
        "meta 1",
        "sync",
        "sync",
    ]
    assert run.places[2:] == [
        "fsync-f#1",
        "fdatasync-f#1",
        "fsync-.#1",
        "mkdir-sub#1",
        "fsync-sub#1",
        "fdatasync-.#1",
        "syncrange-f#1",
        "sync-.#1",
        "sync-.#2",
    ]


def test_calls_of_one_thread_follow_one_another(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
f = os.open("f", os.O_CREAT | os.O_WRONLY)
for _ in range(5):
    os.write(f, b"x")
    os.fsync(f)
""",
    )
    ops = run.trace.operations
    assert [op.index for op in ops] == list(range(11))
    assert all(a.ended < b.began for a, b in itertools.pairwise(ops))
    assert {op.thread for op in ops} == {0}


def test_a_join_orders_what_a_thread_did(tmp_path: Path) -> None:
    """The writer has synced before the main thread says so: seen as before it."""
    run = record(
        tmp_path,
        """
import os, threading
def write(name):
    f = os.open(name, os.O_CREAT | os.O_WRONLY)
    os.write(f, b"data")
    os.fsync(f)
for n in range(8):
    writer = threading.Thread(target=write, args=(f"f{n}",))
    writer.start()
    writer.join()
    os.write(1, b"saved")
    os.rename(f"f{n}", f"g{n}")
""",
    )
    ops = run.trace.operations
    assert [str(op.kind) for op in ops] == ["create", "write", "fsync", "output", "rename"] * 8
    assert all(a.ended < b.began for a, b in itertools.pairwise(ops))


@pytest.mark.parametrize("compute", ["", "sum(range(20_000_000))"])
def test_a_thread_that_computes_after_its_sync_has_ended_it(tmp_path: Path, compute: str) -> None:
    """Seen running it might be in the call or out of it: bounded waiting tells."""
    run = record(
        tmp_path,
        f"""
import os, threading
done = threading.Event()
def write():
    f = os.open("f", os.O_CREAT | os.O_WRONLY)
    os.write(f, b"data")
    os.fsync(f)
    done.set()
    {compute}
writer = threading.Thread(target=write)
writer.start()
done.wait()
os.write(1, b"saved")
writer.join()
""",
    )
    sync, said = run.ops(Kind.FSYNC)[0], run.ops(Kind.OUTPUT)[0]
    assert sync.ended < said.began


def test_a_call_that_is_still_running_overlaps_the_next_one(tmp_path: Path) -> None:
    """A splice waits for its pipe while another thread makes a directory, then fills the pipe."""
    run = record(
        tmp_path,
        """
import os, threading
from fault_injection.syscalls import NUMBERS
f = os.open("f", os.O_CREAT | os.O_WRONLY)
r, w = os.pipe()
def drain():
    assert os.splice(r, f, 100) == 5
    os.fsync(f)
drainer = threading.Thread(target=drain)
drainer.start()
while True:
    with open(f"/proc/self/task/{drainer.native_id}/syscall") as file:
        if file.read().split()[0] == str(NUMBERS["splice"]):
            break
os.mkdir("meanwhile")
os.write(w, b"bytes")
drainer.join()
os.mkdir("after")
""",
    )
    assert spelled(run) == [
        "create 1 at 0/f",
        "write 1 0+5",
        "mkdir 2 at 0/meanwhile",
        "fsync 1",
        "mkdir 3 at 0/after",
    ]
    _, splice, meanwhile, sync, after = run.trace.operations
    assert splice.began < meanwhile.began < meanwhile.ended < splice.ended
    assert splice.ended < sync.began < sync.ended < after.began


def test_threads_that_write_at_once_keep_their_own_order(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, threading
def write(name):
    f = os.open(name, os.O_CREAT | os.O_WRONLY)
    for _ in range(200):
        os.write(f, b"data")
    os.fsync(f)
writers = [threading.Thread(target=write, args=(name,)) for name in ("a", "b", "c")]
for writer in writers:
    writer.start()
for writer in writers:
    writer.join()
""",
    )
    ops = run.trace.operations
    assert sorted(op.began for op in ops) == [op.began for op in ops]
    assert all(op.began < op.ended for op in ops)
    for thread in (0, 1, 2):
        mine = [op for op in ops if op.thread == thread]
        assert all(a.ended < b.began for a, b in itertools.pairwise(mine))
        assert [op.offset for op in mine if op.kind is Kind.WRITE] == list(range(0, 800, 4))


def test_processes_share_files_and_offsets(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, subprocess, sys
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.write(f, b"parent ")
if os.fork() == 0:
    os.write(f, b"child ")
    os.fsync(f)
    os._exit(0)
os.wait()
os.write(f, b"parent again ")
os.set_inheritable(f, True)
subprocess.run([sys.executable, "-c", f"import os; os.write({f}, b'program'); os.mkdir('d')"],
               close_fds=False, check=True)
subprocess.run("echo shell > g && mv g h && echo more >> h", shell=True, check=True)
os.rename("h", "d/i")
""",
    )
    assert (tmp_path / "root" / "f").read_bytes() == b"parent child parent again program"
    assert [text for text in spelled(run) if not text.startswith("meta")] == [
        "create 1 at 0/f",
        "write 1 0+7",
        "write 1 7+6",
        "fsync 1",
        "write 1 13+13",
        "write 1 26+7",
        "mkdir 2 at 0/d",
        "create 3 at 0/g",
        "write 3 0+6",
        "rename 3 from 0/g to 0/h",
        "write 3 6+5",
        "rename 3 from 0/h to 2/i",
    ]


def test_a_descriptor_passed_over_a_socket_is_the_same_file(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, socket
a, b = socket.socketpair()
if os.fork() == 0:
    _, fds, _, _ = socket.recv_fds(b, 1, 1)
    os.write(fds[0], b"by another")
    os._exit(0)
f = os.open("f", os.O_CREAT | os.O_RDWR)
socket.send_fds(a, [b"x"], [f])
os.wait()
""",
    )
    assert spelled(run) == ["create 1 at 0/f", "write 1 0+10"]


def test_what_the_world_saw_is_in_the_order_of_the_operations(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, sys
log = os.open("log.jsonl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
os.write(1, b"begin\\n")
os.write(log, b"one\\n")
os.write(2, b"warning\\n")
os.truncate("log.jsonl", 0)             # what was written has been seen
os.writev(1, [b"sav", b"ed\\n"])
open("log.tmp", "w").write("two\\nthree\\n")
os.rename("log.tmp", "log.jsonl")
open("log.tmp", "w").write("two\\nthree\\nfour\\n")
os.rename("log.tmp", "log.jsonl")       # beyond the old content only "four" is new
r, w = os.pipe()
os.write(w, b"spliced\\n")
os.splice(r, 1, 100)
os.write(os.open("other", os.O_CREAT | os.O_WRONLY), b"nobody looks here")
""",
        watch=("log.jsonl",),
    )
    assert [(source, data) for source, data, _, _ in run.recorder.seen] == [
        ("stdout", b"begin\n"),
        ("log.jsonl", b"one\n"),
        ("stderr", b"warning\n"),
        ("stdout", b"saved\n"),
        ("log.jsonl", b"two\nthree\n"),
        ("log.jsonl", b"four\n"),
        ("stdout", b"spliced\n"),
    ]
    ops = run.trace.operations
    assert [ops[index].place for _, _, index, _ in run.recorder.seen] == [
        "output-stdout#1",
        "write-log.jsonl#1",
        "output-stderr#1",
        "output-stdout#2",
        "rename-log.jsonl#1",
        "rename-log.jsonl#2",
        "output-stdout#3",
    ]
    assert run.stdout == b"begin\nsaved\nspliced\n"
    outputs = run.ops(Kind.OUTPUT)
    assert [op.stream for op in outputs] == ["stdout", "stderr", "stdout", "stdout"]
    assert run.trace.blobs.read(outputs[2].blob) == b"saved\n"


def test_a_watched_file_that_is_cut_back_by_a_copy_of_its_beginning(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os
def replace(text):
    with open("log.tmp", "w") as file:
        file.write(text)
    os.rename("log.tmp", "log")
replace("one\\ntwo\\nthree\\n")
replace("one\\ntwo\\n")                # as before, and less of it
replace("one\\ntwo\\nthree again\\n")  # beyond the two old lines
replace("one\\ntwo\\nthree\\n")        # whose third was another
replace("else\\n")
""",
        watch=("log",),
    )
    assert [data for _, data, _, _ in run.recorder.seen] == [
        b"one\ntwo\nthree\n",
        b"three again\n",
        b"three\n",
        b"else\n",
    ]


def test_what_could_not_be_written_was_not_seen(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """
import os, resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (6, 6))
log = os.open("log", os.O_CREAT | os.O_WRONLY)
os.write(log, b"begin")
os.write(log, b"end")
try:
    os.write(log, b"never")
except OSError:
    os.write(1, b"full")
""",
        watch=("log",),
    )
    assert [(source, data) for source, data, _, _ in run.recorder.seen] == [
        ("log", b"begin"),
        ("log", b"e"),
        ("stdout", b"full"),
    ]


LABELS = """
import os, threading
def save(name):
    for step in range(5):
        with open(f"{name}.tmp", "w") as f:
            f.write(str(step))
            f.flush()
            os.fsync(f.fileno())
        os.rename(f"{name}.tmp", name)
writers = [threading.Thread(target=save, args=(name,)) for name in ("a", "b")]
for w in writers: w.start()
for w in writers: w.join()
print("done", flush=True)
os.makedirs("a.d/b.d", exist_ok=True)
os.makedirs("a.d/b.d", exist_ok=True)
open("a", "a").close()
open("a", "r+").write("x")
os.remove("b")
"""


def test_places_are_the_same_in_both_modes_though_threads_interleave(tmp_path: Path) -> None:
    recorded: Recorded = record(tmp_path, LABELS)
    killed = light(tmp_path, LABELS)
    assert sorted(recorded.places) == sorted(killed.places)
    assert "rename-a#5" in killed.places
    assert killed.recorder.seen[-1][3].startswith("output-stdout#")


def test_a_call_that_is_killed_before_it_runs_has_not_run(tmp_path: Path) -> None:
    code = """
import os
open("f.tmp", "w").write("new")
os.write(1, b"about to")
os.rename("f.tmp", "f")
os.write(1, b"done")
"""
    run = record(tmp_path, code, answer=killed_at("rename-f#1"), check=False)
    assert os.listdir(tmp_path / "root") == ["f.tmp"]
    assert spelled(run) == ["create 1 at 0/f.tmp", "write 1 0+3", "output stdout 8"]
    assert [data for _, data, _, _ in run.recorder.seen] == [b"about to"]
    assert run.recorder.untraceable == ""
    run = record(tmp_path, code, answer=killed_at("output-stdout#2"), check=False)
    assert run.stdout == b"about to"
    assert sorted(os.listdir(tmp_path / "root")) == ["f"]


C_PROGRAM = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void *thread(void *name) {
    FILE *file = fopen(name, "w");
    for (int i = 0; i < 3000; i++) fprintf(file, "line %d\n", i);
    fflush(file);
    fsync(fileno(file));
    fclose(file);
    return NULL;
}

int main(void) {
    mkdir("d", 0755);
    int dir = open("d", O_RDONLY | O_DIRECTORY);
    int fd = openat(dir, "f.tmp", O_CREAT | O_RDWR | O_TRUNC, 0644);
    struct iovec parts[2] = {{"head ", 5}, {"body ", 5}};
    writev(fd, parts, 2);
    pwritev(fd, parts, 1, 10);
    lseek(fd, 0, SEEK_END);
    char byte;
    pread(fd, &byte, 1, 0);
    write(fd, "tail", 4);
    fdatasync(fd);
    renameat(dir, "f.tmp", dir, "f");
    fsync(dir);
    pthread_t threads[2];
    pthread_create(&threads[0], NULL, thread, "stdio-a");
    pthread_create(&threads[1], NULL, thread, "stdio-b");
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    if (vfork() == 0) { execlp("touch", "touch", "touched", NULL); _exit(1); }
    wait(NULL);
    puts("saved");
    return 0;
}
"""


@pytest.fixture(scope="session")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> str:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler here")
    where = tmp_path_factory.mktemp("compiled")
    (where / "program.c").write_text(C_PROGRAM)
    subprocess.run(
        [compiler, "-w", "-O1", "-pthread", "-o", where / "program", where / "program.c"],
        check=True,
    )
    return str(where / "program")


def test_a_program_in_c_is_recorded_alike(tmp_path: Path, compiled: str) -> None:
    run = record(tmp_path, program=compiled)
    texts = spelled(run)
    assert texts[:9] == [
        "mkdir 1 at 0/d",
        "create 2 at 1/f.tmp",
        "write 2 0+10",
        "write 2 10+5",
        "write 2 15+4",
        "fdatasync 2",
        "rename 2 from 1/f.tmp to 1/f",
        "fsync 1",
        "create 3 at 0/stdio-a" if "stdio-a" in texts[8] else "create 3 at 0/stdio-b",
    ]
    assert [text for text in texts if text.startswith("output")] == ["output stdout 6"]
    assert "create-touched#1" in run.places
    assert run.recorder.seen == [("stdout", b"saved\n", len(texts) - 1, "output-stdout#1")]
