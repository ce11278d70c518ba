"""Named failpoints: the places inside a program at which a harness may stop it.

A program calls ``point("save.manifest-written")``. Unarmed, that is one global load and one
comparison. Armed, the hits of each name are counted from 1; every hit may be reported, and at the
chosen hit the program writes its evidence to a control descriptor and then *waits there* until
the harness has killed it, signalled it, or let it go on. The harness therefore never guesses when
the fault happened, and a fault that was never reached leaves no evidence.

Two ways to arm:

* :func:`arm` in a forked child, with a control descriptor (one end of a socket pair).
* The environment, for a process that is started anew: ``FAULT_POINT=<name>#<hit>`` chooses the
  hit, ``FAULT_POINTS_REPORT=1`` reports every hit, ``FAULT_CONTROL_FD=<n>`` names the inherited
  descriptor, best a socket. Without one the process kills itself with SIGKILL, and its process
  group where it leads one, which is what a developer wants who arms a point by hand.

On the control descriptor, one line each: ``hit <name> <n>`` (reporting only), ``at <name> <n>``
(the chosen hit; the program now waits for one byte).

Not covered: points in a child that closes or replaces its inherited descriptors.
"""

import os
import signal
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

ENV_POINT = "FAULT_POINT"
ENV_REPORT = "FAULT_POINTS_REPORT"
ENV_CONTROL_FD = "FAULT_CONTROL_FD"


class _Armed:
    """What was armed, and how often each point has been reached so far."""

    def __init__(self, *, chosen: tuple[str, int] | None, report: bool, control_fd: int) -> None:
        self.chosen = chosen
        self.report = report
        self.control_fd = control_fd
        self.hits: dict[str, int] = {}
        self.lock = threading.Lock()
        self._socket = None if control_fd < 0 else _borrowed(control_fd)

    def reached(self, name: str) -> None:
        with self.lock:
            hit = self.hits.get(name, 0) + 1
            self.hits[name] = hit
            if self.chosen == (name, hit):
                self._stop_here(name, hit)
            elif self.report and self.control_fd >= 0:
                self._tell(f"hit {name} {hit}\n".encode())

    def _stop_here(self, name: str, hit: int) -> None:
        if self.control_fd < 0:
            # A process group led by another (a script, make, a test runner) is not ours to kill.
            if os.getpgrp() == os.getpid():
                os.killpg(os.getpgrp(), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        self._tell(f"at {name} {hit}\n".encode())
        os.read(self.control_fd, 1)

    def _tell(self, line: bytes) -> None:
        # Not by write(): a supervisor looks at every write, and a point may be hit at every step.
        if self._socket is None or self._socket.fileno() < 0:
            os.write(self.control_fd, line)
        else:
            self._socket.sendall(line)


def _borrowed(fd: int) -> "socket.socket | None":
    """A socket object for a descriptor that it never closes; None when that is no socket."""
    import atexit
    import socket

    try:
        found = socket.socket(fileno=fd)
    except OSError:
        return None
    atexit.register(found.detach)
    return found


_armed: _Armed | None = None


def point(name: str) -> None:
    """Mark a place; free unless armed. ``name`` is ``<phase>.<what-just-happened>``."""
    if _armed is not None:
        _armed.reached(name)


def arm(
    *, chosen: tuple[str, int] | None = None, report: bool = False, control_fd: int = -1
) -> None:
    """Arm this process: stop at hit ``chosen[1]`` (from 1) of the point ``chosen[0]``."""
    global _armed
    if chosen is not None and chosen[1] < 1:
        raise ValueError(f"hit {chosen[1]} of point {chosen[0]!r}: hits are counted from 1")
    _armed = _Armed(chosen=chosen, report=report, control_fd=control_fd)


def disarm() -> None:
    """Make every point free again."""
    global _armed
    _armed = None


def parse_place(text: str) -> tuple[str, int]:
    """``name#hit`` as ``(name, hit)``; ``#hit`` may be left out and is then 1."""
    name, _, hit = text.partition("#")
    if not name or (hit and not (hit.isascii() and hit.isdigit() and int(hit) >= 1)):
        raise ValueError(f"{text!r} is not <point name>#<hit from 1>")
    return name, int(hit or "1")


def arm_from_environment() -> None:
    """Arm as the environment says; does nothing when it says nothing."""
    place = os.environ.get(ENV_POINT)
    report = os.environ.get(ENV_REPORT) == "1"
    if place is None and not report:
        return
    control_fd = int(os.environ.get(ENV_CONTROL_FD, "-1"))
    arm(
        chosen=parse_place(place) if place is not None else None,
        report=report,
        control_fd=control_fd,
    )


arm_from_environment()
