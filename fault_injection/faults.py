"""What is done to a program, and where: the vocabulary shared by every layer.

A :class:`Fault` is a trigger (where) and an action (what). An attempt is started with at most one
fault; a case is a list of attempts. All of it is plain data, so that a case can be written down,
hashed into an id and run again.
"""

import errno as errno_module
from dataclasses import dataclass
from enum import StrEnum


class TriggerKind(StrEnum):
    """Where a fault strikes."""

    POINT = "point"  # at a named failpoint: ``name#hit``
    CALL = "call"  # before a file-system call: its place, ``<call>-<name>#<occurrence>``
    AFTER_LAST_CALL = "after-last-call"  # when the program has made its last call and ends
    TIME = "time"  # ``seconds`` after the start (decimal text)


class ActionKind(StrEnum):
    """What a fault does."""

    KILL = "kill"  # SIGKILL of the whole process tree
    SIGNAL = "signal"  # one signal to the program's main process: ``detail`` is its name, "SIGTERM"
    ERRNO = "errno"  # the call is not executed and fails: ``detail`` is "ENOSPC", "EIO", ...
    SHORT_WRITE = "short-write"  # half of the bytes are written and that count is returned
    PAUSE = "pause"  # SIGSTOP, then SIGCONT once it has been seen to stop


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. ``times`` counts how many matching calls fail from the place on (0: for ever)."""

    trigger: TriggerKind
    place: str
    action: ActionKind = ActionKind.KILL
    detail: str = ""
    times: int = 1

    def __post_init__(self) -> None:
        if self.action is ActionKind.ERRNO and not hasattr(errno_module, self.detail):
            raise ValueError(f"{self.detail!r} is not the name of an errno")

    @property
    def what(self) -> str:
        """What is done, in words: ``SIGKILL``."""
        return {
            ActionKind.KILL: "SIGKILL",
            ActionKind.SIGNAL: self.detail,
            ActionKind.ERRNO: self.detail,
            ActionKind.SHORT_WRITE: "a short write",
            ActionKind.PAUSE: "SIGSTOP and SIGCONT",
        }[self.action]

    def describe(self) -> str:
        """In words, for people: ``SIGKILL before rename-LATEST#2``."""
        kills = self.action is ActionKind.KILL
        where = {
            TriggerKind.POINT: f"at {self.place}",
            TriggerKind.CALL: f"{'before' if kills else 'at'} {self.place}",
            TriggerKind.AFTER_LAST_CALL: "after the last call",
            TriggerKind.TIME: f"after {self.place} s",
        }[self.trigger]
        return f"{self.what} {where}"
