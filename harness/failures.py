"""Bundles for what failed: each signature's simplest cases are run again, and everything is kept.

The second run is also a check of the harness itself: a case that fails once and passes when it is
run again was not deterministic, and the result says so.
"""

import shutil
import tempfile
from concurrent.futures import Executor
from pathlib import Path

import msgspec

from harness import tasks
from harness.baseline import Baseline
from harness.bundles import BundledAttempt, bundle_name, write_bundle
from harness.campaign import Campaign
from harness.results import Violation
from harness.runner import Outcome
from harness.subjects import Subject, as_json

BUNDLES_PER_SIGNATURE = 1
BUNDLES_IN_ALL = 40


def write_bundles(
    campaign: Campaign, out: Path, *, versions: dict[str, str], executor: Executor
) -> None:
    """Write ``out/failures/<case>/`` and put the paths into the campaign's violations."""
    counts: dict[str, int] = {}
    bundles: dict[str, str] = {}
    by_case: dict[str, list[Violation]] = {}
    for violation in campaign.violations:
        by_case.setdefault(violation.case, []).append(violation)
    for subject, baseline, outcome in campaign.failed_outcomes:
        violations = by_case[outcome.case.id]
        fresh = [v for v in violations if counts.get(v.signature, 0) < BUNDLES_PER_SIGNATURE]
        if not fresh or len(bundles) >= BUNDLES_IN_ALL:
            continue
        for violation in violations:
            counts[violation.signature] = counts.get(violation.signature, 0) + 1
        path = out / "failures" / bundle_name(outcome.case)
        again = bundle_case(
            subject,
            baseline,
            outcome,
            path,
            violations=violations,
            versions=versions,
            executor=executor,
        )
        bundles[outcome.case.id] = str(path.relative_to(out))
        if again != outcome.verdict:
            campaign.notes.append(
                f"{outcome.case.id}: failed, and ended {again} when it was run again; the subject "
                "or the harness is not deterministic here"
            )
    campaign.violations[:] = [
        msgspec.structs.replace(v, bundle=bundles.get(v.case, v.bundle))
        for v in campaign.violations
    ]


def bundle_case(
    subject: Subject,
    baseline: Baseline,
    outcome: Outcome,
    path: Path,
    *,
    violations: list[Violation],
    versions: dict[str, str],
    executor: Executor,
) -> str:
    """Run a case again and write its bundle to ``path``; returns the verdict of this run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = Path(tempfile.mkdtemp(prefix=".kept-", dir=path.parent))
    try:
        again = executor.submit(
            tasks.kept_case_task, subject, baseline, outcome.case, str(kept)
        ).result()
        attempts = [
            BundledAttempt(
                command=list(subject.command(root="{root}", resuming=number > 0).argv),
                exit_code=attempt.exit_code,
                signal=attempt.signal,
                timed_out=attempt.timed_out,
                seconds=round(attempt.seconds, 3),
                fault=step.fault.describe() if step.fault else "",
                evidence=attempt.evidence,
                stdout=attempt.stdout,
                stderr=attempt.stderr,
            )
            for number, (attempt, step) in enumerate(
                zip(again.attempts, again.history.steps if again.history else (), strict=True)
            )
        ]
        crash = max(1, len(again.attempts) - 1)
        tree = kept / f"state-{crash}"
        write_bundle(
            path,
            outcome.case,
            subject=as_json(subject),
            config=subject.name,
            attempts=attempts,
            verdict=outcome.verdict,
            violations=violations,
            versions=versions,
            tree=tree if tree.is_dir() else None,
        )
        return again.verdict
    finally:
        shutil.rmtree(kept, ignore_errors=True)
