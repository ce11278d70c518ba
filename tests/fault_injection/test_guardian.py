"""Whatever happens to the harness, nothing of it is left: no process, no temporary directory."""

import os
import signal
import subprocess
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fault_injection.attempt import Attempt, Settings
from fault_injection.guardian import guarded, remove_tree

from .attempts import ENVIRONMENT, Remote, alive_with, command
from .test_processes import until

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: subreapers")

SERVE = "tests.fault_injection.attempts:serve"


def echo(connection: "Connection[Any, Any]") -> None:
    """A target: answers with what a worker is, then with what it is asked."""
    import threading

    told = (os.getpid(), threading.active_count(), sys.stdin.read(), os.environ.get("MARK"))
    connection.send(told)
    while True:
        asked = connection.recv()
        if asked == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if asked == "leave":
            # A daemon that outlives the worker that started it.
            subprocess.Popen(["sh", "-c", "setsid sleep 100 & exit"], start_new_session=True).wait()
        if asked == "return":
            return
        connection.send(asked)


ECHO = f"{__name__}:echo"


def test_workers_answer_and_are_gone_with_the_directory_in_the_end(tmp_path: Path) -> None:
    mark = {**os.environ, "MARK": str(tmp_path)}
    with guarded(temp_parent=str(tmp_path)) as guard:
        assert Path(guard.temp_dir).parent == tmp_path
        Path(guard.temp_dir, "file").write_text("x")
        workers = guard.start_workers(ECHO, 2, env=mark, preload=["json", "xml.dom"])
        for worker in workers:
            assert worker.connection.recv() == (worker.pid, 1, "", str(tmp_path))
            worker.connection.send({"a": [1]})
            assert worker.connection.recv() == {"a": [1]}
        assert len({worker.pid for worker in workers}) == 2
        workers[0].connection.send("leave")
        assert workers[0].connection.recv() == "leave"
        assert len(alive_with(str(tmp_path))) > 2
    assert alive_with(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []


def test_a_worker_that_dies_takes_what_it_started_and_no_other_worker(tmp_path: Path) -> None:
    with guarded(temp_parent=str(tmp_path)) as guard:
        (tmp_path / "a").mkdir()
        first, second = (
            guard.start_workers(ECHO, 1, env={**os.environ, "MARK": str(tmp_path / name)})[0]
            for name in ("a", "b")
        )
        for worker in (first, second):
            worker.connection.recv()
        first.connection.send("leave")
        first.connection.recv()
        first.connection.send("die")
        with pytest.raises(EOFError):
            first.connection.recv()
        until(lambda: alive_with(str(tmp_path / "a")) == [])
        second.connection.send("still here")
        assert second.connection.recv() == "still here"
        second.connection.send("return")
        with pytest.raises(EOFError):
            second.connection.recv()


def test_a_worker_that_cannot_begin_says_why_and_closes(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with guarded(temp_parent=str(tmp_path)) as guard:
        for target, preload in ((ECHO, ["no_such_module"]), ("nowhere:at", []), (ECHO + "es", [])):
            (worker,) = guard.start_workers(target, 1, preload=preload)
            with pytest.raises(EOFError):
                worker.connection.recv()
        for target, count in ((ECHO, 0), ("json", 1)):
            with pytest.raises(ValueError, match="cannot start"):
                guard.start_workers(target, count)
    said = capfd.readouterr().err
    assert "No module named 'no_such_module'" in said
    assert "No module named 'nowhere'" in said
    assert "has no attribute 'echoes'" in said


def test_an_exception_in_the_block_cleans_up_and_is_passed_on(tmp_path: Path) -> None:
    def harness() -> None:
        with guarded(temp_parent=str(tmp_path)) as guard:
            guard.start_workers(ECHO, 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        harness()
    assert list(tmp_path.iterdir()) == []


# The harness of these tests: it starts a worker, which runs an attempt that leaves daemons behind.
HARNESS = """
import os, sys
from fault_injection.attempt import Settings
from fault_injection.guardian import guarded
from tests.fault_injection.attempts import command
with guarded(temp_parent=sys.argv[1], other_parent=sys.argv[1]) as guard:
    open(os.path.join(guard.other_dir, "left"), "w").close()
    (worker,) = guard.start_workers("tests.fault_injection.attempts:serve", 1)
    program = "(setsid sh -c 'sleep 100 & sleep 100' &) ; : > up; trap '' TERM INT; sleep 100; :"
    asked = command("/bin/sh", "-c", program, cwd=guard.temp_dir, env={"MARK": sys.argv[1]})
    worker.connection.send((asked, Settings(guard.temp_dir, timeout_s=100, supervise=False)))
    print(guard.pid, worker.pid, flush=True)
    worker.connection.recv()
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_harness_that_is_killed_in_an_attempt_leaves_nothing(tmp_path: Path, number: int) -> None:
    harness, guardian, worker = _start_harness(tmp_path)
    with harness:
        harness.send_signal(number)
        until(lambda: alive_with(str(tmp_path)) == [])
    until(lambda: list(tmp_path.iterdir()) == [])
    # A process that is ending has no environment any more, and is no zombie yet.
    until(lambda: _is_gone(guardian))
    assert not Path(f"/proc/{worker}").exists()


def test_a_guardian_that_is_killed_is_stood_in_for_by_the_harness(tmp_path: Path) -> None:
    harness, guardian, worker = _start_harness(tmp_path)
    with harness:
        os.kill(guardian, signal.SIGKILL)
        assert harness.wait(timeout=30) == 1  # EOFError from the worker
    assert alive_with(str(tmp_path)) == []
    assert list(tmp_path.iterdir()) == []
    assert not Path(f"/proc/{worker}").exists()


def _start_harness(tmp_path: Path) -> tuple["subprocess.Popen[bytes]", int, int]:
    """The harness in the middle of its attempt; pids of guardian and worker."""
    harness = subprocess.Popen(
        [sys.executable, "-c", HARNESS, str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    assert harness.stdout is not None
    guardian, worker = map(int, harness.stdout.readline().split())
    assert len(list(tmp_path.glob("*/left"))) == 1
    until(lambda: list(tmp_path.glob("*/up")) and len(alive_with("sleep\x00100")) >= 3)
    return harness, guardian, worker


def _is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def test_two_runs_at_once_do_not_meet(tmp_path: Path) -> None:
    with guarded(temp_parent=str(tmp_path)) as one, guarded(temp_parent=str(tmp_path)) as two:
        assert one.temp_dir != two.temp_dir
        (first,), (second,) = one.start_workers(ECHO, 1), two.start_workers(ECHO, 1)
        assert first.connection.recv()[0] == first.pid
        assert second.connection.recv()[0] == second.pid
        two.close()
        until(lambda: not Path(two.temp_dir).exists())
        first.connection.send("alive")
        assert first.connection.recv() == "alive"


def test_an_attempt_through_a_worker_is_the_attempt(tmp_path: Path) -> None:
    with guarded(temp_parent=str(tmp_path)) as guard:
        remote = Remote(guard.start_workers(SERVE, 1, env=ENVIRONMENT)[0])
        settings = Settings(guard.temp_dir, timeout_s=20, supervise=False)
        found = remote.run(command("/bin/sh", "-c", "echo hi; exit 3"), settings)
        assert isinstance(found, Attempt)
        assert (found.exit_code, found.stdout) == (3, b"hi\n")


def test_a_tree_is_removed_whatever_its_modes_and_nothing_outside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    tree = tmp_path / "tree"
    (tree / "locked" / "deep").mkdir(parents=True)
    (tree / "locked" / "deep" / "file").write_text("x")
    (tree / "link").symlink_to(outside)
    (tree / "locked" / "dangling").symlink_to("nowhere")
    os.mkfifo(tree / "fifo")
    (tree / "locked" / "deep").chmod(0)
    (tree / "locked").chmod(0)
    remove_tree(str(tree))
    assert not tree.exists()
    assert (outside / "kept").read_text() == "kept"
    remove_tree(str(tree))  # it is gone already: nothing to do


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: a plain user cannot be become")
def test_a_plain_user_removes_locked_directories_too(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            os.chdir(tmp_path)
            os.setgroups([])
            os.setgid(65534)
            os.setuid(65534)
            os.makedirs("tree/a/b")
            os.close(os.open("tree/a/b/f", os.O_CREAT))
            for name in ("tree/a/b", "tree/a", "tree"):
                os.chmod(name, 0)
            remove_tree("tree")
            code = 2 if os.path.exists("tree") else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
