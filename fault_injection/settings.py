"""What an attempt is told, and what it tells: the data around ``run_attempt``."""

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.overlay import Overlay
from fault_injection.trace import Trace

Reads = Mapping[bytes, frozenset[str]]

# How the reason for a bound ends that has to do with space on the disk.
IN_THE_TREE, ON_THE_DISK = "in the tree", "on the tree's file system"
FOR_WANT_OF_SPACE = (IN_THE_TREE, ON_THE_DISK)

BEFORE_ANY_CALL = "start"  # a place at which nothing strikes: see ``Seen``


@dataclass(frozen=True, slots=True)
class Command:
    """A command as it is started: ``{root}`` substituted, the environment complete and sorted.

    With ``call`` the program is that function of this process, run in a fork of it: ``argv`` only
    names it, ``env`` is not applied, and descriptors stay open (``fault_injection.forkcall``).
    """

    argv: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...]
    call: Callable[[], object] | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """How an attempt is run.

    ``root`` is the absolute real path of the tree under test. ``fork`` runs a Python script or
    module in a fork of this process where ``forkstart.is_forkable`` allows it, and is an error of
    the start where it does not. ``supervise`` puts the program under seccomp; without it there are
    failpoints, pipes and times only, on any Unix. ``record_to`` is a directory for a full trace.
    ``watch`` are paths relative to root whose written bytes are observed besides stdout and
    stderr. Without ``follow_outputs`` a write to stdout or stderr is no place at which a fault may
    strike, and costs nothing: what was told is read before each call, which keeps its order for a
    program of one thread, but not the order of stdout and stderr between two calls.
    ``hold_back`` (number, of how many others) makes one thread slow: the main one (number 0), or
    that one of the others (``fault_injection.holding``). ``at_fault`` is called while the program
    is held at the fault, before it is hurt.

    Bounds: ``output_limit_bytes`` of each source are kept; ``leftover_grace_s`` is what children
    have, after the program has ended, to end by themselves, unless they are no more than
    ``lasting``: command lines, with {root} for root, of those that did not in another run. More
    than ``process_limit`` processes at once, nearly no space left where root is, or more than
    ``tree_limit_bytes`` below root (None: no limit) ends the attempt; ``file_limit_bytes`` is the
    length a file may reach (RLIMIT_FSIZE; None: no limit).
    """

    root: str
    timeout_s: float
    fault: Fault | None = None
    fork: bool = False
    supervise: bool = True
    record_to: str | None = None
    observe_reads: bool = False
    report_points: bool = False
    watch: tuple[str, ...] = ()
    follow_outputs: bool = True
    hold_back: tuple[int, int] | None = None
    stable_names: frozenset[bytes] | None = None
    at_fault: Callable[[], None] | None = None
    output_limit_bytes: int = 1 << 20
    leftover_grace_s: float = 2.0
    lasting: tuple[str, ...] = ()
    process_limit: int = 512
    file_limit_bytes: int | None = None
    tree_limit_bytes: int | None = None

    def __post_init__(self) -> None:
        fault = self.fault
        if fault is None:
            return
        if fault.trigger in (TriggerKind.CALL, TriggerKind.AFTER_LAST_CALL) and not self.supervise:
            raise ValueError(f"a fault {fault.describe()} needs supervision")
        answers = (ActionKind.ERRNO, ActionKind.SHORT_WRITE)
        if fault.action in answers and fault.trigger is not TriggerKind.CALL:
            raise ValueError(f"only a call can be answered: {fault.describe()}")
        if fault.action is ActionKind.SIGNAL and fault.detail not in signal.Signals.__members__:
            raise ValueError(f"{fault.detail!r} is not the name of a signal")


@dataclass(frozen=True, slots=True)
class Seen:
    """Bytes that the world could see: ``source`` is "stdout", "stderr" or a watched path.

    ``operation`` is the index of the operation that showed them in the trace, or -1; ``place`` the
    place of that call, empty when the attempt was not supervised. Where outputs are not followed it
    is that of the changing call before, or ``BEFORE_ANY_CALL``.
    """

    source: str
    data: bytes
    operation: int = -1
    place: str = ""


@dataclass(frozen=True, slots=True)
class Attempt:
    """What happened.

    One of ``exit_code`` and ``signal`` is set once a started program has ended. ``seconds`` is
    from the fork to the end of the main process. ``evidence`` says in words how the fault was seen
    to happen, and is empty when it was not. ``seen`` is in the order in which the world could see
    it. ``cut`` names the sources of which only the beginning was kept. ``points`` are the
    failpoints passed, ``places`` the changing calls under root and the outputs (``output-...``),
    ``name#n`` each, in order. ``reads``, ``removed`` and ``overlay`` (with ``observe_reads``) are
    what was asked of the starting tree, the directories of it that were listed and are gone, and
    where what is there came from. ``redirected``: a file of the tree stood for stdout or stderr.
    ``left_behind`` are the command lines of processes that outlived the main process and were
    killed. ``at_once`` (with ``hold_back``) is how many other threads and processes that did
    something there were at one time; ``held_in_part``: the budget of holding did not last.
    ``untraceable`` names the first call that cannot be recorded,
    and why. ``bounded`` says which bound ended the attempt, ``start_error`` why it never began.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    fault_seen: bool = False
    evidence: str = ""
    seen: tuple[Seen, ...] = ()
    stdout: bytes = b""
    stderr: bytes = b""
    cut: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    places: tuple[str, ...] = ()
    trace: Trace | None = None
    reads: Reads | None = None
    removed: frozenset[bytes] = frozenset()
    redirected: bool = False
    overlay: Overlay | None = None
    left_behind: tuple[str, ...] = ()
    at_once: int = 0
    held_in_part: bool = False
    untraceable: str = ""
    bounded: str = ""
    start_error: str = ""

    @property
    def started_ok(self) -> bool:
        """Whether the program began at all."""
        return not self.start_error
