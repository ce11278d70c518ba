"""What an attempt told the world: its losses and acknowledgements, in order.

The bytes that reached stdout, stderr and the watched files are cut into lines, each line counted
from the moment its bytes were written, and matched against the subject's patterns.

A last line without its newline counts as an acknowledgement (its bytes were seen), and as a loss
only when the attempt ended by itself: a kill may have torn the number.

A pattern that backtracks could search for ever. What all the lines of an attempt may take together
is bounded, in this process's own computing time; outside the main thread it is not.
"""

import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

from fault_injection.attempt import Attempt, Seen
from fault_injection.settings import BEFORE_ANY_CALL
from harness.errors import UsageError
from harness.report.clean import one_line
from harness.subjects import ROOT, Pattern, Subject

MATCHING_LIMIT_S = 10.0
OUTPUT_LIMIT_BYTES = 8 << 20  # of each stream and watched file of an attempt, from its beginning


@dataclass(frozen=True, slots=True)
class Event:
    """One loss or acknowledgement. ``kind`` is "loss" or "ack"; ``loss`` the text as printed.

    ``calls_before`` counts the changing calls that the attempt had made by then, the one that
    showed it included (-1: not known),
    ``operation`` is the index of the recorded operation that showed it (-1: not recorded).
    """

    kind: str
    step: int
    loss: str = ""
    calls_before: int = -1
    operation: int = -1


def events(
    seen: Sequence[Seen],
    *,
    subject: Subject,
    ended_by_itself: bool,
    places: Sequence[str] = (),
) -> tuple[Event, ...]:
    """Losses and acknowledgements in the order in which the world could see them.

    ``places`` are those of the whole attempt, outputs included.
    """
    with _bounded(subject):
        return _events(
            seen,
            subject=subject,
            ended_by_itself=ended_by_itself,
            position=_positions(places),
        )


def _events(
    seen: Sequence[Seen], *, subject: Subject, ended_by_itself: bool, position: Mapping[str, int]
) -> tuple[Event, ...]:
    patterns: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for kind, pattern in (("loss", subject.losses), ("ack", subject.acknowledged)):
        if pattern is not None:
            patterns.setdefault(pattern.source, []).append((kind, pattern.compiled()))
    found: list[Event] = []
    partial: dict[str, tuple[bytes, Seen]] = {}
    for chunk in seen:
        if chunk.source not in patterns:
            continue
        pending = partial[chunk.source][0] if chunk.source in partial else b""
        *lines, rest = (pending + chunk.data).split(b"\n")
        partial[chunk.source] = (rest, chunk)
        for line in lines:
            found += _match(line, patterns[chunk.source], chunk=chunk, position=position)
    for source, (rest, chunk) in sorted(partial.items(), key=lambda item: item[0]):
        if rest:
            late = _match(rest, patterns[source], chunk=chunk, position=position)
            found += [e for e in late if ended_by_itself or e.kind == "ack"]
    return tuple(found)


def cut_of(attempt: Attempt) -> list[str]:
    """The streams and watched files of which only the beginning was kept."""
    return [source for source in attempt.cut if source not in ("points", "places")]


def aside(attempt: Attempt, *, root: str) -> str:
    """What else is to be said of an attempt: what of its words is missing, whom it left behind."""
    said = [f"{source} was cut after {OUTPUT_LIMIT_BYTES:,} bytes" for source in cut_of(attempt)]
    if attempt.left_behind:
        left = ", ".join(attempt.left_behind).replace(root, ROOT)
        said.append(f"processes that it left behind were killed: {left}")
    return "; ".join(said)


@contextmanager
def _bounded(subject: Subject) -> Iterator[None]:
    """Raise UsageError when what is done inside takes longer than the limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    patterns = " or ".join(
        describe_pattern(p) for p in (subject.losses, subject.acknowledged) if p is not None
    )

    def too_long(_number: int, _frame: object) -> NoReturn:
        raise UsageError(
            f"{subject.name}: looking for {one_line(patterns, limit=400)} in the output of one "
            f"attempt took more than {MATCHING_LIMIT_S:g} s: the pattern backtracks. Write it "
            r"without repetitions of repetitions, as (a+)+, and begin it with the start of a line"
        )

    # The engine of ``re`` looks for signals now and then, so that a handler can end a search.
    before = signal.signal(signal.SIGVTALRM, too_long)
    signal.setitimer(signal.ITIMER_VIRTUAL, MATCHING_LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def is_output(place: str) -> bool:
    """Whether a place is that of an output rather than of a call that changes the tree."""
    return place.startswith("output-")


def _positions(places: Sequence[str]) -> dict[str, int]:
    """For each place how many changing calls were made up to it, itself included."""
    counted = {BEFORE_ANY_CALL: 0}
    changing = 0
    for place in places:
        changing += not is_output(place)
        counted[place] = changing
    return counted


def _match(
    line: bytes,
    patterns: Iterable[tuple[str, re.Pattern[str]]],
    *,
    chunk: Seen,
    position: Mapping[str, int],
) -> list[Event]:
    text = line.decode("utf-8", "replace")
    found = []
    for kind, pattern in patterns:
        match = pattern.search(text)
        if match is None:
            continue
        step = match["step"]
        if not (step.isascii() and step.isdigit() and len(step) <= 18):
            continue
        loss = match["loss"] if kind == "loss" else ""
        found.append(Event(kind, int(step), loss, position.get(chunk.place, -1), chunk.operation))
    return found


def odd_step(seen: Iterable[Seen], pattern: Pattern) -> str | None:
    """What the pattern took for a step that is no whole number, where it did."""
    text = b"".join(chunk.data for chunk in seen if chunk.source == pattern.source)
    for line in text.decode("utf-8", "replace").split("\n"):
        match = pattern.compiled().search(line)
        if match is not None:
            return match["step"]
    return None


def other_stream(seen: Iterable[Seen], pattern: Pattern, *, subject: Subject) -> str | None:
    """The stream or watched file that has a line for the pattern, where its own has none."""
    texts: dict[str, list[bytes]] = {}
    for chunk in seen:
        texts.setdefault(chunk.source, []).append(chunk.data)
    with _bounded(subject):
        for source, data in sorted(texts.items()):
            lines = b"".join(data).decode("utf-8", "replace").split("\n")
            if source != pattern.source and any(map(pattern.compiled().search, lines)):
                return source
    return None


def losses_of(found: Iterable[Event]) -> tuple[Event, ...]:
    """Only the losses."""
    return tuple(e for e in found if e.kind == "loss")


def acks_of(found: Iterable[Event]) -> tuple[Event, ...]:
    """Only the acknowledgements."""
    return tuple(e for e in found if e.kind == "ack")


def fewest_digits(losses: Iterable[Event]) -> int:
    """The fewest significant decimal digits in which a loss was printed (0: none printed)."""
    counts = [
        len(re.sub(r"[eE].*$", "", e.loss).replace(".", "").lstrip("+-0"))
        for e in losses
        if not re.fullmatch(r"[0-9a-f]{8}|0x.*", e.loss)
    ]
    return min(counts, default=0)


def describe_pattern(pattern: Pattern | None) -> str:
    """For messages: where and what is matched."""
    return f"{pattern.regex!r} in {pattern.source}" if pattern else "nothing"
