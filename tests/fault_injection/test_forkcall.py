"""A function as the program of an attempt: how it ends, what it prints, what it inherits."""

import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.attempt import Attempt, Command, Settings, run_attempt

needs_seccomp = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)


def called(root: Path, call: Callable[[], object], *, supervise: bool = False) -> Attempt:
    command = Command(("the call",), str(root), (), call=call)
    return run_attempt(command, Settings(str(root), timeout_s=30.0, supervise=supervise))


def fail() -> None:
    raise LookupError("not here")


@pytest.mark.parametrize(
    ("call", "exit_code", "said"),
    [
        (lambda: None, 0, b""),
        (lambda: 7, 0, b""),
        (lambda: sys.exit(), 0, b""),
        (lambda: sys.exit(3), 3, b""),
        (lambda: sys.exit("in words"), 1, b"in words"),
        (fail, 1, b"LookupError: not here"),
        (lambda: os._exit(9), 9, b""),
    ],
)
def test_how_it_ends(
    tmp_path: Path, call: Callable[[], object], exit_code: int, said: bytes
) -> None:
    attempt = called(tmp_path, call)
    assert (attempt.exit_code, attempt.signal) == (exit_code, None)
    assert said in attempt.stderr
    assert bool(attempt.stderr) == bool(said)
    assert b"/forkcall.py" not in attempt.stderr


@needs_seccomp
def test_each_line_is_seen_where_it_is_printed(tmp_path: Path) -> None:
    def call() -> None:
        print("before", 1)
        (tmp_path / "made").mkdir()
        print("after")

    attempt = called(tmp_path, call, supervise=True)
    assert attempt.places == ("output-stdout#1", "mkdir-made#1", "output-stdout#2")
    assert [seen.data for seen in attempt.seen] == [b"before 1\n", b"after\n"]


def test_threads_that_it_started_are_waited_for_and_open_files_are_inherited(
    tmp_path: Path,
) -> None:
    with open(tmp_path / "log", "w") as log:

        def write() -> None:
            os.write(log.fileno(), b"from the thread")

        attempt = called(tmp_path, lambda: threading.Thread(target=write).start())
    assert attempt.exit_code == 0
    assert (tmp_path / "log").read_text() == "from the thread"


def test_what_is_buffered_here_is_not_written_by_the_child(tmp_path: Path) -> None:
    with open(tmp_path / "log", "w") as log:
        log.write("once")
        assert called(tmp_path, lambda: None).exit_code == 0
    assert (tmp_path / "log").read_text() == "once"
