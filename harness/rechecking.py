"""Judging stored crash states again, without running the faults that made them.

A bundle holds the tree that a crash left and what the oracle knew of the attempts until then. That
tree is laid out, the subject's own resume runs on it, and today's oracle judges: after a change of
the subject, of the oracle, or of the machine. Where the last attempt of a case was no resume (an
injected error, say) the stored history itself is judged again.

The uninterrupted run is made anew, since it is what a resume is compared with. The commands of a
bundle are run as they stand in it: recheck a stranger's bundle as you would run a stranger's
program.

Not covered: whether the fault still leads to that state; that is ``durability reproduce``.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.attempt import run_attempt
from harness import states, tasks
from harness.artifacts import digests
from harness.baseline import Baseline
from harness.bundles import Bundle, read_bundle
from harness.durable import PREVIOUS
from harness.errors import CannotJudge, HarnessError, UsageError
from harness.evidence import Finding, History, Step
from harness.oracle import judge
from harness.runner import settings, step_of, tree_is_final
from harness.scratch import emptied, removed
from harness.subjects import Subject, as_json, checked, from_json, with_timeout
from harness.tinyllm_state import read_run

MOST_BUNDLES = 10_000


@dataclass(frozen=True, slots=True)
class Rechecked:
    """A bundle judged again. ``before`` and ``now`` are the broken invariants' findings then and
    today; ``problem`` says why it could not be judged, and is empty when it was."""

    path: Path
    case: str
    before: tuple[str, ...]
    now: tuple[Finding, ...] = ()
    problem: str = ""

    @property
    def verdict(self) -> str:
        """``violated``, ``holds`` or ``not judged``."""
        if self.problem:
            return "not judged"
        return "violated" if self.now else "holds"


def bundles_below(path: Path) -> list[Path]:
    """The bundles that a path means: itself, or all below it but those of earlier runs.

    Raises :class:`UsageError` when there is none, or when there are more than ``MOST_BUNDLES``.
    """
    if not path.is_dir():
        raise UsageError(f"{path} is neither a bundle nor a directory that holds bundles")
    found: list[Path] = []
    for directory, names, files in os.walk(path):
        if "case.json" in files:
            found.append(Path(directory))
            names.clear()  # a crash state may hold a file of that name
        names[:] = sorted(n for n in names if n != PREVIOUS and not n.startswith("."))
        if len(found) > MOST_BUNDLES:
            raise UsageError(f"{path} holds more than {MOST_BUNDLES:,} bundles: name a part of it")
    if not found:
        raise UsageError(f"{path} holds no bundle: a bundle is a directory with a case.json")
    return sorted(found)


def recheck(
    paths: Sequence[Path], *, executor: Executor, fork: bool, subject: Subject | None = None
) -> Iterator[Rechecked]:
    """Judge each bundle again, in the order given.

    ``subject`` replaces the bundles' own, for a program that has moved. A bundle that cannot be
    judged is told with its problem and stops nothing.
    """
    baselines: dict[str, tuple[Subject, Baseline] | HarnessError] = {}
    for path in paths:
        try:
            bundle = read_bundle(path)
        except UsageError as error:
            yield Rechecked(path, path.name, (), problem=str(error))
            continue
        before = tuple(dict.fromkeys(v.invariant for v in bundle.violations))
        try:
            wanted = subject or checked(from_json(dict(bundle.subject)), where=str(path))
            _require_judgeable(bundle)
            known, baseline = _baseline(wanted, baselines, executor=executor, fork=fork)
            now = executor.submit(judge_bundle, known, baseline, str(path)).result()
        except (HarnessError, ValueError) as error:
            yield Rechecked(path, bundle.case.id, before, problem=str(error))
            continue
        yield Rechecked(path, bundle.case.id, before, now)


def _require_judgeable(bundle: Bundle) -> None:
    if not bundle.history:
        raise CannotJudge("it has no history.json, which says what the oracle knew: reproduce it")
    if bundle.state is None:
        raise CannotJudge("its crash state is not in it: reproduce it")


def _baseline(
    subject: Subject,
    known: dict[str, tuple[Subject, Baseline] | HarnessError],
    *,
    executor: Executor,
    fork: bool,
) -> tuple[Subject, Baseline]:
    """The subject with its time limit, and its uninterrupted run; made once a subject."""
    key = repr(sorted(as_json(subject).items()))
    if key not in known:
        try:
            baseline = executor.submit(tasks.baseline_task, subject, fork, None).result()
            known[key] = (with_timeout(subject, baseline_seconds=baseline.seconds), baseline)
        except HarnessError as error:
            known[key] = error
    found = known[key]
    if isinstance(found, HarnessError):
        raise found
    return found


def judge_bundle(subject: Subject, baseline: Baseline, path: str) -> tuple[Finding, ...]:
    """Resume on a bundle's crash state and judge; run in a worker."""
    tasks.preload(subject)
    bundle = read_bundle(Path(path))
    assert bundle.state is not None
    root = emptied(tasks.scratch() / "root")
    try:
        states.unpack(bundle.state, root)
        steps = bundle.history
        if steps[-1].resuming:
            earlier = _as_read_today(steps[:-1], subject, root)
            steps = (*earlier, _resumed(subject, baseline, root, rewind=steps[-1].rewind))
        history = History(
            subject=subject,
            layer=bundle.case.layer,
            steps=steps,
            final=digests(root, subject.final, compare=subject.compare),
            tree_is_final=tree_is_final(root, baseline),
        )
        return tuple(judge(history, baseline))
    finally:
        removed(root)


def _resumed(subject: Subject, baseline: Baseline, root: Path, *, rewind: str) -> Step:
    attempt = run_attempt(
        subject.command(root=str(root), resuming=True, rewind=rewind),
        settings(subject, baseline, root=root, fault=None),
    )
    if attempt.start_error:
        raise CannotJudge(f"the program could not be started: {attempt.start_error}")
    return step_of(attempt, subject=subject, root=root, fault=None, resuming=True, rewind=rewind)


def _as_read_today(steps: Sequence[Step], subject: Subject, root: Path) -> tuple[Step, ...]:
    """The attempts before the resume; what the last of them left is read by today's reader."""
    if subject.format != "tinyllm" or not steps or steps[-1].after is None:
        return tuple(steps)
    stored = steps[-1].after
    after = replace(
        read_run(root, seen=()),
        resumed_from=stored.resumed_from,
        started_fresh=stored.started_fresh,
    )
    return (*steps[:-1], replace(steps[-1], after=after))
