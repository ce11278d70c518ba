"""What no trace can hold is named, and what a plain user may not see is not passed over."""

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fault_injection.recorded import SYSCALL, record

SETUP = """
import mmap, os
f = os.open("f", os.O_CREAT | os.O_RDWR)
os.ftruncate(f, 8192)
"""


def refusal(tmp_path: Path, code: str) -> str:
    """Why a program that runs well cannot be traced."""
    run = record(tmp_path, SETUP + code, check=False)
    assert run.exit_code == 0, run.stderr.decode()
    named = [call.untraceable for call in run.calls if call.untraceable]
    assert named[:1] == ([run.recorder.untraceable] if named else [])
    return run.recorder.untraceable


def test_a_shared_writable_mapping(tmp_path: Path) -> None:
    code = "m = mmap.mmap(f, 4096)\nm[0] = 1"
    assert refusal(tmp_path, code) == "mmap: a shared writable mapping of f"


@pytest.mark.parametrize(
    "code",
    [
        "m = mmap.mmap(f, 4096, mmap.MAP_PRIVATE)\nm[0] = 1",
        "mmap.mmap(f, 4096, mmap.MAP_SHARED, mmap.PROT_READ)",
        "mmap.mmap(-1, 4096)[0] = 1",
        "g = os.open('../outside', os.O_CREAT | os.O_RDWR)\nos.ftruncate(g, 10)\nmmap.mmap(g, 10)",
    ],
    ids=["private", "read-only", "anonymous", "outside"],
)
def test_harmless_mappings(tmp_path: Path, code: str) -> None:
    assert refusal(tmp_path, code) == ""


def test_a_mapping_that_is_made_writable_later(tmp_path: Path) -> None:
    code = SYSCALL + (
        """
_libc.mmap.restype = ctypes.c_void_p
address = _libc.mmap(None, ctypes.c_size_t(8192), 1, 1, f, ctypes.c_long(0))
assert call("mprotect", address, 4096, 3) == 0
ctypes.memset(address, 1, 1)
"""
    )
    assert refusal(tmp_path, code) == "mprotect: a shared writable mapping of f"


def test_a_mapping_by_another_name_is_of_the_same_file(tmp_path: Path) -> None:
    code = "os.link('f', '../elsewhere')\nmmap.mmap(os.open('../elsewhere', os.O_RDWR), 10)[0] = 1"
    assert refusal(tmp_path, code) == "mmap: a shared writable mapping of elsewhere"


def test_io_uring(tmp_path: Path) -> None:
    code = SYSCALL + "call('io_uring_setup', 4, b'\\0' * 120)"
    assert refusal(tmp_path, code) == "io_uring_setup: file operations through a ring"


def test_asynchronous_writes(tmp_path: Path) -> None:
    code = SYSCALL + (
        """
import struct
NUMBERS["io_setup"] = 206 if "open" in NUMBERS else 0
context = ctypes.c_ulong()
assert call("io_setup", 4, ctypes.byref(context)) == 0
data = ctypes.create_string_buffer(b"asynchronous")
def submit(opcode, fd):
    block = ctypes.create_string_buffer(struct.pack(
        "=QIiHhIQQqQII", 0, 0, 0, opcode, 0, fd, ctypes.addressof(data), 12, 0, 0, 0, 0))
    pointer = ctypes.c_void_p(ctypes.addressof(block))
    return call("io_submit", ctypes.c_long(context.value), 1, ctypes.byref(pointer))
assert submit(0, f) == 1
%s
"""
    )
    assert refusal(tmp_path, code % "") == ""
    assert refusal(tmp_path, code % "submit(1, f)") == "io_submit: asynchronous writes"


def test_a_mount_under_the_root(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    code = SYSCALL + (
        """
os.mkdir("m")
assert call("mount", b"none", b"m", b"tmpfs", 0, None) == 0
try:
    assert _libc.umount2(b"m", 2) == 0
finally:
    pass
"""
    )
    assert refusal(tmp_path, code) == "mount: a mount under the root"


def test_a_32_bit_call_is_not_missed(tmp_path: Path) -> None:
    """int 0x80 in a 64-bit program: number 39 is mkdir there, getpid here."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or os.uname().machine != "x86_64":
        pytest.skip("needs a C compiler for x86_64")
    (tmp_path / "p.c").write_text(
        """
#define _GNU_SOURCE
#include <sys/mman.h>
#include <string.h>
int main(void) {
    char *low = mmap((void *)0x10000000, 4096, 3, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    strcpy(low, "by-int80");
    long result;
    __asm__ volatile("int $0x80" : "=a"(result) : "a"(39L), "b"(low), "c"(0755L) : "memory");
    return 0;
}
"""
    )
    subprocess.run([compiler, "-w", "-o", tmp_path / "p", tmp_path / "p.c"], check=True)
    run = record(tmp_path, program=str(tmp_path / "p"), check=False)
    if run.exit_code != 0:
        pytest.skip("this kernel has no 32-bit calls")
    assert run.recorder.untraceable == "a 32-bit system call (number 39)"


def test_a_change_that_no_call_announced_is_noticed(tmp_path: Path) -> None:
    """Another process, not supervised, writes into the tree."""

    def intrude(*_: object) -> None:
        (tmp_path / "root" / "intruder").write_text("x")

    run = record(tmp_path, "open('f', 'w').close()", answer=intrude, check=False)
    assert run.recorder.untraceable == "intruder appeared without a call that was seen"

    (tmp_path / "root" / "intruder").unlink()
    (tmp_path / "root" / "f").unlink()

    def lengthen(*_: object) -> None:
        with (tmp_path / "root" / "old").open("a") as file:
            file.write("y")

    (tmp_path / "root" / "old").write_text("x")
    run = record(tmp_path, "import os; os.mkdir('d')", answer=lengthen, check=False)
    assert run.recorder.untraceable.startswith("old has ")


NOBODY = pwd.getpwnam("nobody").pw_uid


def python_for_anyone(home: Path) -> str:
    """An interpreter that a plain user may start: ours may lie in root's home."""
    for python in (sys.executable, "/usr/bin/python3"):
        question = [python, "-c", "import sys; assert sys.version_info >= (3, 11)"]
        try:
            done = subprocess.run(
                question, cwd=home, user=NOBODY, extra_groups=[], capture_output=True
            )
        except OSError:
            continue
        if done.returncode == 0:
            return python
    pytest.skip("no Python 3.11 that a plain user may start")


@pytest.fixture
def home() -> Iterator[Path]:
    """A plain user's directory; not below pytest's, which other sessions close to all but root."""
    if os.geteuid() != 0:
        pytest.skip("the whole suite runs as a plain user already")
    with tempfile.TemporaryDirectory(prefix="plain-user-") as name:
        os.chown(name, NOBODY, NOBODY)
        yield Path(name)


def as_plain_user(home: Path, test: str) -> None:
    """Run a piece of a test as a plain user, supervisor and program both."""
    # The package may lie where a plain user cannot read: it is taken along.
    here = Path(__file__).resolve().parents[2]
    for package in ("fault_injection", "tests/fault_injection"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(here / package, home / package, ignore=ignored)
    done = subprocess.run(
        [python_for_anyone(home), "-c", test],
        cwd=home,
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        env={"PYTHONPATH": str(home), "HOME": str(home)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


def test_a_plain_user_can_record(home: Path) -> None:
    as_plain_user(
        home,
        """
from pathlib import Path
from tests.fault_injection.recorded import record, spelled
run = record(Path("."), '''
import os
os.mkdir("d")
with open("d/f.tmp", "w") as f:
    f.write("x" * 100000)
    f.flush()
    os.fsync(f.fileno())
os.chmod("d/f.tmp", 0o400)
os.rename("d/f.tmp", "d/f")
if os.fork() == 0:
    os.link("d/f", "g")
    os._exit(0)
os.wait()
print("saved")
''')
assert spelled(run) == ["mkdir 1 at 0/d", "create 2 at 1/f.tmp", "write 2 0+100000", "fsync 2",
                        "meta 2", "rename 2 from 1/f.tmp to 1/f", "link 2 at 0/g",
                        "output stdout 6"], spelled(run)
""",
    )


def test_a_process_that_a_plain_user_may_not_follow_is_named(home: Path) -> None:
    """prctl(PR_SET_DUMPABLE, 0) closes a process to all but root."""
    as_plain_user(
        home,
        """
from pathlib import Path
from tests.fault_injection.recorded import record
run = record(Path("."), '''
import ctypes, os
os.mkdir("seen")
ctypes.CDLL(None).prctl(4, 0)
os.mkdir("unseen")
''', check=False)
assert run.exit_code == 0, run.stderr
assert run.recorder.untraceable.startswith("mkdir of a process that cannot be followed"), (
    run.recorder.untraceable)
""",
    )


def test_a_file_of_the_start_that_cannot_be_read_is_named(home: Path) -> None:
    as_plain_user(
        home,
        """
import os
from pathlib import Path
from tests.fault_injection.recorded import record
os.mkdir("root")
os.close(os.open("root/secret", os.O_CREAT | os.O_WRONLY, 0o200))
os.truncate("root/secret", 5)
run = record(Path("."), "pass", check=False)
assert run.recorder.untraceable == "secret cannot be read", run.recorder.untraceable
""",
    )
