"""Trees of processes are found by parentage, killed whole, and reaped."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fault_injection import processes

from .attempts import alive_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: subreapers")


@pytest.fixture(autouse=True)
def adopting() -> Iterator[None]:
    """This process adopts orphans during a test, and leaves none."""
    was = processes.is_subreaper()
    processes.become_subreaper()
    yield
    processes.become_subreaper(was)


def until(true: Callable[[], object]) -> None:
    """Wait for something that another process does; fails after 20 s."""
    deadline = time.monotonic() + 20
    while not true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.002)


def shell(program: str, mark: Path) -> subprocess.Popen[bytes]:
    """A shell in a session of its own; its processes carry ``mark`` in their environment."""
    return subprocess.Popen(
        ["sh", "-c", program],
        env={"PATH": os.environ["PATH"], "MARK": str(mark)},
        start_new_session=True,
    )


def spared(*but: subprocess.Popen[bytes]) -> frozenset[int]:
    """The children that are here now, except the test's own."""
    return frozenset(processes.children(os.getpid())) - {process.pid for process in but}


def test_children_and_descendants_are_all_found_parents_first(tmp_path: Path) -> None:
    with shell(f"(sh -c 'sleep 100; :' & sleep 100; :) & : > {tmp_path}/up; wait", tmp_path) as top:
        until(lambda: len(processes.descendants(top.pid)) == 4)
        below = processes.descendants(top.pid)
        (child,) = processes.children(top.pid)
        assert below[0] == child
        assert sorted(below[1:3]) == processes.children(child)
        assert processes.children(below[3]) == []
        assert processes.descendants(top.pid, spare=[child]) == []
        assert processes.kill_descendants(spare=spared(top))
    assert alive_with(str(tmp_path)) == []


def test_psutil_finds_the_same_children_where_proc_has_no_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with shell("sleep 100 & sleep 100 & wait", tmp_path) as top:
        until(lambda: len(processes.children(top.pid)) == 2)
        expected = processes.children(top.pid)
        monkeypatch.setattr(processes, "_children", processes._children_from_psutil)
        assert processes.children(top.pid) == expected
        assert processes.kill_descendants(spare=spared(top))
        assert processes.children(2**22 + 1) == []


def test_a_daemon_that_left_its_session_is_killed_with_the_rest(tmp_path: Path) -> None:
    """Forked twice, setsid, its parents dead: only the subreaper still knows it."""
    others = spared()
    with shell("(setsid sh -c 'setsid sleep 100 & sleep 100' &) ; exit 0", tmp_path) as top:
        top.wait()
        until(lambda: len(alive_with(str(tmp_path))) >= 2)
        assert processes.kill_descendants(spare=others)
    assert alive_with(str(tmp_path)) == []


def test_who_is_spared_lives_with_what_is_below_it(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    with (
        shell("sleep 100 & wait", tmp_path / "a") as kept,
        shell("sleep 100", tmp_path / "b") as gone,
    ):
        until(lambda: len(alive_with(str(tmp_path / "a"))) == 2)
        assert processes.kill_descendants(spare=spared(gone))
        assert alive_with(str(tmp_path / "b")) == []
        assert len(alive_with(str(tmp_path / "a"))) == 2
        assert processes.kill_descendants(spare=spared(kept))
    assert alive_with(str(tmp_path)) == []


def test_ignored_signals_and_stopped_processes_are_no_way_out(tmp_path: Path) -> None:
    program = "trap '' TERM INT HUP; sleep 100 & kill -STOP $!; kill -STOP $$"
    with shell(program, tmp_path) as top:
        until(lambda: processes.state_of(top.pid) == "T")
        assert processes.kill_descendants(spare=spared(top))
    assert alive_with(str(tmp_path)) == []


def test_a_process_that_flees_by_forking_and_leaving_its_session_is_caught() -> None:
    """Each generation leaves the session, forks the next and ends: the pid is never the same."""
    flee = "import os\nfor _ in range(10 ** 6):\n    if os.fork(): os._exit(0)\n    os.setsid()\n"
    others = spared()
    reading, writing = os.pipe()  # open as long as one of them lives
    process = subprocess.Popen([sys.executable, "-c", flee], pass_fds=[writing])
    os.close(writing)
    until(lambda: process.poll() is not None)
    assert processes.descendants(os.getpid(), spare=others) != []
    assert processes.kill_descendants(spare=others, timeout_s=20)
    assert processes.descendants(os.getpid(), spare=others) == []
    with os.fdopen(reading) as end:
        assert end.read() == ""


def test_a_name_of_any_bytes_does_not_hide_the_state(tmp_path: Path) -> None:
    odd = tmp_path / ") Z (\n"
    odd.symlink_to("/bin/sleep")
    with subprocess.Popen([str(odd), "100"]) as process:
        until(lambda: processes.describe(process.pid).startswith(str(tmp_path)))
        assert processes.state_of(process.pid) in ("S", "R", "D")
        process.send_signal(signal.SIGSTOP)
        until(lambda: processes.state_of(process.pid) == "T")
        process.kill()
        until(lambda: processes.state_of(process.pid) == "Z")
        assert processes.living([process.pid]) == []
        assert processes.describe(process.pid) in ("sleep", odd.name.strip())
    assert processes.state_of(process.pid) == ""
    assert processes.describe(process.pid) == "?"


def test_no_children_is_known_by_one_call() -> None:
    """In a fork, which has none, and has one, and has reaped it."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        found = [processes.has_children()]
        child = os.fork()
        if child == 0:
            os._exit(0)
        found.append(processes.has_children())
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        found.append(processes.has_children())
        processes.reap([child, 2**22 + 1])
        found.append(processes.has_children())
        os.write(writing, repr(found).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        assert answers.read() == "[False, True, True, False]"


def test_it_is_known_whether_a_signal_will_end_a_process() -> None:
    """Handled, ignored, blocked by all threads, or harmless by default: it does not."""
    source = """
import signal, sys, threading
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGUSR2])
threading.Thread(target=lambda: (
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2]), print(flush=True),
    threading.Event().wait())).start()
"""
    with subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        ends = {
            name: processes.would_end(process.pid, signal.Signals[name])
            for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGKILL",
                         "SIGCHLD", "SIGSTOP", "SIGCONT")
        }  # fmt: skip
        process.kill()
    assert [name for name, ends_it in ends.items() if ends_it] == ["SIGUSR2", "SIGALRM", "SIGKILL"]
    assert not processes.would_end(2**22 + 1, signal.SIGKILL)
