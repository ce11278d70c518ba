"""What passes between a run and a task of its workers before the task has ended.

A task answers once. Until then a worker says in a small file how far it has come, and asks of
another whether it is to stop and answer with what it has. Both cost a look at the clock, and more
than that five times a second only. A task that is told no files says nothing and never stops.
"""

import contextlib
import os
import struct
import time
from pathlib import Path

TICK_S = 0.2
_STOP = "stop"
_COUNT = struct.Struct("=Q")


class Told:
    """A worker's side. ``path`` is the task's own file; empty: there is nobody to tell.

    ``deadline_s`` is when to stop in any case, on the clock that all processes of a machine share.
    """

    def __init__(self, path: str = "", deadline_s: float | None = None) -> None:
        self._path = path
        self._deadline_s = deadline_s
        self._stop = os.path.join(os.path.dirname(path), _STOP)
        self._looked_s = 0.0
        self.must_stop = self.out_of_time = False

    def count(self, number: int) -> bool:
        """``number`` of things have been done so far; whether to stop here."""
        now = time.monotonic()
        if self._path and now - self._looked_s >= TICK_S:
            self._looked_s = now
            with open(self._path, "wb", buffering=0) as file:
                file.write(_COUNT.pack(number))
            self.must_stop = self.must_stop or os.path.exists(self._stop)
        if self._deadline_s is not None and now >= self._deadline_s:
            self.must_stop = self.out_of_time = True
        return self.must_stop


def path_of(directory: Path, name: str) -> str:
    """The file of the task ``name``, for its worker, in the run's ``directory``, which is made."""
    directory.mkdir(parents=True, exist_ok=True)
    return str(directory / f"{name}.count")


def counted(path: str) -> int:
    """What the task with this file has counted."""
    with contextlib.suppress(OSError, struct.error), open(path, "rb") as file:
        (number,) = _COUNT.unpack(file.read(_COUNT.size))
        return int(number)
    return 0


def ask_to_stop(directory: Path) -> None:
    """Ask all tasks with files in the directory to stop; new ones stop at once too."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / _STOP).touch()
