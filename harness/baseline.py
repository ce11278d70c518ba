"""The baseline: the subject run uninterrupted, recorded, at least twice.

Everything a case is judged by comes from here: the losses, what each acknowledgement promised, the
final artifacts, the places and points at which a fault may strike. If two uninterrupted runs
differ, the subject is not deterministic and nothing can be said about its resumes.

The first run is a process of its own, the second a fork where the subject can be forked: that the
two agree is the proof that the fork server does not change the subject. If they do not, a third
run, again a process, tells whether the subject or the fork is to blame. A fork after which modules
were loaded for those to come (:mod:`fault_injection.forkimports`) is run once more. A program of
several threads is also run with one after another of them held back (:mod:`harness.recordings`),
and the traces are those of these runs.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_injection import forkimports, holding
from fault_injection.forkstart import is_forkable
from fault_injection.recorder import stable_names
from fault_injection.trace import Trace
from harness import tinyllm_state
from harness.errors import CannotJudge, UsageError
from harness.lints import Finding as LintFinding
from harness.lints import lint
from harness.observation import (
    Event,
    acks_of,
    aside,
    fewest_digits,
    is_output,
    losses_of,
)
from harness.promises import Promise, numbered_alike, promises_of
from harness.recordings import recorded
from harness.subjects import Subject, is_stream
from harness.uninterrupted import (
    FIRST_TIMEOUT_S,
    UninterruptedRun,
    difference_of,
    require_described,
    run_uninterrupted,
)


@dataclass(frozen=True, slots=True)
class Baseline:
    """What the uninterrupted run did. ``losses`` and ``promises`` are in order;
    ``shown`` has losses and acknowledgements together, with the operations that showed them.

    ``places`` are those of the changing calls, ``outputs`` those of the outputs that end a line.

    ``tree`` holds the sha256 of every file that both runs left alike. ``save_ends[i]`` counts the
    places up to the first loss after the i-th acknowledgement. ``threads`` is how many threads
    and processes changed something; ``written_bytes`` what was written in all. ``lasting`` are the
    command lines of processes that outlived the run. ``acks_count_steps``: acknowledgements are
    numbered as losses are. ``fork_resumes`` False: only first attempts are forks. ``step_files``
    (tinyllm) has the sha256 of each step's files, by step and name. ``sites`` has the source line
    of each place, where it is known.
    ``others`` are the recordings number 1, 2, ... of the same run with other threads slow
    (:mod:`harness.recordings`), for power losses.
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
    fork_resumes: bool = True
    threads: int = 1
    written_bytes: int = 0
    lasting: tuple[str, ...] = ()
    untraceable: str = ""
    step_files: dict[int, dict[str, str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    lints: tuple[LintFinding, ...] = ()
    follow_outputs: bool = True
    loss_digits: int = 0
    acks_count_steps: bool = False
    sites: dict[str, str] = field(default_factory=dict)
    number: int = 0
    others: tuple["Baseline", ...] = ()
    outputs: tuple[str, ...] = ()


def run_baseline(
    subject: Subject, scratch: Path, *, fork: bool = True
) -> tuple[Baseline, tuple[Trace, ...]]:
    """Run the subject uninterrupted and describe it.

    The first trace is that of the first run, or of one more where names are made at random or
    there are several threads; the others are those of ``Baseline.others``.

    The trace's blobs stay below ``scratch``. Raises :class:`UsageError` when the subject is
    wrongly described or fails by itself, :class:`CannotJudge` when it is not deterministic.
    """
    first = run_uninterrupted(subject, scratch, number=0, fork=False)
    require_described(subject, first, root=scratch / "root")
    why_not = _why_not_forked(subject) if fork else "it was asked not to"
    second = run_uninterrupted(subject, scratch, number=1, fork=why_not is None)
    forked = why_not is None
    if forked and forkimports.load_told():
        # All forks from here on find modules loaded that this one had to load: it is one of those
        # that has to agree with the process.
        second = run_uninterrupted(subject, scratch, number=4, fork=True)
    notes = [f"runs as a process, not as a fork: {why_not}"] if why_not else []
    if said := aside(first.attempt, root=str(scratch / "root")):
        notes.append(f"the uninterrupted run: {said}")
    difference = difference_of(first, second)
    if difference and forked:
        third = run_uninterrupted(subject, scratch, number=2, fork=False)
        if difference_of(first, third) is None:
            notes.append(f"runs as a process, not as a fork: as a fork {difference}")
            second, forked, difference = third, False, None
    _require_deterministic(subject, difference)
    names = _names_in_both(first, second)
    labelled = second
    if names is not None:
        # Some names are made at random. Places, and so the ids of cases and crash states, are those
        # of a run that was told which.
        labelled = run_uninterrupted(subject, scratch, number=3, fork=forked, names=names)
        _require_deterministic(subject, difference_of(first, labelled))
        first = replace(labelled, tree=first.tree)
    tree = {p: d for p, d in first.tree.items() if second.tree.get(p) == d}
    recordings = [first]
    if _threads(first) > 1:
        recordings, told = _held_back(first, subject, scratch, names=names)
        notes += told
    described = [
        _describe(
            replace(run, tree=tree), labelled, subject=subject, forked=forked, notes=tuple(notes)
        )
        for run in recordings
    ]
    traces = [run.attempt.trace for run in recordings]
    others = tuple(replace(one, number=n) for n, one in enumerate(described[1:], start=1))
    return replace(described[0], others=others), tuple(trace for trace in traces if trace)


def _held_back(
    first: UninterruptedRun, subject: Subject, scratch: Path, *, names: frozenset[bytes] | None
) -> tuple[list[UninterruptedRun], tuple[str, ...]]:
    """The runs whose traces show who waits for whom, for crash states; and what to say of it."""
    timeout_s = (subject.timeout_s or FIRST_TIMEOUT_S) + 2 * holding.BUDGET_S
    patient = replace(subject, timeout_s=timeout_s)

    def run(hold_back: tuple[int, int]) -> UninterruptedRun:
        number = 6 + hold_back[0]  # after those of the runs that are not held back, from 5 on
        held = run_uninterrupted(
            patient, scratch, number=number, fork=False, names=names, hold_back=hold_back
        )
        if why_not := difference_of(first, held):
            raise CannotJudge(why_not)
        return held

    try:
        return recorded(
            run, attempt_of=lambda held: held.attempt, written_bytes=_written_bytes(first)
        )
    except (UsageError, CannotJudge) as error:
        said = (
            "with threads held back for a moment, to see who waits for whom, the uninterrupted run "
            f"did not do the same, and power losses are those of a run without: {error}"
        )
        return [first], (said,)


def _require_deterministic(subject: Subject, difference: str | None) -> None:
    if difference is not None:
        raise CannotJudge(
            f"{subject.name}: the uninterrupted run is not deterministic: {difference}. Seed every "
            "generator, use one thread, and keep times, paths and random names out of what is "
            "compared; a resume cannot be judged before two uninterrupted runs agree"
        )


def _ack_operations(run: UninterruptedRun) -> list[int]:
    return [e.operation for e in acks_of(run.events) if e.operation >= 0]


def _save_ends(run: UninterruptedRun) -> tuple[int, ...]:
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


def _names_in_both(first: UninterruptedRun, second: UninterruptedRun) -> frozenset[bytes] | None:
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


def _sites(run: UninterruptedRun) -> dict[str, str]:
    trace = run.attempt.trace
    return {op.place: op.site for op in trace.operations if op.site} if trace else {}


def _written_bytes(run: UninterruptedRun) -> int:
    trace = run.attempt.trace
    return sum(op.size for op in trace.operations if op.blob) if trace else 0


def _threads(run: UninterruptedRun) -> int:
    """How many threads and processes changed something, as far as is known."""
    trace = run.attempt.trace
    return len({op.thread for op in trace.operations}) if trace else 1


def _order_needs_following(run: UninterruptedRun, subject: Subject) -> bool:
    """Whether it takes more than reading the pipes before each call to know what was told when."""
    trace = run.attempt.trace
    patterns = (subject.losses, subject.acknowledged)
    streams = {p.source for p in patterns if p is not None and is_stream(p.source)}
    return trace is None or _threads(run) > 1 or run.attempt.redirected or len(streams) > 1


def _describe(
    first: UninterruptedRun,
    labelled: UninterruptedRun,
    *,
    subject: Subject,
    forked: bool,
    notes: tuple[str, ...],
) -> Baseline:
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
        written_bytes=_written_bytes(first),
        lasting=labelled.lasting,
        follow_outputs=_order_needs_following(first, subject),
        untraceable=first.attempt.untraceable,
        step_files=tinyllm_state.step_files(trace) if subject.format == "tinyllm" and trace else {},
        notes=notes,
        lints=lint(trace, acknowledged=_ack_operations(first)) if trace else (),
        loss_digits=fewest_digits(losses),
        acks_count_steps=numbered_alike(first.events),
        sites=_sites(labelled),
        outputs=tuple(
            seen.place
            for seen in labelled.attempt.seen
            if is_output(seen.place) and seen.data.endswith(b"\n")
        ),
    )
