"""Hand-made baselines and histories for the oracle's tests: ten steps, acks after 3, 6 and 9."""

from harness.baseline import Baseline
from harness.evidence import History, Step
from harness.observation import Event
from harness.promises import Promise
from harness.subjects import Pattern, Subject
from harness.tinyllm_state import RunState

STEPS = 10


def text(step: int) -> str:
    return f"{1 / step:.9g}"


def loss(step: int, value: str | None = None) -> Event:
    return Event("loss", step, text(step) if value is None else value)


def ack(step: int, *, calls_before: int = -1) -> Event:
    return Event("ack", step, calls_before=calls_before)


def losses(first: int, last: int) -> tuple[Event, ...]:
    return tuple(loss(step) for step in range(first, last + 1))


def uninterrupted() -> tuple[Event, ...]:
    return (*losses(1, 3), ack(3), *losses(4, 6), ack(6), *losses(7, 9), ack(9), loss(10))


def a_subject(**changes: object) -> Subject:
    fields: dict[str, object] = {
        "name": "toy",
        "train": ("python", "x.py", "{root}"),
        "resume": ("python", "x.py", "{root}"),
        "cwd": "/",
        "losses": Pattern("stdout", r"(?P<step>\d+) (?P<loss>\S+)"),
        "acknowledged": Pattern("stdout", r"saved (?P<step>\d+)"),
        "final": ("final.bin",),
    }
    return Subject(**{**fields, **changes})  # type: ignore[arg-type]


def a_baseline(**changes: object) -> Baseline:
    fields: dict[str, object] = {
        "losses": losses(1, STEPS),
        "shown": uninterrupted(),
        "promises": (Promise(3, 3, -1), Promise(6, 6, -1), Promise(9, 9, -1)),
        "final": {"final.bin": "aa"},
        "tree": {"final.bin": "aa"},
        "places": (),
        "save_ends": (),
        "points": (),
        "stable_names": None,
        "operations": 0,
        "seconds": 1.0,
        "fork": False,
    }
    return Baseline(**{**fields, **changes})  # type: ignore[arg-type]


def killed(
    *events: Event, calls_since_ack: int = -1, after: RunState | None = None, resuming: bool = False
) -> Step:
    return Step(
        fault=None,
        fault_seen=True,
        resuming=resuming,
        exit_code=None,
        signal=9,
        timed_out=False,
        events=events,
        output="",
        calls_since_ack=calls_since_ack,
        after=after,
    )


def ended(
    *events: Event,
    exit_code: int = 0,
    output: str = "",
    timed_out: bool = False,
    after: RunState | None = None,
) -> Step:
    return Step(
        fault=None,
        fault_seen=False,
        resuming=True,
        exit_code=None if timed_out else exit_code,
        signal=9 if timed_out else None,
        timed_out=timed_out,
        events=events,
        output=output,
        after=after,
    )


def history(
    *steps: Step,
    final: dict[str, str] | None = None,
    tree_is_final: bool = False,
    layer: str = "kill",
    subject: Subject | None = None,
) -> History:
    return History(
        subject=subject or a_subject(),
        layer=layer,
        steps=steps,
        final={"final.bin": "aa"} if final is None else final,
        tree_is_final=tree_is_final,
    )
