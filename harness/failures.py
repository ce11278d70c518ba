"""Bundles for what failed: each signature's simplest cases are run again, and everything is kept.

The second run is also a check of the harness itself: a case that fails once and passes when it is
run again was not deterministic, and the result says so.

A run that was interrupted runs nothing again: its bundles hold the case and the subject only, from
which ``reproduce`` makes the rest.
"""

import shutil
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path

import msgspec

from fault_injection import leftovers
from harness import tasks
from harness.bundles import BundledAttempt, bundle_name, write_bundle
from harness.campaign import Campaign, Failed
from harness.rerun import KeptRun
from harness.results import Violation
from harness.runner import Outcome
from harness.subjects import Subject, as_json

BUNDLES_PER_SIGNATURE = 1
BUNDLES_IN_ALL = 40


def write_bundles(
    campaign: Campaign, out: Path, *, versions: dict[str, str], executor: Executor | None
) -> None:
    """Write ``out/failures/<case>/`` and put the paths into the campaign's violations.

    Without an ``executor`` nothing is run again. Signatures that have a bundle get no other.
    """
    bundles: dict[str, str] = {}
    try:
        _write_bundles(campaign, out, bundles, versions=versions, executor=executor)
    finally:
        campaign.violations[:] = [
            msgspec.structs.replace(v, bundle=bundles.get(v.case, v.bundle))
            for v in campaign.violations
        ]


def _write_bundles(
    campaign: Campaign,
    out: Path,
    bundles: dict[str, str],
    *,
    versions: dict[str, str],
    executor: Executor | None,
) -> None:
    counts = Counter(v.signature for v in campaign.violations if v.bundle)
    by_case: dict[str, list[Violation]] = {}
    for violation in campaign.violations:
        by_case.setdefault(violation.case, []).append(violation)
    for failed in campaign.failed:
        violations = by_case.get(failed.outcome.case.id, [])
        fresh = [v for v in violations if counts[v.signature] < BUNDLES_PER_SIGNATURE]
        if not fresh or len(bundles) >= BUNDLES_IN_ALL:
            continue
        counts.update(violation.signature for violation in violations)
        case = failed.outcome.case
        path = out / "failures" / bundle_name(case)
        if executor is None:
            write_bundle(
                path,
                case,
                subject=as_json(failed.subject),
                config=failed.subject.name,
                attempts=(),
                verdict=failed.outcome.verdict,
                violations=violations,
                versions=versions,
            )
            bundles[case.id] = str(path.relative_to(out))
            continue
        again = bundle_case(
            failed.subject,
            failed.outcome,
            path,
            rerun=partial(_start, executor, failed),
            violations=violations,
            versions=versions,
        )
        bundles[case.id] = str(path.relative_to(out))
        if again != failed.outcome.verdict:
            campaign.notes.append(
                f"{case.id}: failed, and ended {again} when it was run again; the subject "
                "or the harness is not deterministic here"
            )


def _start(executor: Executor, failed: Failed, directory: str) -> "Future[KeptRun]":
    case = failed.outcome.case
    if failed.kept is not None:
        kept, run = failed.kept
        shutil.copytree(kept, directory, symlinks=True, dirs_exist_ok=True)
        done: Future[KeptRun] = Future()
        done.set_result(run)
        return done
    if failed.exploration is not None:
        return executor.submit(tasks.kept_state_task, failed.exploration, case, directory)
    return executor.submit(tasks.kept_case_task, failed.subject, failed.baseline, case, directory)


def bundle_case(
    subject: Subject,
    outcome: Outcome,
    path: Path,
    *,
    rerun: Callable[[str], "Future[KeptRun]"],
    violations: list[Violation],
    versions: dict[str, str],
) -> str:
    """Run a case again and write its bundle to ``path``; returns the verdict of this run.

    ``rerun`` starts it with its trees kept in the directory that it is given.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with leftovers.beside(str(path.parent), ".kept-") as directory:
        kept = Path(directory)
        again = rerun(directory).result()
        tree = crash_state(kept, again.outcome)
        write_bundle(
            path,
            outcome.case,
            subject=as_json(subject),
            config=subject.name,
            attempts=bundled_attempts(subject, again.outcome),
            verdict=outcome.verdict,
            violations=violations,
            versions=versions,
            tree=tree,
            timeline=again.timeline,
            history=again.outcome.history.steps if again.outcome.history else (),
        )
        return again.outcome.verdict


def crash_state(kept: Path, outcome: Outcome) -> Path | None:
    """The tree that the last resume began with, among those that a rerun kept."""
    tree = kept / f"state-{max(1, len(outcome.attempts) - 1)}"
    return tree if tree.is_dir() else None


def bundled_attempts(subject: Subject, outcome: Outcome) -> list[BundledAttempt]:
    """The attempts of a rerun, for a bundle. A power case has the resumed one only."""
    steps = outcome.history.steps[-len(outcome.attempts) :] if outcome.history else ()
    return [
        BundledAttempt(
            command=list(
                subject.command(root="{root}", resuming=step.resuming, rewind=step.rewind).argv
            ),
            exit_code=attempt.exit_code,
            signal=attempt.signal,
            timed_out=attempt.timed_out,
            seconds=round(attempt.seconds, 3),
            fault=step.fault.describe() if step.fault else "",
            evidence=attempt.evidence,
            stdout=attempt.stdout,
            stderr=attempt.stderr,
        )
        for attempt, step in zip(outcome.attempts, steps, strict=True)
    ]
