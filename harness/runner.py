"""The runner: one case from its first attempt to its verdict, in a worker process.

Attempt 1 starts fresh with the case's first fault, each further attempt resumes with the next one,
and a last attempt resumes with none. In a case with a rewind the second attempt is told which
checkpoint to go back to. What each attempt did becomes the oracle's history. A case whose fault was
not seen to happen is inconclusive, never a pass.

Cases with a rewind all begin with the same run to its end, which is made once (``harness.ended``);
where everything is kept it is made again.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from fault_injection.attempt import Attempt, Settings, run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness import tinyllm_state
from harness.artifacts import digests, file_digest
from harness.baseline import Baseline
from harness.cases import Case
from harness.ended import run_to_its_end
from harness.evidence import Finding, History, Step
from harness.observation import OUTPUT_LIMIT_BYTES, Event, aside, events, is_output
from harness.oracle import judge
from harness.results import FAIL, INCONCLUSIVE, PASS
from harness.scratch import copied, emptied, removed
from harness.subjects import ROOT, Subject, is_stream

TREE_LIMIT_BYTES = 512 << 20  # and what the uninterrupted run wrote, many times
TRIES = 3


@dataclass(frozen=True, slots=True)
class Kept:
    """Where :func:`run_case` leaves what a bundle needs (None: nothing is kept)."""

    directory: Path

    def state(self, number: int) -> Path:
        """The tree as attempt ``number`` (from 1) left it."""
        return self.directory / f"state-{number}"


@dataclass(frozen=True, slots=True)
class Behaviour:
    """How an attempt resumed: ``shape`` of the tree that it found, and the ``calls`` it made.

    The shape has each path with its type, and for files whether they are empty; the calls are the
    changing ones up to the first acknowledgement of what it trained, ``later`` those after it.
    """

    shape: tuple[str, ...]
    calls: tuple[str, ...]
    later: tuple[str, ...] = field(default=(), compare=False)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A case that ran. ``behaviours`` are, for each resumed attempt, the calls it made in order.

    ``unreached``: the threads of a resumed attempt took turns in another way than where the case
    was found, and never came to its place. ``attempts`` is empty unless it was asked for.
    """

    case: Case
    verdict: str
    findings: tuple[Finding, ...]
    evidence: str
    seconds: float
    timed_out: bool = False
    unreached: bool = False
    message: str = ""
    behaviours: tuple["Behaviour", ...] = ()
    resume_points: tuple[str, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    history: History | None = field(default=None, compare=False)


def run_case(
    subject: Subject,
    baseline: Baseline,
    case: Case,
    scratch: Path,
    *,
    kept: Kept | None = None,
) -> Outcome:
    """Run a case in ``scratch`` and judge it.

    A place that an attempt did not come to, because threads took turns in another way, is tried
    again: a case counts when its fault has happened.
    """
    began = time.monotonic()
    root = emptied(scratch / "root")
    ended = scratch / "ended" if case.rewind and kept is None else None
    try:
        for _ in range(1 if kept else TRIES):
            outcome = _run(subject, baseline, case, root, kept=kept, ended=ended, began=began)
            if outcome.verdict != INCONCLUSIVE:
                break
            emptied(root)
        return outcome
    finally:
        removed(root)


def _run(
    subject: Subject,
    baseline: Baseline,
    case: Case,
    root: Path,
    *,
    kept: Kept | None,
    ended: Path | None,
    began: float,
) -> Outcome:
    """One try. ``ended``: where the worker has the tree of a first attempt that ran to its end."""
    steps: list[Step] = []
    attempts: list[Attempt] = []
    shapes: list[tuple[str, ...]] = []
    missed: Fault | None = None
    for fault in (*case.faults, None):
        make = partial(
            _attempt, subject, baseline, case, root, fault=fault, number=len(steps) + 1, kept=kept
        )
        if ended is not None and not steps:
            attempt, step = run_to_its_end(
                subject, baseline, fault, root=root, tree=ended, make=make
            )
        else:
            attempt, step = make()
        attempts.append(attempt)
        steps.append(step)
        if kept is not None:
            copied(root, kept.state(len(steps)))
        if fault is None:
            break
        if not attempt.fault_seen:
            missed = fault
            break
        if fault.action is ActionKind.PAUSE:
            break
        # Asked to stop, a program may save and end with success: it has more to do then.
        to_go_on = kills(fault) or (
            fault.action is ActionKind.SIGNAL and not tree_is_final(root, baseline)
        )
        if steps[-1].succeeded and not to_go_on:
            break
        shapes.append(_shape(root))
    history = History(
        subject=subject,
        layer=case.layer,
        steps=tuple(steps),
        final=digests(root, subject.final, compare=subject.compare),
        tree_is_final=tree_is_final(root, baseline),
    )
    outlived = missed is not None and len(steps) == 1 and steps[0].succeeded
    # An attempt that outlived its fault's place may have failed for its own reasons.
    findings = () if outlived else tuple(judge(history, baseline))
    return Outcome(
        case=case,
        verdict=FAIL if findings else INCONCLUSIVE if missed else PASS,
        findings=findings,
        evidence="; ".join(
            words
            for a, s in zip(attempts, steps, strict=True)
            for words in (s.evidence, aside(a, root=str(root)))
            if words
        ),
        seconds=time.monotonic() - began,
        timed_out=any(s.timed_out for s in steps),
        unreached=missed is not None and not findings and len(steps) > 1 and baseline.threads > 1,
        message=f"the fault did not happen: {missed.describe()}" if missed else "",
        behaviours=tuple(
            _behaviour(shape, attempt, step.events)
            for shape, attempt, step in zip(shapes, attempts[1:], steps[1:], strict=True)
        ),
        resume_points=attempts[-1].points if len(attempts) > 1 else (),
        attempts=tuple(attempts) if kept is not None else (),
        history=history if kept is not None else None,
    )


def _attempt(
    subject: Subject,
    baseline: Baseline,
    case: Case,
    root: Path,
    *,
    fault: Fault | None,
    number: int,
    kept: Kept | None,
) -> tuple[Attempt, Step]:
    """Attempt ``number`` (from 1) of the case."""
    resuming, rewind = number > 1, case.rewind if number == 2 else ""
    if resuming and not baseline.fork_resumes:
        baseline = replace(baseline, fork=False)
    attempt = run_attempt(
        subject.command(root=str(root), resuming=resuming, rewind=rewind),
        settings(
            subject,
            baseline,
            root=root,
            fault=fault,
            observe_reads=kept is not None and resuming,
            record_to=str(kept.directory / "spool") if kept and not resuming else None,
            # What a rewind does is asked of an undisturbed one: its calls are killed later.
            points_only=case.layer == "point" and not case.rewind,
        ),
    )
    if attempt.start_error:
        raise RuntimeError(f"{case.id}: the program could not be started: {attempt.start_error}")
    step = step_of(
        attempt, subject=subject, root=root, fault=fault, resuming=resuming, rewind=rewind
    )
    return attempt, step


def kills(fault: Fault) -> bool:
    """Whether the fault ends the attempt by SIGKILL."""
    return fault.action is ActionKind.KILL


def settings(
    subject: Subject,
    baseline: Baseline,
    *,
    root: Path,
    fault: Fault | None,
    observe_reads: bool = False,
    record_to: str | None = None,
    points_only: bool = False,
) -> Settings:
    """The settings of one judged attempt. Points need no supervision, so they run without.

    ``points_only``: nobody asks which calls an attempt makes, a resume neither.
    """
    at_point = points_only or (fault is not None and fault.trigger is TriggerKind.POINT)
    supervise = observe_reads or record_to is not None or not at_point
    return Settings(
        root=str(root),
        timeout_s=subject.timeout_s or 30.0,
        fault=fault,
        fork=baseline.fork,
        supervise=supervise,
        observe_reads=observe_reads,
        record_to=record_to,
        report_points=fault is None,
        watch=subject.watched(),
        follow_outputs=record_to is not None
        or baseline.follow_outputs
        or (fault is not None and is_output(fault.place)),
        stable_names=baseline.stable_names,
        output_limit_bytes=OUTPUT_LIMIT_BYTES,
        lasting=baseline.lasting,
        tree_limit_bytes=TREE_LIMIT_BYTES + 16 * baseline.written_bytes,
    )


def step_of(
    attempt: Attempt,
    *,
    subject: Subject,
    root: Path,
    fault: Fault | None,
    resuming: bool,
    rewind: str = "",
) -> Step:
    """The oracle's view of an attempt that has just ended in ``root``."""
    by_itself = attempt.signal is None and not attempt.timed_out
    seen = attempt.seen
    found = events(seen, places=attempt.places, subject=subject, ended_by_itself=by_itself)
    watched = b"".join(s.data for s in seen if not is_stream(s.source))
    return Step(
        fault=fault,
        fault_seen=attempt.fault_seen,
        resuming=resuming,
        exit_code=attempt.exit_code,
        signal=attempt.signal,
        timed_out=attempt.timed_out,
        events=found,
        # Where the tree was laid out is no property of the program: it must not reach a signature.
        output=(attempt.stdout + watched + attempt.stderr)
        .decode("utf-8", "replace")
        .replace(str(root), ROOT),
        evidence=attempt.evidence,
        # After a signal the program may do more, beginning with the call that it struck.
        calls_since_ack=_calls_since_ack(attempt, found) if fault and kills(fault) else -1,
        after=tinyllm_state.read_run(root, seen=seen) if subject.format == "tinyllm" else None,
        left_behind=attempt.left_behind,
        bounded=attempt.bounded,
        rewind=rewind,
    )


def changing(places: Sequence[str]) -> tuple[str, ...]:
    """The places of changing calls, without those of outputs."""
    return tuple(p for p in places if not is_output(p))


def _calls_since_ack(attempt: Attempt, found: Sequence[Event]) -> int:
    """How many changing calls ran between the last acknowledgement and the end (-1: unknown).

    The call before which the attempt was killed has a place, and did not run.
    """
    acks = [e for e in found if e.kind == "ack"]
    if not acks or acks[-1].calls_before < 0:
        return -1
    return max(0, len(changing(attempt.places)) - acks[-1].calls_before - attempt.fault_seen)


def calls_before(found: Sequence[Event], kind: str, *, default: int) -> int:
    """How many changing calls ran before the first event of the kind."""
    return next((e.calls_before for e in found if e.kind == kind), default)


def _shape(root: Path) -> tuple[str, ...]:
    found = []
    for directory, names, files in os.walk(root):
        inside = os.path.relpath(directory, root)
        found += [f"{inside}/{name}/" for name in names]
        for name in files:
            path = os.path.join(directory, name)
            empty = not os.path.islink(path) and os.path.getsize(path) == 0
            found.append(f"{inside}/{name}{' (empty)' if empty else ''}")
    return tuple(sorted(found))


def _behaviour(shape: tuple[str, ...], attempt: Attempt, found: Sequence[Event]) -> Behaviour:
    places = changing(attempt.places)
    # What it says before it has trained is about what it found.
    first = next((n for n, e in enumerate(found) if e.kind == "loss"), 0)
    end = calls_before(found[first:], "ack", default=len(places))
    return Behaviour(shape, places[:end], places[end:])


def tree_is_final(root: Path, baseline: Baseline) -> bool:
    """Whether every compared file of the uninterrupted run's last tree stands there unchanged."""
    for name, digest in baseline.tree.items():
        path = root / name
        if not path.is_file() or file_digest(path) != digest:
            return False
    return True
