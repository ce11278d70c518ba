"""One attempt without supervision: how it ends, what is seen of it, and that nothing is left."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

import fault_injection
from fault_injection import processes, striking, supervision
from fault_injection.attempt import Attempt, Seen, Settings, run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.guardian import guarded

from .attempts import ENVIRONMENT, Remote, alive_with, command, python
from .test_processes import until

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: subreapers")

KILL, SIGNAL, PAUSE = ActionKind.KILL, ActionKind.SIGNAL, ActionKind.PAUSE
POINT, TIME = TriggerKind.POINT, TriggerKind.TIME
# Programs that import this project's failpoints.
PROJECT = {"PYTHONPATH": str(Path(fault_injection.__file__).parents[1])}


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A clean worker to fork from: this process may have another locale than its children."""
    with guarded() as guard:
        target, env = "tests.fault_injection.attempts:serve", {**ENVIRONMENT, **PROJECT}
        yield Remote(guard.start_workers(target, 1, env=env)[0])


def settings(root: Path, fault: Fault | None = None, **more: object) -> Settings:
    given: dict[str, object] = {"timeout_s": 30.0, "supervise": False, **more}
    return Settings(str(root), fault=fault, **given)  # type: ignore[arg-type]


def shell(root: Path, program: str, **more: object) -> Attempt:
    """Run a shell program; its processes carry ``root`` in their environment."""
    asked = command("/bin/sh", "-c", program, cwd=root, env={"MARK": str(root)})
    attempt = run_attempt(asked, settings(root, **more))
    assert alive_with(str(root)) == []
    return attempt


# How it ends.


def test_an_exit_code_a_signal_and_what_was_said_are_kept_apart(tmp_path: Path) -> None:
    ended = shell(tmp_path, "echo out; echo err >&2; exit 3")
    assert (ended.exit_code, ended.signal, ended.stdout, ended.stderr) == (
        3,
        None,
        b"out\n",
        b"err\n",
    )
    assert set(ended.seen) == {Seen("stdout", b"out\n"), Seen("stderr", b"err\n")}
    assert (ended.fault_seen, ended.evidence, ended.timed_out, ended.cut) == (False, "", False, ())
    killed = shell(tmp_path, "echo out; kill -TERM $$")
    assert (killed.exit_code, killed.signal, killed.stdout) == (None, signal.SIGTERM, b"out\n")


def test_what_the_program_gets_is_what_the_command_says(tmp_path: Path) -> None:
    """Its environment is complete, its input empty, its session its own, no descriptor ours."""
    with open(tmp_path / "inherited", "w") as file:
        os.set_inheritable(file.fileno(), True)
        found = shell(tmp_path, "env | sort; pwd; cat; ls /proc/self/fd | wc -l; ps -o sid= $$")
    lines = found.stdout.decode().splitlines()
    assert f"MARK={tmp_path}" in lines
    assert "PYTEST_CURRENT_TEST" not in found.stdout.decode()
    assert lines[-3:-1] == [str(tmp_path), "4"]
    assert int(lines[-1]) != os.getsid(0)


@pytest.mark.parametrize(
    ("argv", "cwd", "words"),
    [
        (("no-such-command",), ".", "FileNotFoundError"),
        (("./absent",), ".", "FileNotFoundError"),
        (("./data",), ".", "PermissionError"),
        (("./words",), ".", "Exec format error"),
        (("/bin/true",), "absent", "FileNotFoundError: [Errno 2] No such file or directory: "),
    ],
)
def test_a_command_that_cannot_start_says_why(
    tmp_path: Path, argv: tuple[str, ...], cwd: str, words: str
) -> None:
    (tmp_path / "data").write_text("x")
    (tmp_path / "words").write_text("not a program")
    (tmp_path / "words").chmod(0o755)
    attempt = run_attempt(command(*argv, cwd=tmp_path / cwd), settings(tmp_path))
    assert words in attempt.start_error
    assert not attempt.started_ok
    assert (attempt.exit_code, attempt.stdout, attempt.stderr) == (127, b"", b"")


def test_a_program_that_ends_with_127_did_start(tmp_path: Path) -> None:
    attempt = shell(tmp_path, "exit 127")
    assert attempt.started_ok
    assert attempt.exit_code == 127


# Faults.

POINTS = """
    import os, subprocess, sys
    from fault_injection.points import point
    subprocess.Popen(["sh", "-c", "setsid sh -c 'sleep 100 & sleep 100' & sleep 100"])
    for step in range(3):
        point("step.begun")
        print("step", step, flush=True)
        open(f"step-{step}", "w").close()
    """


@LINUX
@pytest.mark.parametrize("fork", [False, True])
def test_a_kill_at_a_point_takes_the_whole_tree_there(
    tmp_path: Path, remote: Remote, fork: bool
) -> None:
    fault = Fault(POINT, "step.begun#2", KILL)
    asked = python(tmp_path, POINTS, env=PROJECT)
    attempt = remote.run(asked, settings(tmp_path, fault, fork=fork, report_points=True))
    assert (attempt.signal, attempt.fault_seen) == (signal.SIGKILL, True)
    assert attempt.evidence == "SIGKILL of the process tree at step.begun#2"
    assert attempt.points == ("step.begun#1", "step.begun#2")
    assert attempt.stdout == b"step 0\n"
    assert sorted(p.name for p in tmp_path.glob("step-*")) == ["step-0"]
    assert attempt.left_behind == ()
    assert processes.children(remote.worker.pid) == []


def test_a_point_that_is_never_reached_is_no_fault(tmp_path: Path) -> None:
    source = "from fault_injection.points import point\nfor _ in range(2): point('a.b')"
    for place in ("a.b#3", "a.c#1"):
        attempt = run_attempt(python(tmp_path, source), settings(tmp_path, Fault(POINT, place)))
        assert (attempt.exit_code, attempt.fault_seen, attempt.evidence) == (0, False, "")


def test_a_point_in_a_child_of_the_program_counts_too(tmp_path: Path) -> None:
    source = """
        import os
        from fault_injection.points import point
        if os.fork() == 0:
            point("child.begun")
            os._exit(0)
        os.wait()
        print("not reached")
        """
    fault = Fault(POINT, "child.begun#1")
    attempt = run_attempt(python(tmp_path, source), settings(tmp_path, fault))
    assert (attempt.signal, attempt.fault_seen, attempt.stdout) == (signal.SIGKILL, True, b"")


def test_while_it_is_held_at_the_fault_others_may_look(tmp_path: Path) -> None:
    source = """
        from fault_injection.points import point
        open("before", "w").close()
        point("here")
        open("after", "w").close()
        """
    found: list[list[str]] = []

    def look() -> None:
        found.append(sorted(path.name for path in tmp_path.iterdir()))

    fault = Fault(POINT, "here#1")
    attempt = run_attempt(python(tmp_path, source), settings(tmp_path, fault, at_fault=look))
    assert found == [["before", "program.py"]]
    assert attempt.fault_seen


def test_a_program_that_was_dead_before_the_kill_was_not_killed_by_it(tmp_path: Path) -> None:
    """Somebody else ends it while it is held: that is no evidence of our fault."""

    def end_it() -> None:
        (child,) = processes.children(os.getpid())
        os.kill(child, signal.SIGTERM)
        until(lambda: processes.state_of(child) == "Z")

    source = "from fault_injection.points import point; point('here')"
    attempt = run_attempt(
        python(tmp_path, source), settings(tmp_path, Fault(POINT, "here#1"), at_fault=end_it)
    )
    assert (attempt.signal, attempt.fault_seen) == (signal.SIGTERM, False)


@LINUX
def test_all_of_the_tree_is_told_to_die_before_anything_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a child could go on for as long as the main process takes to die."""
    found: list[bool] = []
    has_ended = striking.Striker.has_ended

    def spy(striker: striking.Striker) -> bool:
        if signals:
            found.append(all(map(_is_dying, striker.tree())))
        return has_ended(striker)

    signals: list[int] = []
    signal_all = processes.signal_all

    def noticed(pids: Iterable[int], number: int) -> list[int]:
        signals.append(number)
        return signal_all(pids, number)

    monkeypatch.setattr(striking.Striker, "has_ended", spy)
    monkeypatch.setattr(processes, "signal_all", noticed)
    fault = Fault(POINT, "step.begun#1", KILL)
    attempt = run_attempt(python(tmp_path, POINTS), settings(tmp_path, fault))
    assert attempt.fault_seen
    assert found[0]
    assert signals[0] == signal.SIGKILL


def _is_dying(pid: int) -> bool:
    """Dead, gone, or with SIGKILL pending."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    fields = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    pending = int(fields["SigPnd"], 16) | int(fields["ShdPnd"], 16)
    return fields["State"][0] in "ZX" or bool(pending >> (signal.SIGKILL - 1) & 1)


def test_only_the_armed_point_counts_whatever_is_written_to_the_channel(tmp_path: Path) -> None:
    source = """
        import os
        from fault_injection.points import ENV_CONTROL_FD, point
        point("a")
        fd = int(os.environ[ENV_CONTROL_FD])
        os.write(fd, b"at b 1\\nat a 7\\nnonsense\\n\\n\\xff\\xfe 1 2\\nat a x\\nhit c 1\\n")
        print(len(os.read(fd, 1)), flush=True)
        """
    attempt = run_attempt(python(tmp_path, source), settings(tmp_path, Fault(POINT, "a#2")))
    assert (attempt.exit_code, attempt.fault_seen, attempt.stdout) == (0, False, b"1\n")
    assert attempt.points == ("b#1", "a#7", "c#1")


@LINUX
def test_nothing_is_left_when_what_looks_at_the_fault_fails(tmp_path: Path) -> None:
    def fail() -> None:
        raise OSError("the file system is gone")

    asked = python(tmp_path, POINTS)
    with pytest.raises(OSError, match="the file system is gone"):
        run_attempt(asked, settings(tmp_path, Fault(POINT, "step.begun#1"), at_fault=fail))
    assert alive_with(str(tmp_path)) == []
    assert processes.children(os.getpid()) == []
    assert not processes.is_subreaper()


HANDLES = """
    import signal, sys
    from fault_injection.points import point
    def on(number, frame):
        print("got", signal.Signals(number).name, flush=True)
    signal.signal(signal.SIGTERM, on)
    for name in "abc":
        point(name)
        print(name, flush=True)
    sys.exit(143)
    """


@pytest.mark.parametrize("fork", [False, True])
def test_a_signal_is_delivered_at_the_point_and_the_program_goes_on(
    tmp_path: Path, remote: Remote, fork: bool
) -> None:
    fault = Fault(POINT, "b#1", SIGNAL, "SIGTERM")
    asked = python(tmp_path, HANDLES, env=PROJECT)
    attempt = remote.run(asked, settings(tmp_path, fault, fork=fork))
    assert attempt.exit_code == 143
    assert attempt.stdout == b"a\ngot SIGTERM\nb\nc\n"
    assert attempt.evidence == "SIGTERM at b#1"


@LINUX
@pytest.mark.parametrize("fork", [False, True])
def test_a_pause_stops_the_tree_and_lets_it_go_on(
    tmp_path: Path, remote: Remote, fork: bool
) -> None:
    fault = Fault(POINT, "b#1", PAUSE)
    asked = python(tmp_path, HANDLES, env=PROJECT)
    attempt = remote.run(asked, settings(tmp_path, fault, fork=fork))
    assert (attempt.exit_code, attempt.stdout) == (143, b"a\nb\nc\n")
    assert attempt.evidence == "SIGSTOP seen and SIGCONT at b#1"


def test_after_a_time_it_is_killed_or_signalled(tmp_path: Path) -> None:
    killed = shell(tmp_path, "sleep 100; :", fault=Fault(TIME, "0.1"))
    assert (killed.signal, killed.evidence) == (9, "SIGKILL of the process tree after 0.1 s")
    told = shell(tmp_path, "exec sleep 100", fault=Fault(TIME, "0.1", SIGNAL, "SIGTERM"))
    assert (told.signal, told.evidence) == (signal.SIGTERM, "SIGTERM after 0.1 s")
    over = shell(tmp_path, "exit 0", fault=Fault(TIME, "20"))
    assert (over.exit_code, over.fault_seen) == (0, False)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            Fault(TriggerKind.CALL, "write-x#1"),
            "a fault SIGKILL before write-x#1 needs supervision",
        ),
        (Fault(TriggerKind.AFTER_LAST_CALL, ""), "a fault SIGKILL after the last call needs super"),
        (Fault(POINT, "a#1", ActionKind.ERRNO, "EIO"), "only a call can be answered: EIO at a#1"),
        (Fault(POINT, "a#1", SIGNAL, "SIGNONE"), "'SIGNONE' is not the name of a signal"),
        (Fault(TIME, "-1"), "'-1' is no number of seconds to wait"),
        (Fault(POINT, "a#0"), "'a#0' is not <point name>#<hit from 1>"),
    ],
)
def test_a_fault_that_cannot_be_aimed_is_an_error(tmp_path: Path, fault: Fault, words: str) -> None:
    with pytest.raises(ValueError, match=words.replace("#", "\\#")):
        run_attempt(command("/bin/true"), settings(tmp_path, fault))
    if fault.trigger is TriggerKind.CALL:
        with pytest.raises(ValueError, match="'write' is not <call>-<name>#<occurrence>"):
            run_attempt(
                command("/bin/true"),
                settings(tmp_path, Fault(TriggerKind.CALL, "write"), supervise=True),
            )


# Bounds, and nothing left.


@LINUX
@pytest.mark.parametrize(
    "program",
    [
        "trap '' TERM INT; while :; do sleep 100; done",
        "kill -STOP $$",
        "exec >&- 2>&-; sleep 100",
        "while :; do :; done",
        "(setsid sleep 100 &) ; cat /dev/zero >/dev/null",
    ],
)
def test_what_does_not_end_is_ended(tmp_path: Path, program: str) -> None:
    attempt = shell(tmp_path, program, timeout_s=0.3)
    assert (attempt.timed_out, attempt.signal, attempt.fault_seen) == (True, 9, False)
    assert 0.3 <= attempt.seconds < 10


def test_output_beyond_the_bound_is_taken_cut_and_said_to_be(tmp_path: Path) -> None:
    limit = 10_000
    program = "yes x | head -c 300000; yes y | head -c 300000 >&2; echo end"
    attempt = shell(tmp_path, program, output_limit_bytes=limit)
    assert attempt.exit_code == 0
    assert attempt.stdout == b"x\n" * (limit // 2)
    assert attempt.stderr == b"y\n" * (limit // 2)
    assert attempt.cut == ("stderr", "stdout")
    assert sum(len(s.data) for s in attempt.seen if s.source == "stdout") == limit
    exactly = shell(tmp_path, "yes x | head -c 10000", output_limit_bytes=limit)
    assert (len(exactly.stdout), exactly.cut) == (limit, ())


def test_output_without_end_ends_with_the_time(tmp_path: Path) -> None:
    attempt = shell(tmp_path, "yes x & yes y >&2", timeout_s=0.5, output_limit_bytes=100)
    assert (attempt.timed_out, attempt.signal) == (True, 9)
    assert len(attempt.stdout) <= 100
    assert len(attempt.stderr) <= 100


@LINUX
def test_children_that_outlive_the_program_are_named_and_killed(tmp_path: Path) -> None:
    ready = "until grep -aqsP 'sleep\\x00{}\\x00' /proc/[0-9]*/cmdline; do :; done;"
    program = "setsid sleep 98.25 & (setsid sleep 99.25 &) ;" + "".join(
        ready.format(number) for number in ("98.25", "99.25")
    )
    attempt = shell(tmp_path, f"{program} exit 4", leftover_grace_s=0.05)
    assert (attempt.exit_code, attempt.left_behind) == (4, ("sleep 98.25", "sleep 99.25"))


@LINUX
def test_children_that_are_known_to_last_are_not_waited_for(tmp_path: Path) -> None:
    """All the others have their time, also one more of the same name."""
    lasting = ("sleep 98.5",)
    program = "exec 2>/dev/null; sleep 98.5 & "
    attempt = shell(tmp_path, program, leftover_grace_s=20.0, lasting=lasting)
    assert (attempt.exit_code, attempt.left_behind) == (0, lasting)
    assert attempt.seconds < 10
    late = program + "(sleep 0.1; echo late) & echo early"
    attempt = shell(tmp_path, late, leftover_grace_s=20.0, lasting=lasting)
    assert (attempt.stdout, attempt.left_behind) == (b"early\nlate\n", lasting)
    twice = program + "sleep 98.5 & :"
    attempt = shell(tmp_path, twice, leftover_grace_s=0.05, lasting=lasting)
    assert attempt.left_behind == lasting * 2


@LINUX
def test_children_that_end_by_themselves_a_moment_later_are_no_fault(tmp_path: Path) -> None:
    attempt = shell(tmp_path, "(sleep 0.1; echo late) & echo early", leftover_grace_s=20.0)
    assert (attempt.exit_code, attempt.left_behind) == (0, ())
    assert attempt.stdout == b"early\nlate\n"
    assert attempt.seconds < 5


@LINUX
def test_forks_without_end_are_bounded(tmp_path: Path) -> None:
    """At a pace that a clock can follow; without one it takes supervision to be in time."""
    source = "import os, time\nwhile os.fork(): time.sleep(0.002)\ntime.sleep(100)"
    attempt = run_attempt(python(tmp_path, source), settings(tmp_path, process_limit=50))
    assert attempt.bounded == "more than 50 processes at once"
    assert (attempt.signal, attempt.timed_out) == (9, False)
    assert alive_with(str(tmp_path)) == []


@LINUX
def test_a_full_disk_is_seen_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = iter([1 << 40, 1 << 39])
    monkeypatch.setattr(supervision.Supervision, "_free_bytes", lambda _self: next(free, 1 << 20))
    attempt = shell(tmp_path, "sleep 100")
    assert attempt.bounded == "nearly no space left on the tree's file system"
    assert attempt.signal == 9


@LINUX
def test_writes_without_end_are_bounded(tmp_path: Path) -> None:
    source = "while True: open('big', 'ab').write(bytes(1 << 20))"
    attempt = run_attempt(python(tmp_path, source), settings(tmp_path, tree_limit_bytes=8 << 20))
    assert attempt.bounded == "more than 8,388,608 bytes in the tree"
    assert (attempt.signal, attempt.timed_out) == (9, False)


@LINUX
def test_what_others_write_on_the_file_system_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The program ends once the bounds have been looked at twice."""
    looked = tmp_path / "looked"
    free = iter([1 << 40, *[1 << 39] * 4])

    def free_bytes(_self: object) -> int:
        left = next(free, None)
        if left is None:
            looked.touch()
        return left or 1 << 39

    monkeypatch.setattr(supervision.Supervision, "_free_bytes", free_bytes)
    program = "while [ ! -e looked ]; do sleep 0.01; done"
    attempt = shell(tmp_path, program, tree_limit_bytes=1 << 20)
    assert (attempt.bounded, attempt.exit_code) == ("", 0)


def test_a_file_may_be_limited_in_length(tmp_path: Path) -> None:
    attempt = shell(tmp_path, "yes > big; ls -l big | wc -l", file_limit_bytes=5000)
    assert (attempt.exit_code, (tmp_path / "big").stat().st_size) == (0, 5000)


@LINUX
def test_processes_that_were_there_before_are_left_alone(tmp_path: Path) -> None:
    """Also after a kill, of which the tree is everything below us *but* these."""
    ours = os.spawnv(os.P_NOWAIT, "/bin/sleep", ["sleep", "100"])
    try:
        attempt = shell(tmp_path, "sleep 100", fault=Fault(TIME, "0.05"))
        assert attempt.fault_seen
        assert processes.state_of(ours) in ("S", "D", "R")
        assert not processes.is_subreaper()
    finally:
        os.kill(ours, signal.SIGKILL)
        os.waitpid(ours, 0)


@LINUX
def test_no_descriptor_is_left_open_when_there_is_no_process_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    before = sorted(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "fork", no_more)
    with pytest.raises(BlockingIOError):
        shell(tmp_path, "exit 0", report_points=True)
    assert sorted(os.listdir("/proc/self/fd")) == before


@LINUX
def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    for fault in (None, Fault(POINT, "a#1"), Fault(TIME, "0.01")):
        shell(tmp_path, "exit 0", fault=fault, report_points=True)
    run_attempt(command("absent"), settings(tmp_path))
    assert sorted(os.listdir("/proc/self/fd")) == before


# Watched files.


def test_what_was_written_to_watched_files_is_found_afterwards(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\n")
    (tmp_path / "same").write_bytes(b"same\n")
    (tmp_path / "other").write_bytes(b"other\n")
    os.mkfifo(tmp_path / "fifo")
    program = "echo new >> log; echo fresh > sub; printf another > other"
    watch = ("log", "same", "sub", "other", "absent", "fifo")
    attempt = shell(tmp_path, program, watch=watch)
    assert attempt.seen == (
        Seen("log", b"new\n"),
        Seen("sub", b"fresh\n"),
        Seen("other", b"another"),
    )
    cut = shell(tmp_path, "yes >> log", watch=watch, file_limit_bytes=1008, output_limit_bytes=100)
    assert [(s.source, len(s.data)) for s in cut.seen if s.source == "log"] == [("log", 100)]
    assert "log" in cut.cut
