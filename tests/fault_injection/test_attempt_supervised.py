"""Attempts under seccomp: a kill, an error, a short write, a signal, exactly at one call."""

import os
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from fault_injection import processes, seccomp, spool, supervision
from fault_injection.attempt import Attempt, Seen, Settings, run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.guardian import guarded

from .attempts import ENVIRONMENT, Remote, alive_with, command, python, script

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)

KILL, SIGNAL, PAUSE = ActionKind.KILL, ActionKind.SIGNAL, ActionKind.PAUSE
ERRNO, SHORT = ActionKind.ERRNO, ActionKind.SHORT_WRITE
CALL = TriggerKind.CALL


@pytest.fixture(scope="module")
def remote() -> Iterator[Remote]:
    """A clean worker to fork from."""
    with guarded() as guard:
        target = "tests.fault_injection.attempts:serve"
        yield Remote(guard.start_workers(target, 1, env=ENVIRONMENT)[0])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The tree under test; programs lie beside it."""
    made = tmp_path / "root"
    made.mkdir()
    return made


def settings(root: Path, fault: Fault | None = None, **more: object) -> Settings:
    given: dict[str, object] = {"timeout_s": 30.0, **more}
    return Settings(str(root), fault=fault, **given)  # type: ignore[arg-type]


def clean(root: Path) -> None:
    for path in root.iterdir():
        path.unlink()


def state(root: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(root.iterdir())}


def run(
    root: Path, source: str, fault: Fault | None = None, **more: object
) -> tuple[Attempt, dict[str, str]]:
    """Run a script in an emptied root; the attempt, and what it left there."""
    clean(root)
    path = script(root.parent, source)
    asked = command(sys.executable, path, cwd=root, env={"MARK": str(root)})
    attempt = run_attempt(asked, settings(root, fault, **more))
    assert alive_with(str(root)) == []
    return attempt, state(root)


SAVES = """
    import os
    for step in (1, 2):
        fd = os.open("LATEST.tmp", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"step-%d" % step)
        os.fsync(fd)
        os.close(fd)
        os.rename("LATEST.tmp", "LATEST")
        print("saved", step, flush=True)
    """

PLACES = tuple(
    place.format(step)
    for step in (1, 2)
    for place in (
        "create-LATEST.tmp#{}",
        "write-LATEST.tmp#{}",
        "fsync-LATEST.tmp#{}",
        "rename-LATEST#{}",
        "output-stdout#{}",
    )
)

# What is there before each of PLACES has run, and after the last.
STATES: list[tuple[dict[str, str], bytes]] = [
    ({}, b""),
    ({"LATEST.tmp": ""}, b""),
    ({"LATEST.tmp": "step-1"}, b""),
    ({"LATEST.tmp": "step-1"}, b""),
    ({"LATEST": "step-1"}, b""),
    ({"LATEST": "step-1"}, b"saved 1\n"),
    ({"LATEST": "step-1", "LATEST.tmp": ""}, b"saved 1\n"),
    ({"LATEST": "step-1", "LATEST.tmp": "step-2"}, b"saved 1\n"),
    ({"LATEST": "step-1", "LATEST.tmp": "step-2"}, b"saved 1\n"),
    ({"LATEST": "step-2"}, b"saved 1\n"),
    ({"LATEST": "step-2"}, b"saved 1\nsaved 2\n"),
]


@pytest.mark.parametrize("fork", [False, True])
def test_a_kill_before_each_call_leaves_exactly_what_came_before_it(
    remote: Remote, root: Path, fork: bool
) -> None:
    """The call at the place must not have run, and the one before it must have."""
    asked = python(root.parent, SAVES)
    asked = command(*asked.argv, cwd=root)
    whole = remote.run(asked, settings(root, fork=fork))
    assert (whole.exit_code, whole.places) == (0, PLACES)
    assert (state(root), whole.stdout) == STATES[-1]
    for at, place in enumerate(PLACES):
        clean(root)
        attempt = remote.run(asked, settings(root, Fault(CALL, place), fork=fork))
        expected = f"SIGKILL of the process tree before {place} (call {at + 1})"
        assert (attempt.fault_seen, attempt.evidence) == (True, expected)
        assert (attempt.exit_code, attempt.signal) == (None, signal.SIGKILL)
        assert (state(root), attempt.stdout) == STATES[at], place
        assert b"".join(s.data for s in attempt.seen) == attempt.stdout
        assert attempt.places == PLACES[: at + 1]
    clean(root)
    end = Fault(TriggerKind.AFTER_LAST_CALL, "")
    attempt = remote.run(asked, settings(root, end, fork=fork))
    assert attempt.evidence == "SIGKILL of the process tree after the last call"
    assert (attempt.signal, state(root), attempt.stdout) == (9, *STATES[-1])


def test_a_place_that_never_comes_is_no_fault(root: Path) -> None:
    for place in ("rename-LATEST#3", "rename-OTHER#1"):
        attempt, found = run(root, SAVES, Fault(CALL, place))
        assert (attempt.exit_code, attempt.fault_seen, attempt.evidence) == (0, False, "")
        assert found == {"LATEST": "step-2"}


def test_the_end_of_a_program_that_is_killed_by_itself_is_not_seen(root: Path) -> None:
    source = "import os; os.kill(os.getpid(), 9)"
    attempt, _ = run(root, source, Fault(TriggerKind.AFTER_LAST_CALL, ""))
    assert (attempt.signal, attempt.fault_seen) == (9, False)


def test_only_the_end_of_the_main_process_is_the_last_call(root: Path) -> None:
    source = """
        import subprocess, threading
        subprocess.run(["true"])
        threading.Thread(target=print).start()
        open("after", "w").close()
        """
    attempt, found = run(root, source, Fault(TriggerKind.AFTER_LAST_CALL, ""))
    assert attempt.fault_seen
    assert found == {"after": ""}


# Answers in place of calls.

TRIES = """
    import os, sys
    for n in range(1, 5):
        try:
            fd = os.open("file", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.write(fd, b"line %d\\n" % n)
        except OSError as error:
            print(n, error.strerror, flush=True)
    """


@pytest.mark.parametrize(
    ("place", "name", "times", "failed", "evidence"),
    [
        ("write-file#2", "ENOSPC", 1, [2], "ENOSPC at write-file#2 (call 3)"),
        ("write-file#1", "EIO", 2, [1, 2], "EIO at write-file#1 (call 2), and 1 more"),
        ("write-file#3", "EDQUOT", 0, [3, 4], "EDQUOT at write-file#3 (call 4), and 1 more"),
        ("write-file#2", "EINTR", 1, [], "EINTR at write-file#2 (call 3)"),
        ("create-file#1", "EMFILE", 1, [1], "EMFILE at create-file#1 (call 1)"),
    ],
)
def test_a_call_is_failed_and_not_run(
    root: Path, place: str, name: str, times: int, failed: list[int], evidence: str
) -> None:
    """Python repeats a call that was interrupted (EINTR), so that nothing is lost then."""
    import errno

    attempt, found = run(root, TRIES, Fault(CALL, place, ERRNO, name, times))
    words = os.strerror(getattr(errno, name))
    assert attempt.stdout.decode() == "".join(f"{n} {words}\n" for n in failed)
    assert found["file"] == "".join(f"line {n}\n" for n in range(1, 5) if n not in failed)
    assert (attempt.exit_code, attempt.fault_seen) == (0, True)
    assert attempt.evidence == evidence


def test_a_failed_fsync_can_fail_once_or_for_ever(root: Path) -> None:
    source = """
        import os
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        for n in range(3):
            try:
                os.fsync(fd); print("good")
            except OSError as e:
                print(e.errno)
        """
    once, _ = run(root, source, Fault(CALL, "fsync-f#1", ERRNO, "EIO"))
    assert once.stdout == b"5\ngood\ngood\n"
    ever, _ = run(root, source, Fault(CALL, "fsync-f#2", ERRNO, "EIO", times=0))
    assert ever.stdout == b"good\n5\n5\n"


SHORTENED = {
    "write": ("n = os.write(fd, data)", "ABCDE", 5),
    "write after a seek": ("os.lseek(fd, 3, 0); n = os.write(fd, data)", "\0\0\0ABCDE", 8),
    "pwrite": ("n = os.pwrite(fd, data, 2)", "\0\0ABCDE", 0),
    "writev": ("n = os.writev(fd, [b'ABC', b'', b'DEFGHI', b'J'])", "ABCDE", 5),
    "pwritev": ("n = os.pwritev(fd, [b'ABC', b'DEFGHIJ'], 4, 0)", "\0\0\0\0ABCDE", 0),
    "pwritev2": ("n = os.pwritev(fd, [data], 1, os.RWF_SYNC)", "\0ABCDE", 0),
    "pwritev2 at the position": ("n = os.pwritev(fd, [data], -1, os.RWF_SYNC)", "ABCDE", 5),
    "append": (
        "os.write(fd, b'x'); a = os.open('f', os.O_WRONLY | os.O_APPEND); n = os.write(a, data)",
        "xABCDE",
        1,
    ),
    "sendfile": ("n = os.sendfile(fd, source, 0, 100)", "ABCDE", 5),
    "sendfile at the position": (
        "os.lseek(source, 6, 0); n = os.sendfile(fd, source, None, 100)",
        "GH",
        2,
    ),
    "copy_file_range": ("n = os.copy_file_range(source, fd, 10, 0, 2)", "\0\0ABCDE", 0),
    "copy_file_range at positions": ("n = os.copy_file_range(source, fd, 8)", "ABCD", 4),
    "splice": (
        "r, w = os.pipe(); os.write(w, data); n = os.splice(r, fd, 100)",
        "ABCDE",
        5,
    ),
}


@pytest.mark.parametrize("name", sorted(SHORTENED))
def test_half_of_a_write_is_written_and_its_length_is_the_answer(root: Path, name: str) -> None:
    """Half of ten bytes, where the call itself would put them; the position moves as it would."""
    call, content, position = SHORTENED[name]
    source = f"""
        import os, sys
        data = b"ABCDEFGHIJ"
        source = os.open(sys.argv[0] + ".data", os.O_RDONLY)
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        {call}
        print(n, os.lseek(fd, 0, 1), flush=True)
        """
    (root.parent / "program.py.data").write_text("ABCDEFGHIJ")
    probe, _ = run(root, source)
    places = [p for p in probe.places if p.startswith(("write", "copy")) and "-f#" in p]
    attempt, found = run(root, source, Fault(CALL, places[-1], SHORT))
    half = len(content.strip("\0x"))
    assert attempt.stdout == f"{half} {position}\n".encode()
    assert found["f"] == content
    assert attempt.evidence.startswith(f"a short write ({half} bytes) at {places[-1]} (call ")
    assert attempt.exit_code == 0


def test_the_offset_in_the_programs_memory_moves_too(root: Path) -> None:
    """copy_file_range(2) and sendfile(2) advance the offsets that they are given."""
    source = """
        import ctypes, os, sys
        libc = ctypes.CDLL(None, use_errno=True)
        src, dst = os.open(sys.argv[0], os.O_RDONLY), os.open("f", os.O_RDWR | os.O_CREAT)
        a, b = ctypes.c_int64(10), ctypes.c_int64(20)
        n = libc.copy_file_range(src, ctypes.byref(a), dst, ctypes.byref(b), 40, 0)
        print(n, a.value, b.value)
        c = ctypes.c_int64(10)
        n = libc.sendfile(dst, src, ctypes.byref(c), 40)
        print(n, c.value)
        """
    probe, _ = run(root, source)
    place = next(p for p in probe.places if "-f#" in p and not p.startswith("create"))
    attempt, _ = run(root, source, Fault(CALL, place, SHORT, times=2))
    assert attempt.stdout == b"20 30 40\n20 30\n"


def test_what_has_no_half_runs_whole_and_is_no_fault(root: Path) -> None:
    source = """
        import os
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"x")
        print("said", flush=True)
        """
    for place in ("write-f#1", "create-f#1", "output-stdout#1"):
        attempt, found = run(root, source, Fault(CALL, place, SHORT))
        assert (attempt.exit_code, attempt.fault_seen, found) == (0, False, {"f": "x"}), place
        assert attempt.stdout == b"said\n"


def test_a_half_that_fails_itself_fails_the_call(root: Path) -> None:
    source = """
        import os, resource, signal
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        try:
            os.pwrite(fd, b"ab", 1 << 62)
        except OSError as error:
            print(error.errno)
        """
    attempt, found = run(root, source, Fault(CALL, "write-f#1", SHORT))
    assert (attempt.stdout, found, attempt.fault_seen) == (b"27\n", {"f": ""}, False)


def test_a_large_short_write_is_exactly_half(root: Path) -> None:
    source = """
        import os
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        data = bytes(range(97, 122)) * 200_000
        print(os.write(fd, data), len(data))
        """
    attempt, found = run(root, source, Fault(CALL, "write-f#1", SHORT))
    assert attempt.stdout == b"2500000 5000000\n"
    assert found["f"] == "abcdefghijklmnopqrstuvwxy" * 100_000


# Signals and pauses.


def test_a_signal_at_a_call_is_handled_and_the_call_has_run(root: Path) -> None:
    source = """
        import os, signal
        signal.signal(signal.SIGTERM, lambda *_: print("handled", flush=True))
        fd = os.open("f", os.O_WRONLY | os.O_CREAT)
        print(os.write(fd, b"whole"), flush=True)
        """
    attempt, found = run(root, source, Fault(CALL, "write-f#1", SIGNAL, "SIGTERM"))
    assert sorted(attempt.stdout.split()) == [b"5", b"handled"]
    assert (attempt.exit_code, found) == (0, {"f": "whole"})
    assert attempt.evidence == "SIGTERM at write-f#1 (call 2)"


def test_a_signal_that_ends_the_program_ends_it_at_the_call(root: Path) -> None:
    attempt, found = run(root, SAVES, Fault(CALL, "rename-LATEST#2", SIGNAL, "SIGTERM"))
    assert (attempt.signal, attempt.fault_seen) == (signal.SIGTERM, True)
    assert found == {"LATEST": "step-1", "LATEST.tmp": "step-2"}


def test_a_pause_at_a_call_changes_nothing(root: Path) -> None:
    for place in PLACES:
        attempt, found = run(root, SAVES, Fault(CALL, place, PAUSE))
        assert (attempt.exit_code, found, attempt.places) == (0, {"LATEST": "step-2"}, PLACES)
        assert attempt.evidence.startswith(f"SIGSTOP seen and SIGCONT at {place} (call ")


# Who is supervised, and what is held.


def test_the_program_is_held_before_the_call_while_others_look(root: Path) -> None:
    found: list[dict[str, str]] = []
    fault = Fault(CALL, "rename-LATEST#1")
    attempt, _ = run(root, SAVES, fault, at_fault=lambda: found.append(state(root)))
    assert found == [{"LATEST.tmp": "step-1"}]
    assert attempt.fault_seen


def test_after_the_decision_to_kill_no_other_thread_or_process_changes_anything(
    root: Path,
) -> None:
    """While the kill is held, others try to write: the state must stand still."""
    source = """
        import os, threading, time
        def work(name):
            while True:
                with open(name, "a") as f: f.write("x")
        if os.fork() == 0: work("child")
        threading.Thread(target=work, args=("thread",), daemon=True).start()
        while not (os.path.exists("child") and os.path.exists("thread")): time.sleep(0.001)
        os.mkdir("here")
        """
    sizes: list[list[int]] = []

    def look() -> None:
        for _ in range(2):
            # A call that was let go before may still be on its way; then all must stand still.
            time.sleep(0.05)
            sizes.append([(root / name).stat().st_size for name in ("child", "thread")])

    attempt, found = run(root, source, Fault(CALL, "mkdir-here#1"), at_fault=look)
    assert attempt.fault_seen
    assert sizes[0] == sizes[1] == [len(found["child"]), len(found["thread"])]
    assert min(sizes[0]) > 0
    assert "here" not in found


def test_a_call_of_any_descendant_can_be_struck(root: Path) -> None:
    source = """
        import subprocess, os
        subprocess.run(["sh", "-c", "setsid sh -c 'echo x > deep; : > deeper' & wait"])
        print("not reached")
        """
    attempt, found = run(root, source, Fault(CALL, "create-deeper#1"))
    assert (attempt.signal, attempt.stdout) == (9, b"")
    assert found == {"deep": "x\n"}


def test_a_daemon_is_supervised_after_the_main_process_has_ended(root: Path) -> None:
    source = """
        import os, subprocess
        late = f"while kill -0 {os.getpid()} 2>/dev/null; do :; done; echo late > late"
        subprocess.Popen(["sh", "-c", late], start_new_session=True)
        """
    attempt, found = run(root, source, leftover_grace_s=20.0)
    assert (attempt.exit_code, found) == (0, {"late": "late\n"})
    assert attempt.places == ("create-late#1", "write-late#1")
    assert attempt.left_behind == ()


def test_a_hanging_program_is_ended_under_supervision_too(root: Path) -> None:
    attempt, _ = run(root, "import signal; signal.pause()", timeout_s=0.5)
    assert (attempt.timed_out, attempt.signal, attempt.fault_seen) == (True, 9, False)


def test_a_fork_bomb_cannot_outrun_its_supervisor(root: Path) -> None:
    """Each fork waits to be counted. What is counted moves, so that a few more may be there."""
    source = "import os\nwhile True: os.fork()"
    counts: list[int] = []
    walk = processes.walk

    def counted(pid: int, *, spare: Iterable[int] = ()) -> Iterator[int]:
        found = list(walk(pid, spare=spare))
        counts.append(len(found))
        return iter(found)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processes, "walk", counted)
        attempt, _ = run(root, source, process_limit=50)
    assert attempt.bounded == "more than 50 processes at once"
    assert (attempt.signal, attempt.timed_out) == (9, False)
    assert 50 < max(counts) <= 50 + 4 * supervision.TASKS_BETWEEN_CHECKS


# Recording, watching, starting.


@pytest.mark.parametrize("fork", [False, True])
def test_a_recorded_attempt_has_the_trace_and_the_order_of_what_was_seen(
    remote: Remote, root: Path, fork: bool
) -> None:
    asked = command(*python(root.parent, SAVES).argv, cwd=root)
    record = root.parent / "spool"
    attempt = remote.run(asked, settings(root, fork=fork, watch=("LATEST.tmp",)))
    assert [(s.source, s.data) for s in attempt.seen] == [
        ("LATEST.tmp", b"step-1"),
        ("stdout", b"saved 1\n"),
        ("LATEST.tmp", b"step-2"),
        ("stdout", b"saved 2\n"),
    ]
    clean(root)
    again, _ = run(root, SAVES, record_to=str(record), watch=("LATEST.tmp",))
    assert again.untraceable == ""
    assert again.trace is not None
    assert tuple(op.place for op in again.trace.operations) == PLACES
    assert [(s.source, s.operation) for s in again.seen] == [
        ("LATEST.tmp", 1),
        ("stdout", 4),
        ("LATEST.tmp", 6),
        ("stdout", 9),
    ]
    assert isinstance(again.trace.blobs, spool.Spool)
    again.trace.blobs.close()


def test_names_that_are_not_stable_are_written_as_a_tilde(root: Path) -> None:
    source = "import os, random; open(f'{random.random()}', 'w').close()"
    attempt, _ = run(root, source, stable_names=frozenset())
    assert attempt.places == ("create-~#1",)


def test_what_cannot_be_traced_is_named(root: Path) -> None:
    source = """
        import mmap, os
        fd = os.open("f", os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, 4096)
        mmap.mmap(fd, 4096)
        """
    attempt, _ = run(root, source, record_to=str(root.parent / "spool"))
    assert attempt.untraceable.startswith("mmap")
    assert attempt.exit_code == 0


def test_a_command_that_cannot_start_says_why_under_supervision_too(root: Path) -> None:
    attempt = run_attempt(command("no-such-command", cwd=root), settings(root))
    assert "FileNotFoundError" in attempt.start_error


def test_a_program_in_another_language_is_supervised_alike(root: Path) -> None:
    asked = command("/bin/sh", "-c", "echo a > f.tmp; mv f.tmp f; echo done", cwd=root)
    whole = run_attempt(asked, settings(root))
    assert whole.places == (
        "create-f.tmp#1",
        "write-f.tmp#1",
        "rename-f#1",
        "output-stdout#1",
    )
    clean(root)
    killed = run_attempt(asked, settings(root, Fault(CALL, "rename-f#1")))
    assert (killed.fault_seen, state(root)) == (True, {"f.tmp": "a\n"})


def test_no_descriptor_is_left_open(root: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for fault in (None, Fault(CALL, "rename-LATEST#1"), Fault(TriggerKind.AFTER_LAST_CALL, "")):
        run(root, SAVES, fault)
    run_attempt(command("absent"), settings(root))
    assert sorted(os.listdir("/proc/self/fd")) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a plain user cannot be become")
def test_a_plain_user_supervises_as_root_does(tmp_path: Path) -> None:
    """In a fork that gives up its rights before it starts the attempt."""
    tmp_path.chmod(0o777)
    found = tmp_path / "found"
    found.touch()
    found.chmod(0o666)
    pid = os.fork()
    if pid == 0:
        try:
            os.chdir(tmp_path)
            out = os.open("found", os.O_WRONLY)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.mkdir("/tmp/" + tmp_path.name)
            root = "/tmp/" + tmp_path.name
            asked = command("/bin/sh", "-c", "echo a > f.tmp; mv f.tmp f", cwd=root)
            killed = run_attempt(
                asked, Settings(root, timeout_s=20, fault=Fault(CALL, "rename-f#1"))
            )
            shown = f"{killed.evidence} {sorted(os.listdir(root))}"
            os.write(out, shown.encode())
        except BaseException as error:
            os.write(out, repr(error).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    plain = Path("/tmp") / tmp_path.name
    assert found.read_text() == ("SIGKILL of the process tree before rename-f#1 (call 3) ['f.tmp']")
    (plain / "f.tmp").unlink()
    plain.rmdir()


def test_seen_is_cut_at_the_bound_and_says_so(root: Path) -> None:
    source = "for _ in range(100): print('x' * 9, flush=True)"
    attempt, _ = run(root, source, output_limit_bytes=95)
    assert attempt.cut == ("stdout",)
    assert (
        b"".join(s.data for s in attempt.seen)
        == attempt.stdout
        == (b"x" * 9 + b"\n") * 9 + b"x" * 5
    )
    assert attempt.seen[-1] == Seen("stdout", b"x" * 5, -1, "output-stdout#10")
