"""One uninterrupted run of a subject, and what can be wrong with it or with its description.

What it raises says what to change: :class:`UsageError` where the subject is wrongly described or
fails by itself, :class:`CannotJudge` where the machine or a bound is in the way.
"""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_injection.attempt import Attempt, Settings, run_attempt
from fault_injection.settings import FOR_WANT_OF_SPACE
from harness.artifacts import digests, matching
from harness.errors import CannotJudge, UsageError
from harness.observation import (
    OUTPUT_LIMIT_BYTES,
    Event,
    acks_of,
    cut_of,
    describe_pattern,
    events,
    is_output,
    losses_of,
    odd_step,
    other_stream,
)
from harness.scratch import emptied
from harness.subjects import ROOT, Pattern, Subject

FIRST_TIMEOUT_S = 600.0
TAIL_LINES = 12
NO_ROOM_BYTES = 1 << 20
ROOM_BYTES = 256 << 20  # with less, a bound is the machine's and not the program's
_NUMBER = re.compile(r"[0-9]|nan|inf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class UninterruptedRun:
    """What an uninterrupted run did, and what it left: ``final`` by the subject's comparison, and
    ``tree`` with the sha256 of every file. ``lasting`` are the processes that outlived it."""

    attempt: Attempt
    events: tuple[Event, ...]
    final: dict[str, str]
    tree: dict[str, str]
    stable_names: frozenset[bytes] | None
    lasting: tuple[str, ...]


def _room_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def run_uninterrupted(
    subject: Subject,
    scratch: Path,
    *,
    number: int,
    fork: bool,
    names: frozenset[bytes] | None = None,
    hold_back: tuple[int, int] | None = None,
) -> UninterruptedRun:
    """Run the subject from nothing to its end, recorded; its spool is ``scratch/spool-<number>``.

    ``names`` are those that are not made at random. With ``hold_back`` a thread is slow
    (:mod:`fault_injection.holding`). Raises :class:`UsageError` when it cannot be started, fails
    or meets a bound of its own, :class:`CannotJudge` when the machine has too little room.
    """
    root = emptied(scratch / "root")
    attempt = run_attempt(
        subject.command(root=str(root), resuming=False),
        Settings(
            root=str(root),
            timeout_s=subject.timeout_s or FIRST_TIMEOUT_S,
            fork=fork,
            record_to=str(scratch / f"spool-{number}"),
            report_points=True,
            watch=subject.watched(),
            hold_back=hold_back,
            stable_names=names,
            output_limit_bytes=OUTPUT_LIMIT_BYTES,
            tree_limit_bytes=_room_bytes(root) // 4,  # it is kept in the spool as well
        ),
    )
    if attempt.start_error:
        raise UsageError(f"{subject.name}: the program could not be started: {attempt.start_error}")
    if attempt.bounded.endswith(FOR_WANT_OF_SPACE) and _room_bytes(root) < ROOM_BYTES:
        raise CannotJudge(
            f"{subject.name}: the uninterrupted run was stopped: {attempt.bounded}. One tree may "
            f"have no more here, since there is little room below {scratch.parent}; set "
            "DURABILITY_RUNTIME_DIR to a directory with more"
        )
    if attempt.bounded:
        raise UsageError(f"{subject.name}: the uninterrupted run was stopped: {attempt.bounded}")
    if attempt.timed_out:
        raise UsageError(
            f"{subject.name}: the uninterrupted run did not end within "
            f"{subject.timeout_s or FIRST_TIMEOUT_S:g} s; raise timeout in the subject"
        )
    if attempt.exit_code != 0 and _room_bytes(root) < NO_ROOM_BYTES:
        raise CannotJudge(
            f"{subject.name}: the uninterrupted run failed, and there is hardly any room below "
            f"{scratch.parent}; set DURABILITY_RUNTIME_DIR to a directory with more. Its last "
            f"words:\n{tail(attempt)}"
        )
    if attempt.exit_code != 0:
        how = (
            f"exit code {attempt.exit_code}"
            if attempt.signal is None
            else f"signal {attempt.signal}"
        )
        raise UsageError(
            f"{subject.name}: the uninterrupted run failed with {how}, so there is nothing to "
            f"compare with. Its last words:\n{tail(attempt)}"
        )
    return UninterruptedRun(
        attempt=attempt,
        events=events(attempt.seen, places=attempt.places, subject=subject, ended_by_itself=True),
        final=digests(root, subject.final, compare=subject.compare),
        tree=digests(root, ("**/*",), compare="bytes"),
        stable_names=names,
        lasting=tuple(left.replace(str(root), ROOT) for left in attempt.left_behind),
    )


def tail(attempt: Attempt) -> str:
    """The last lines of an attempt's stderr, or of its stdout when stderr is empty, indented."""
    text = (attempt.stderr.strip() or attempt.stdout.strip()).decode("utf-8", "replace")
    lines = text.splitlines()[-TAIL_LINES:] or ["(it printed nothing)"]
    return "\n".join(f"    {line[:300]}" for line in lines)


def require_described(subject: Subject, run: UninterruptedRun, *, root: Path) -> None:
    """Raise :class:`UsageError` where the subject's description does not fit what the run did, and
    :class:`CannotJudge` where its output was cut."""
    _require_whole_output(subject, run)
    if all(is_output(place) for place in run.attempt.places) and not any(os.scandir(root)):
        raise UsageError(
            f"{subject.name}: the program wrote nothing under {ROOT}. Check that the argument with "
            f"{ROOT} is where it puts its checkpoints"
        )
    losses, acks = losses_of(run.events), acks_of(run.events)
    for what, pattern, found in (
        ("losses", subject.losses, losses),
        ("acknowledgements", subject.acknowledged, acks),
    ):
        if pattern and not found:
            raise UsageError(_nothing_found(subject, what, pattern, run))
    _require_losses(subject, losses)
    if losses and acks:
        last = max(e.step for e in losses)
        beyond = [e.step for e in acks if e.step > last + 1]
        if beyond:
            raise UsageError(
                f"{subject.name}: step {beyond[0]} is acknowledged as saved, but the last loss is "
                f"of step {last}: there is no such step. Check the group (?P<step>...) of both "
                "patterns"
            )
    for glob, paths in matching(root, subject.final).items():
        if not paths:
            raise UsageError(
                f"{subject.name}: [final] files {glob!r} matches nothing below {ROOT} after the "
                "uninterrupted run"
            )


def _require_whole_output(subject: Subject, run: UninterruptedRun) -> None:
    patterns = (subject.losses, subject.acknowledged)
    for source in cut_of(run.attempt):
        if any(pattern and pattern.source == source for pattern in patterns):
            raise CannotJudge(
                f"{subject.name}: the uninterrupted run wrote more than {OUTPUT_LIMIT_BYTES:,} "
                f"bytes to {source}, and what comes after them is not kept, losses and "
                "acknowledgements included. Let it print less, or print those elsewhere"
            )


def _require_losses(subject: Subject, losses: Sequence[Event]) -> None:
    """That what the losses' pattern takes are numbers, of steps that go up."""
    if subject.losses is None:
        return
    if words := next((e for e in losses if not _NUMBER.search(e.loss)), None):
        raise UsageError(
            f"{subject.name}: the losses' pattern takes {words.loss!r} for the loss of step "
            f"{words.step}, and that is no number. Let (?P<loss>...) in "
            f"{describe_pattern(subject.losses)} catch what is printed for it, as in "
            r"loss=(?P<loss>\S+)"
        )
    back = next(((a, b) for a, b in itertools.pairwise(losses) if b.step < a.step), None)
    if back is not None:
        raise UsageError(
            f"{subject.name}: the losses' pattern found step {back[1].step} after step "
            f"{back[0].step}: it also takes lines that are no step's loss (a summary), or steps "
            f"are counted anew in each epoch. Let {describe_pattern(subject.losses)} match the "
            "lines of steps only, counted through the whole run"
        )


def _nothing_found(subject: Subject, what: str, pattern: Pattern, run: UninterruptedRun) -> str:
    odd = odd_step(run.attempt.seen, pattern)
    if odd is not None:
        return (
            f"{subject.name}: the {what}' pattern, {describe_pattern(pattern)}, takes {odd!r} for "
            r"a step, and that is no whole number. Let it catch the digits: step=(?P<step>\d+)"
        )
    other = other_stream(run.attempt.seen, pattern, subject=subject)
    option = "--loss-from" if what == "losses" else "--ack-from"
    hint = f'{other} has lines that match: say from = "{other}" (or {option} {other}). '
    return (
        f"{subject.name}: no line matched the {what}' pattern, {describe_pattern(pattern)}. "
        f"{hint if other else ''}Its last words:\n{tail(run.attempt)}"
    )


def difference_of(a: UninterruptedRun, b: UninterruptedRun) -> str | None:
    """The first difference between two uninterrupted runs, in words."""
    for x, y in zip(losses_of(a.events), losses_of(b.events), strict=False):
        if (x.step, x.loss) != (y.step, y.loss):
            return f"step {x.step} had loss {x.loss}, then step {y.step} had loss {y.loss}"
    for kind, of in (("losses", losses_of), ("acknowledgements", acks_of)):
        n, m = len(of(a.events)), len(of(b.events))
        if n != m:
            return f"there were {n} {kind}, then {m}"
    for x, y in zip(acks_of(a.events), acks_of(b.events), strict=True):
        if x.step != y.step:
            return f"step {x.step} was acknowledged, then step {y.step} in its place"
    for path in sorted(a.final.keys() | b.final.keys()):
        if a.final.get(path) != b.final.get(path):
            return f"the final file {path} differs"
    return None
