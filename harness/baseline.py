"""The baseline: the subject run uninterrupted, recorded, at least twice.

Everything a case is judged by comes from here: the losses, what each acknowledgement promised, the
final artifacts, the places and points at which a fault may strike. If two uninterrupted runs
differ, the subject is not deterministic and nothing can be said about its resumes.

The first run is a process of its own, the second a fork where the subject can be forked: that the
two agree is the proof that the fork server does not change the subject. If they do not, a third
run, again a process, tells whether the subject or the fork is to blame. A fork after which modules
were loaded for those to come (:mod:`fault_injection.forkimports`) is run once more. A program of
several threads is also run with some of them held back (:mod:`fault_injection.holding`), and the
trace is that of this run.
"""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_injection import forkimports, holding
from fault_injection.attempt import Attempt, Settings, run_attempt
from fault_injection.forkstart import is_forkable
from fault_injection.recorder import stable_names
from fault_injection.settings import FOR_WANT_OF_SPACE
from fault_injection.trace import Trace
from harness import tinyllm_state
from harness.artifacts import digests, matching
from harness.errors import CannotJudge, UsageError
from harness.lints import Finding as LintFinding
from harness.lints import lint
from harness.observation import (
    OUTPUT_LIMIT_BYTES,
    Event,
    acks_of,
    aside,
    cut_of,
    describe_pattern,
    events,
    fewest_digits,
    is_output,
    losses_of,
    odd_step,
)
from harness.scratch import emptied
from harness.subjects import ROOT, Pattern, Subject, is_stream

FIRST_TIMEOUT_S = 600.0
TAIL_LINES = 12
ROOM_BYTES = 256 << 20  # with less, a bound is the machine's and not the program's
_NUMBER = re.compile(r"[0-9]|nan|inf", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Promise:
    """What an acknowledgement promised: after it the next loss printed was ``losses[next_loss]``.

    ``next_loss`` is ``len(losses)`` when none followed. An acknowledgement may come late (a
    background writer): where acknowledgements and losses are numbered alike, it promises no more
    than its own step, so that ``next_loss`` is at most the first loss of a later step.
    """

    step: int
    next_loss: int
    operation: int


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the uninterrupted run did. ``losses`` and ``promises`` are in order;
    ``shown`` has losses and acknowledgements together, with the operations that showed them.

    ``places`` are those of the changing calls, ``outputs`` those of the outputs that end a line.

    ``tree`` holds the sha256 of every file that both runs left alike. ``save_ends[i]`` counts the
    places up to the first loss after the i-th acknowledgement. ``threads`` is how many threads
    and processes changed something; ``written_bytes`` what was written in all. ``lasting`` are the
    command lines of processes that outlived the run. ``step_files`` (tinyllm) has the sha256 of
    each step's files, by step and name.
    """

    losses: tuple[Event, ...]
    shown: tuple[Event, ...]
    promises: tuple[Promise, ...]
    final: dict[str, str]
    tree: dict[str, str]
    places: tuple[str, ...]
    save_ends: tuple[int, ...]
    points: tuple[str, ...]
    stable_names: frozenset[bytes] | None
    operations: int
    seconds: float
    fork: bool
    threads: int = 1
    written_bytes: int = 0
    lasting: tuple[str, ...] = ()
    untraceable: str = ""
    step_files: dict[int, dict[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lints: tuple[LintFinding, ...] = ()
    follow_outputs: bool = True
    loss_digits: int = 0
    outputs: tuple[str, ...] = ()

    def loss_index(self, step: int) -> int | None:
        """Where the loss of ``step`` first stands in ``losses``."""
        return next((i for i, e in enumerate(self.losses) if e.step == step), None)


@dataclass(frozen=True, slots=True)
class _Run:
    attempt: Attempt
    events: tuple[Event, ...]
    final: dict[str, str]
    tree: dict[str, str]
    stable_names: frozenset[bytes] | None
    lasting: tuple[str, ...]


def run_baseline(
    subject: Subject, scratch: Path, *, fork: bool = True
) -> tuple[Baseline, Trace | None]:
    """Run the subject uninterrupted and describe it; the trace is that of the first run, or of one
    more where names are made at random.

    The trace's blobs stay below ``scratch``. Raises :class:`UsageError` when the subject is
    wrongly described or fails by itself, :class:`CannotJudge` when it is not deterministic.
    """
    first = _run(subject, scratch, number=0, fork=False)
    _require_described(subject, first, root=scratch / "root")
    why_not = _why_not_forked(subject) if fork else "it was asked not to"
    second = _run(subject, scratch, number=1, fork=why_not is None)
    forked = why_not is None
    if forked and forkimports.load_told():
        # All forks from here on find modules loaded that this one had to load: it is one of those
        # that has to agree with the process.
        second = _run(subject, scratch, number=4, fork=True)
    notes = [f"runs as a process, not as a fork: {why_not}"] if why_not else []
    if said := aside(first.attempt, root=str(scratch / "root")):
        notes.append(f"the uninterrupted run: {said}")
    difference = _difference(first, second)
    if difference and forked:
        third = _run(subject, scratch, number=2, fork=False)
        if _difference(first, third) is None:
            notes.append(f"runs as a process, not as a fork: as a fork {difference}")
            second, forked, difference = third, False, None
    _require_deterministic(subject, difference)
    names = _names_in_both(first, second)
    labelled = second
    if names is not None:
        # Some names are made at random. Places, and so the ids of cases and crash states, are those
        # of a run that was told which.
        labelled = _run(subject, scratch, number=3, fork=forked, names=names)
        _require_deterministic(subject, _difference(first, labelled))
        first = replace(labelled, tree=first.tree)
    tree = {p: d for p, d in first.tree.items() if second.tree.get(p) == d}
    if _threads(first) > 1:
        held, why_not = _held_back(first, subject, scratch, names=names)
        first = held or first
        notes += [why_not] if why_not else []
    first = replace(first, tree=tree)
    return _describe(first, labelled, subject=subject, forked=forked, notes=tuple(notes))


def _held_back(
    first: _Run, subject: Subject, scratch: Path, *, names: frozenset[bytes] | None
) -> tuple[_Run | None, str]:
    """A run whose trace shows who waits for whom, for crash states; or why there is none."""
    patient = replace(subject, timeout_s=(subject.timeout_s or FIRST_TIMEOUT_S) + holding.BUDGET_S)
    try:
        held = _run(patient, scratch, number=5, fork=False, names=names, hold_threads=True)
        why_not = _difference(first, held)
    except (UsageError, CannotJudge) as error:
        held, why_not = None, str(error)
    if why_not is None:
        return held, ""
    return None, (
        "with threads held back for a moment, to see who waits for whom, the uninterrupted run did "
        f"not do the same, and power losses are those of a run without: {why_not}"
    )


def _require_deterministic(subject: Subject, difference: str | None) -> None:
    if difference is not None:
        raise CannotJudge(
            f"{subject.name}: the uninterrupted run is not deterministic: {difference}. Seed every "
            "generator, use one thread, and keep times, paths and random names out of what is "
            "compared; a resume cannot be judged before two uninterrupted runs agree"
        )


def _ack_operations(run: _Run) -> list[int]:
    return [e.operation for e in acks_of(run.events) if e.operation >= 0]


def promises_of(events: Sequence[Event]) -> tuple[Promise, ...]:
    """What each acknowledgement promised, learned from an uninterrupted run."""
    losses = losses_of(events)
    alike = _numbered_alike(events)
    promises = []
    printed = 0
    for event in events:
        if event.kind == "loss":
            printed += 1
            continue
        following = printed
        if alike:
            later = (i for i, loss in enumerate(losses) if loss.step > event.step)
            following = min(printed, next(later, len(losses)))
        promises.append(Promise(event.step, following, event.operation))
    return tuple(promises)


def _numbered_alike(events: Sequence[Event]) -> bool:
    """Whether acknowledgements count in the losses' steps, and not in epochs or tokens.

    Then the last one's number is about that of the last loss, or the numbers of both advance alike
    from one acknowledgement to the next, while losses advance at all: a background writer's last
    words come together at the end. A single one that came late shows no advance: it counts steps
    when it names one that was printed, other than the first, with which every count may begin.
    """
    steps = [event.step for event in events if event.kind == "loss"]
    acks: list[tuple[int, int]] = []
    last_step = 0
    for event in events:
        if event.kind == "loss":
            last_step = event.step
        else:
            acks.append((event.step, last_step))
    if not steps or not acks:
        return False
    before = steps[0] - 1
    if _about_one(acks[-1][0] - before, steps[-1] - before):
        return True
    if len(acks) == 1:
        [(ack, last)] = acks
        return steps[0] < ack <= last
    advances = [
        (ack - earlier_ack, loss - earlier_loss)
        for (earlier_ack, earlier_loss), (ack, loss) in itertools.pairwise(acks)
        if loss > earlier_loss
    ]
    return _about_one(sum(a for a, _ in advances), sum(b for _, b in advances))


def _about_one(one: int, other: int) -> bool:
    return other > 0 and 0.5 < one / other < 2


def _save_ends(run: _Run) -> tuple[int, ...]:
    """For each acknowledgement how many changing calls there were up to the next loss."""
    calls = sum(not is_output(p) for p in run.attempt.places)
    ends = []
    for position, event in enumerate(run.events):
        if event.kind == "ack":
            after = (e for e in run.events[position:] if e.kind == "loss")
            following = next(after, None)
            ends.append(
                calls if following is None else max(event.calls_before, following.calls_before)
            )
    return tuple(ends)


def _names_in_both(first: _Run, second: _Run) -> frozenset[bytes] | None:
    """The names that both runs used, or None when they used the same ones."""
    if first.attempt.trace is None or second.attempt.trace is None:
        return None
    if sorted(first.attempt.places) == sorted(second.attempt.places):
        return None
    return stable_names(first.attempt.trace, second.attempt.trace)


def _why_not_forked(subject: Subject) -> str | None:
    """Why attempts cannot be forks; None when they can, the fresh ones and the resumed ones."""
    for resuming in (False, True):
        command = subject.command(root="/", resuming=resuming)
        why_not = is_forkable(command.argv, env=dict(command.env), cwd=command.cwd)
        if why_not is not None:
            return why_not
    return None


def _room_bytes(directory: Path) -> int:
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


def _run(
    subject: Subject,
    scratch: Path,
    *,
    number: int,
    fork: bool,
    names: frozenset[bytes] | None = None,
    hold_threads: bool = False,
) -> _Run:
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
            hold_threads=hold_threads,
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
            f"have no more here, since there is little room below {scratch.parent}; set TMPDIR to "
            "a directory with more"
        )
    if attempt.bounded:
        raise UsageError(f"{subject.name}: the uninterrupted run was stopped: {attempt.bounded}")
    if attempt.timed_out:
        raise UsageError(
            f"{subject.name}: the uninterrupted run did not end within "
            f"{subject.timeout_s or FIRST_TIMEOUT_S:g} s; raise timeout in the subject"
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
    return _Run(
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


def _require_described(subject: Subject, run: _Run, *, root: Path) -> None:
    name = subject.name
    patterns = (subject.losses, subject.acknowledged)
    for source in cut_of(run.attempt):
        if any(pattern and pattern.source == source for pattern in patterns):
            raise CannotJudge(
                f"{name}: the uninterrupted run wrote more than {OUTPUT_LIMIT_BYTES:,} bytes to "
                f"{source}, and what comes after them is not kept, losses and acknowledgements "
                "included. Let it print less, or print those elsewhere"
            )
    losses, acks = losses_of(run.events), acks_of(run.events)
    changed = any(not is_output(place) for place in run.attempt.places)
    if not changed and not any(os.scandir(root)):
        raise UsageError(
            f"{name}: the program wrote nothing under {ROOT}. Check that the argument with {ROOT} "
            "is where it puts its checkpoints"
        )
    for what, pattern, found in (
        ("losses", patterns[0], losses),
        ("acknowledgements", patterns[1], acks),
    ):
        if pattern and not found:
            raise UsageError(_nothing_found(name, what, pattern, run))
    if words := next((e for e in losses if not _NUMBER.search(e.loss)), None):
        raise UsageError(
            f"{name}: the losses' pattern takes {words.loss!r} for the loss of step {words.step}, "
            f"and that is no number. Let (?P<loss>...) in {describe_pattern(subject.losses)} catch "
            r"what is printed for it, as in loss=(?P<loss>\S+)"
        )
    back = next(((a, b) for a, b in itertools.pairwise(losses) if b.step < a.step), None)
    if subject.losses and back is not None:
        raise UsageError(
            f"{name}: the losses' pattern found step {back[1].step} after step {back[0].step}: it "
            "also takes lines that are no step's loss (a summary), or steps are counted anew in "
            f"each epoch. Let {describe_pattern(subject.losses)} match the lines of steps only, "
            "counted through the whole run"
        )
    for glob, paths in matching(root, subject.final).items():
        if not paths:
            raise UsageError(
                f"{name}: [final] files {glob!r} matches nothing below {ROOT} after the "
                "uninterrupted run"
            )
    if losses and acks:
        last = max(e.step for e in losses)
        beyond = [e.step for e in acks if e.step > last + 1]
        if beyond:
            raise UsageError(
                f"{name}: step {beyond[0]} is acknowledged as saved, but the last loss is of step "
                f"{last}: there is no such step. Check the group (?P<step>...) of both patterns"
            )


def _nothing_found(name: str, what: str, pattern: Pattern, run: _Run) -> str:
    odd = odd_step(run.attempt.seen, pattern)
    if odd is not None:
        return (
            f"{name}: the {what}' pattern, {describe_pattern(pattern)}, takes {odd!r} for a step, "
            r"and that is no whole number. Let it catch the digits, as in step=(?P<step>\d+)"
        )
    return (
        f"{name}: no line matched the {what}' pattern, {describe_pattern(pattern)}. "
        f"Its last words:\n{tail(run.attempt)}"
    )


def _difference(a: _Run, b: _Run) -> str | None:
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


def _threads(run: _Run) -> int:
    """How many threads and processes changed something, as far as is known."""
    trace = run.attempt.trace
    return len({op.thread for op in trace.operations}) if trace else 1


def _order_needs_following(run: _Run, subject: Subject) -> bool:
    """Whether it takes more than reading the pipes before each call to know what was told when."""
    trace = run.attempt.trace
    patterns = (subject.losses, subject.acknowledged)
    streams = {p.source for p in patterns if p is not None and is_stream(p.source)}
    return trace is None or _threads(run) > 1 or run.attempt.redirected or len(streams) > 1


def _describe(
    first: _Run, labelled: _Run, *, subject: Subject, forked: bool, notes: tuple[str, ...]
) -> tuple[Baseline, Trace | None]:
    trace = first.attempt.trace
    losses = losses_of(first.events)
    return Baseline(
        losses=losses,
        shown=first.events,
        promises=promises_of(first.events),
        final=first.final,
        tree=first.tree,
        places=tuple(p for p in labelled.attempt.places if not is_output(p)),
        save_ends=_save_ends(labelled),
        points=first.attempt.points,
        stable_names=labelled.stable_names,
        operations=len(trace.operations) if trace else 0,
        seconds=labelled.attempt.seconds,
        fork=forked,
        threads=_threads(first),
        written_bytes=sum(op.size for op in trace.operations if op.blob) if trace else 0,
        lasting=labelled.lasting,
        follow_outputs=_order_needs_following(first, subject),
        untraceable=first.attempt.untraceable,
        step_files=tinyllm_state.step_files(trace) if subject.format == "tinyllm" and trace else {},
        notes=notes,
        lints=lint(trace, acknowledged=_ack_operations(first)) if trace else (),
        loss_digits=fewest_digits(losses),
        outputs=tuple(
            seen.place
            for seen in labelled.attempt.seen
            if is_output(seen.place) and seen.data.endswith(b"\n")
        ),
    ), trace
