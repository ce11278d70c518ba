"""Failpoints: counted, reported, waited at; armed by hand, by fork and by the environment."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from fault_injection import points


@pytest.fixture
def control() -> Iterator[socket.socket]:
    """The harness's end; the other end is armed by the tests as ``control.other``."""
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    with ours, theirs:
        _other[ours] = theirs.fileno()
        yield ours
    del _other[ours]
    points.disarm()


_other: dict[socket.socket, int] = {}


def lines(sock: socket.socket, count: int) -> list[str]:
    data = b""
    while data.count(b"\n") < count:
        data += sock.recv(4096)
    return data.decode().splitlines()


def test_an_unarmed_point_does_nothing() -> None:
    points.disarm()
    assert points.point("save.begun") is None
    assert points._armed is None


def test_every_hit_is_reported_and_counted_by_name(control: socket.socket) -> None:
    points.arm(report=True, control_fd=_other[control])
    for name in ("a", "b", "a", "a"):
        points.point(name)
    assert lines(control, 4) == ["hit a 1", "hit b 1", "hit a 2", "hit a 3"]


def test_at_the_chosen_hit_the_program_says_so_and_waits(control: socket.socket) -> None:
    points.arm(chosen=("a", 2), report=True, control_fd=_other[control])
    passed: list[str] = []

    def program() -> None:
        for name in ("a", "b", "a", "c"):
            points.point(name)
            passed.append(name)

    thread = threading.Thread(target=program)
    thread.start()
    assert lines(control, 3) == ["hit a 1", "hit b 1", "at a 2"]
    assert passed == ["a", "b"]
    control.send(b"\n")
    thread.join(timeout=20)
    assert passed == ["a", "b", "a", "c"]
    assert lines(control, 1) == ["hit c 1"]


def test_hits_of_all_threads_are_counted_together(control: socket.socket) -> None:
    points.arm(report=True, control_fd=_other[control])
    threads = [
        threading.Thread(target=lambda: [points.point("x") for _ in range(50)]) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert lines(control, 200) == [f"hit x {n}" for n in range(1, 201)]


def test_a_place_is_a_name_and_a_hit_from_1() -> None:
    assert points.parse_place("save.manifest#3") == ("save.manifest", 3)
    assert points.parse_place("save.manifest") == ("save.manifest", 1)
    for wrong in ("", "#1", "a#0", "a#-1", "a#x", "a#1#2", "a#\u0661"):
        with pytest.raises(ValueError, match="is not <point name>#<hit from 1>"):
            points.parse_place(wrong)
    with pytest.raises(ValueError, match="hit 0 of point 'a': hits are counted from 1"):
        points.arm(chosen=("a", 0))


PROGRAM = """
from fault_injection.points import point
for name in ("a", "b", "a"):
    point(name)
    print(name, flush=True)
"""


def run(env: dict[str, str], **more: object) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FAULT_")}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [sys.executable, "-c", PROGRAM],
        env={**clean, **env},
        capture_output=True,
        text=True,
        timeout=20,
        start_new_session=True,
        **more,
    )


def test_by_hand_the_environment_kills_at_the_point_without_a_harness() -> None:
    assert run({}).stdout == "a\nb\na\n"
    done = run({"FAULT_POINT": "a#2"})
    assert (done.returncode, done.stdout) == (-9, "a\nb\n")
    assert run({"FAULT_POINT": "b"}).stdout == "a\n"
    assert run({"FAULT_POINT": "a#3"}).returncode == 0


def test_the_environment_names_the_control_descriptor(control: socket.socket) -> None:
    other = _other[control]
    env = {"FAULT_CONTROL_FD": str(other), "FAULT_POINTS_REPORT": "1"}
    assert run(env, pass_fds=[other]).returncode == 0
    assert lines(control, 3) == ["hit a 1", "hit b 1", "hit a 2"]


def test_an_environment_that_makes_no_sense_is_an_error_that_shows_it() -> None:
    done = run({"FAULT_POINT": "a#zero"})
    assert done.returncode == 1
    assert "ValueError: 'a#zero' is not <point name>#<hit from 1>" in done.stderr
