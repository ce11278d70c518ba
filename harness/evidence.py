"""Evidence: what a case's attempts did, as the oracle judges it, and what it finds."""

from dataclasses import dataclass

from fault_injection.faults import Fault
from harness.observation import Event
from harness.subjects import Subject
from harness.tinyllm_state import RunState


@dataclass(frozen=True, slots=True)
class Step:
    """One attempt of a case. ``after`` (tinyllm only) is the run as the attempt left it.

    ``bounded`` says which bound ended it, if one did. ``calls_since_ack`` counts the changing calls
    that ran between the last acknowledgement and the fault (-1: not known). ``rewind`` names the
    step directory that it was told to go back to, "" when it was told none.
    """

    fault: Fault | None
    fault_seen: bool
    resuming: bool
    exit_code: int | None
    signal: int | None
    timed_out: bool
    events: tuple[Event, ...]
    output: str
    evidence: str = ""
    calls_since_ack: int = -1
    after: RunState | None = None
    left_behind: tuple[str, ...] = ()
    bounded: str = ""
    rewind: str = ""

    @property
    def rewound_to(self) -> int | None:
        """The step that it was told to go back to, None when it was told none."""
        return int(self.rewind.partition("-")[2]) if self.rewind else None

    @property
    def succeeded(self) -> bool:
        """Whether it ended by itself with its success status."""
        return self.exit_code == 0 and not self.timed_out


@dataclass(frozen=True, slots=True)
class History:
    """All attempts of a case in order, and what stood in the tree when the last one had ended.

    ``tree_is_final`` says whether every file of the uninterrupted run's last tree is there with
    the same bytes, which is how an attempt that printed no loss is known to have been done.
    """

    subject: Subject
    layer: str
    steps: tuple[Step, ...]
    final: dict[str, str]
    tree_is_final: bool
    started_from: tuple[RunState, ...] = ()


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken invariant. ``message`` is in training terms; ``evidence`` what was seen."""

    invariant: str
    message: str
    expected: str = ""
    found: str = ""
