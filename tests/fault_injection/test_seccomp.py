"""Calls stop at the supervisor, and go on, fail or return as it says."""

import errno
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_injection import seccomp, syscalls
from fault_injection.procfs import has_left
from fault_injection.seccomp import Match
from tests.fault_injection.recorded import require_supervision

CHILD = """
import os, pickle, socket, sys
from fault_injection import seccomp
sock = socket.socket(fileno=int(sys.argv[1]))
notify = pickle.loads(bytes.fromhex(sys.argv[2]))
seccomp.send_fd(sock, seccomp.install_filter(notify))
"""


class Supervised:
    """A child under a filter, and its listener."""

    def __init__(self, notify: set[int | Match], code: str) -> None:
        import pickle

        ours, theirs = socket.socketpair()
        with ours, theirs:
            self.child = subprocess.Popen(
                [
                    sys.executable,
                    "-c",
                    CHILD + code,
                    str(theirs.fileno()),
                    pickle.dumps(notify).hex(),
                ],
                pass_fds=[theirs.fileno()],
                stdout=subprocess.PIPE,
                text=True,
            )
            self.listener = seccomp.receive_fd(ours)

    def next(self) -> seccomp.Notification:
        assert select.select([self.listener], [], [], 30)[0]
        note = seccomp.receive(self.listener)
        assert note is not None
        return note

    def end(self) -> tuple[int, str]:
        out, _ = self.child.communicate(timeout=30)
        return self.child.returncode, out


@pytest.fixture
def started() -> Iterator[list[Supervised]]:
    require_supervision()
    all_of_them: list[Supervised] = []
    yield all_of_them
    for one in all_of_them:
        one.child.kill()
        one.child.communicate()
        os.close(one.listener)


def start(started: list[Supervised], notify: set[int | Match], code: str) -> Supervised:
    started.append(Supervised(notify, code))
    return started[-1]


N = syscalls.NUMBERS
MKDIRAT = N.get("mkdirat", -1)


def test_a_call_is_let_run_failed_or_answered(started: list[Supervised], tmp_path: Path) -> None:
    one = start(
        started,
        {MKDIRAT, N["write"]},
        f"""
d = os.open({str(tmp_path)!r}, os.O_PATH)
os.mkdir("run", dir_fd=d)
try:
    os.mkdir("failed", dir_fd=d)
except OSError as error:
    result = error.errno
os.mkdir("pretended", dir_fd=d)
os._exit(result)
""",
    )
    names = []
    answers: list[Callable[[int], bool]] = [
        lambda number: seccomp.respond_continue(one.listener, number),
        lambda number: seccomp.respond_errno(one.listener, number, errno.EDQUOT),
        lambda number: seccomp.respond_value(one.listener, number, 0),
    ]
    for respond in answers:
        note = one.next()
        assert (note.tid, note.nr, note.foreign) == (one.child.pid, MKDIRAT, "")
        names.append(seccomp.read_c_string(note.tid, note.args[1]))
        assert seccomp.still_valid(one.listener, note.id)
        assert not list(tmp_path.glob("failed"))  # it waits
        assert respond(note.id)
        assert not seccomp.still_valid(one.listener, note.id)
        assert not respond(note.id)
    assert names == [b"run", b"failed", b"pretended"]
    assert one.end()[0] == errno.EDQUOT
    assert os.listdir(tmp_path) == ["run"]


def test_a_killed_caller_leaves_nothing_to_answer(started: list[Supervised]) -> None:
    one = start(started, {MKDIRAT}, "os.mkdir('x', dir_fd=0)")
    note = one.next()
    one.child.kill()
    one.child.wait()
    assert not seccomp.still_valid(one.listener, note.id)
    assert not seccomp.respond_continue(one.listener, note.id)
    with pytest.raises(ProcessLookupError):
        seccomp.read_memory(note.tid, note.args[1], 8)
    with pytest.raises(ProcessLookupError):
        seccomp.thread_group(note.tid)
    other = start(started, {MKDIRAT}, "os.mkdir('x', dir_fd=0)")
    assert select.select([other.listener], [], [], 30)[0]
    other.child.kill()
    other.child.wait()
    assert seccomp.receive(other.listener) is None


def test_a_signal_does_not_make_a_received_call_come_twice(started: list[Supervised]) -> None:
    """SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19."""
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    if release < (5, 19):
        pytest.skip(f"Linux {release} has no WAIT_KILLABLE_RECV")
    one = start(
        started,
        {MKDIRAT},
        """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("handled"))
try:
    os.mkdir("x", dir_fd=0)
except OSError as error:
    print(error.errno)
""",
    )
    note = one.next()
    os.kill(one.child.pid, signal.SIGUSR1)
    assert not select.select([one.listener], [], [], 0.05)[0]
    assert seccomp.respond_errno(one.listener, note.id, errno.EXDEV)
    assert one.end() == (0, f"handled\n{errno.EXDEV}\n")


def test_conditions_on_arguments(started: list[Supervised]) -> None:
    """Only a call that fits all tests of one match stops; the rest run at full speed."""
    matches: set[int | Match] = {
        Match(N["openat"], bits=((2, os.O_CREAT | os.O_TRUNC),)),
        Match(N["mmap"], bits=((2, 2), (3, 1))),
        Match(N["ioctl"], equals=((1, 0x1234),)),
        Match(N["ioctl"], equals=((1, 0x5678),), bits=((2, 4),)),
        Match(N["lseek"], differs=((2, 1), (2, 2)), equals=((1, 7),)),
    }
    one = start(
        started,
        matches,
        """
import fcntl, mmap
f = os.open("/dev/zero", os.O_RDWR)
mmap.mmap(-1, 4096, mmap.MAP_PRIVATE)
mmap.mmap(-1, 4096, mmap.MAP_SHARED, mmap.PROT_READ)
mmap.mmap(-1, 4096, mmap.MAP_SHARED)
for request, argument in ((0x1235, 4), (0x1234, 0), (0x5678, 3), (0x5678, 6)):
    try:
        fcntl.ioctl(f, request, argument)
    except OSError:
        pass
for offset, whence in ((7, 1), (7, 2), (8, 0), (7, 0)):
    os.lseek(f, offset, whence)
os.open("/dev/null", os.O_WRONLY | os.O_TRUNC)
""",
    )
    seen = []
    for _ in range(5):
        note = one.next()
        seen.append((syscalls.NAMES[note.nr], note.args[1] if note.nr == N["ioctl"] else 0))
        seccomp.respond_continue(one.listener, note.id)
    assert one.end()[0] == 0
    assert seen == [
        ("mmap", 0),
        ("ioctl", 0x1234),
        ("ioctl", 0x5678),
        ("lseek", 0),
        ("openat", 0),
    ]


def test_memory_is_read_up_to_the_last_page(started: list[Supervised]) -> None:
    one = start(
        started,
        {MKDIRAT},
        """
import ctypes, mmap
from fault_injection.syscalls import NUMBERS
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
area = libc.mmap(None, ctypes.c_size_t(8192), 3, 0x22, -1, ctypes.c_long(0))
libc.munmap(ctypes.c_void_p(area + 4096), ctypes.c_size_t(4096))
text = b"at the very end"
ctypes.memmove(area + 4096 - len(text) - 1, text + b"\\0", len(text) + 1)
ctypes.memset(area, 65, 100)
syscall = libc.syscall
MKDIRAT = NUMBERS["mkdirat"]
for address in (area + 4096 - len(text) - 1, area, area + 4096, 0):
    syscall(ctypes.c_long(MKDIRAT), 0, ctypes.c_void_p(address), 0)
""",
    )
    note = one.next()
    assert seccomp.read_c_string(note.tid, note.args[1]) == b"at the very end"
    assert seccomp.read_memory(note.tid, note.args[1], 100) == b"at the very end\0"
    assert seccomp.read_memory(note.tid, note.args[1], 0) == b""
    seccomp.respond_continue(one.listener, note.id)
    note = one.next()
    assert seccomp.read_c_string(note.tid, note.args[1]) == b"A" * 100
    assert seccomp.read_c_string(note.tid, note.args[1], limit=7) == b"A" * 7
    seccomp.respond_continue(one.listener, note.id)
    for _ in range(2):
        note = one.next()
        with pytest.raises(OSError, match="Bad address"):
            seccomp.read_c_string(note.tid, note.args[1])
        seccomp.respond_continue(one.listener, note.id)
    assert one.end()[0] == 0


def test_a_descriptor_of_a_thread_is_duplicated_with_its_offset(
    started: list[Supervised], tmp_path: Path
) -> None:
    one = start(
        started,
        {MKDIRAT},
        f"""
import threading
f = os.open({str(tmp_path / "f")!r}, os.O_CREAT | os.O_RDWR)
os.write(f, b"abc")
t = threading.Thread(target=lambda: os.mkdir("", dir_fd=f))
t.start(); t.join()
os.write(f, b"ghi")
""",
    )
    note = one.next()
    assert note.tid != one.child.pid
    assert seccomp.thread_group(note.tid) == one.child.pid
    copy = seccomp.duplicate_fd(note.tid, note.args[0])
    os.write(copy, b"def")
    os.close(copy)
    with pytest.raises(OSError, match="descriptor 77 of thread"):
        seccomp.duplicate_fd(note.tid, 77)
    seccomp.respond_value(one.listener, note.id, 0)
    assert one.end()[0] == 0
    assert (tmp_path / "f").read_bytes() == b"abcdefghi"


def test_whether_a_thread_is_out_of_a_call_again(started: list[Supervised]) -> None:
    """Waiting for its supervisor it is in a new call, however much that looks like the last."""
    one = start(started, {MKDIRAT}, "os.mkdir('', dir_fd=0)\nos.read(sock.fileno(), 7)")
    note = one.next()
    while has_left(note.tid, note.nr, note.args) is None:
        pass  # it has told us a moment before it falls asleep
    assert has_left(note.tid, note.nr, note.args) is True
    seccomp.respond_value(one.listener, note.id, 0)
    one.child.wait()
    assert has_left(note.tid, note.nr, note.args) is True
    reading, writing = os.pipe()
    child = subprocess.Popen(["cat"], stdin=reading, stdout=subprocess.DEVNULL)
    try:
        path = f"/proc/{child.pid}/syscall"
        while not (words := Path(path).read_text().split()) or words[0] != str(N["read"]):
            pass
        args = [int(word, 16) for word in words[1:7]]
        assert has_left(child.pid, N["read"], tuple(args)) is False
        assert has_left(child.pid, N["write"], tuple(args)) is True
        assert has_left(child.pid, N["read"], (*args[:5], args[5] ^ 1)) is True
    finally:
        os.close(writing)
        os.close(reading)
        child.wait()
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        path = f"/proc/{busy.pid}/syscall"
        while Path(path).read_text() != "running\n":
            pass
        answers = {has_left(busy.pid, N["write"], (0,) * 6) for _ in range(1000)}
        assert None in answers
        assert False not in answers
    finally:
        busy.kill()
        busy.wait()


def test_a_second_listener_is_refused_by_the_kernel(started: list[Supervised]) -> None:
    one = start(
        started,
        {MKDIRAT},
        """
try:
    seccomp.install_filter({1})
except OSError as error:
    os._exit(error.errno)
""",
    )
    assert one.end()[0] == errno.EBUSY


def test_the_end_of_all_callers_can_be_polled(started: list[Supervised]) -> None:
    one = start(started, {MKDIRAT}, "")
    poll = select.poll()
    poll.register(one.listener, select.POLLIN)
    assert one.end()[0] == 0
    assert poll.poll(30_000) == [(one.listener, select.POLLHUP)]


def test_no_descriptor_is_an_end_of_file() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.close()
        with pytest.raises(EOFError):
            seccomp.receive_fd(ours)


def test_a_structure_of_another_size_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    require_supervision()
    monkeypatch.setattr(seccomp, "_DATA_SIZE", 72)
    with pytest.raises(OSError, match=r"structures are \[80, 24, 64\] bytes, not \[80, 24, 72\]"):
        seccomp._check_sizes()


def test_other_systems_are_told_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(syscalls, "MACHINE", "riscv64")
    reason = seccomp.unavailable.__wrapped__()
    assert reason == "needs x86_64 or aarch64; this machine is riscv64"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert "this is darwin" in str(seccomp.unavailable.__wrapped__())


def test_a_trial_that_cannot_read_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    require_supervision()
    monkeypatch.setattr(seccomp, "read_c_string", lambda *_: b"")
    reason = seccomp.unavailable.__wrapped__()
    assert reason == "the memory of a supervised child could not be read"


@pytest.mark.parametrize("machine", syscalls.MACHINES)
def test_both_machines_have_filters_that_foreign_calls_do_not_pass(machine: str) -> None:
    """The program is run here, instruction by instruction."""
    numbers = syscalls.numbers(machine)
    matches: set[int | Match] = {numbers["write"], Match(numbers["openat"], bits=((2, 0o100),))}
    program = seccomp._filter_program(matches, machine)
    arch = seccomp.AUDIT_ARCH[machine]
    notify, allow = 0x7FC00000, 0x7FFF0000
    assert run_bpf(program, numbers["write"], arch) == notify
    assert run_bpf(program, numbers["fsync"], arch) == allow
    assert run_bpf(program, numbers["openat"], arch, (0, 0, 0o100)) == notify
    assert run_bpf(program, numbers["openat"], arch, (0, 0, 0o200)) == allow
    assert run_bpf(program, numbers["fsync"], 0x40000003) == notify
    assert run_bpf(program, 500, arch) == allow
    x32 = run_bpf(program, 0x40000000 | numbers["fsync"], arch)
    assert x32 == (notify if machine == "x86_64" else allow)


def run_bpf(program: bytes, nr: int, arch: int, args: tuple[int, ...] = ()) -> int:
    """Interpret the four instructions that our programs use."""
    import struct

    data = struct.pack("=iIQ6Q", nr, arch, 0, *args, *[0] * (6 - len(args)))
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, k = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, k)
        elif code == 0x06:
            return int(k)
        else:
            holds = {0x15: accumulator == k, 0x35: accumulator >= k, 0x45: accumulator & k}[code]
            at += if_true if holds else if_false
