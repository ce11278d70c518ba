"""``durability reproduce``: one case again, step by step."""

import argparse
import shutil
import sys
from pathlib import Path
from typing import Any

from harness import reproduction, results
from harness.baseline import Baseline
from harness.bundles import bundle_name
from harness.campaign import REPORTS
from harness.cases import Case
from harness.commands.common import at_least_one
from harness.errors import CannotJudge, UsageError
from harness.minimizing import minimized
from harness.reproduction import Found, Rerun
from harness.subjects import Subject
from harness.workers import worker_pool

NOT_REPRODUCED, REPRODUCED = 0, 1
FINDINGS = Path("reports/findings")


def add_parser(subparsers: Any) -> None:
    """Add ``reproduce``."""
    parser = subparsers.add_parser(
        "reproduce",
        help="one case again, step by step",
        description="Run one case again and say whether it is reproduced (exit 1) or not (exit 0). "
        "A case is named by its id, by its eight hex digits or a unique beginning of them, by its "
        "place (adamw/point@save.renamed#2), or by a bundle.",
    )
    parser.add_argument("case", metavar="CASE_ID | BUNDLE")
    parser.add_argument("--times", type=at_least_one, default=1, metavar="N", help="run it N times")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="leave the crash state in DIR")
    parser.add_argument(
        "--minimize",
        action="store_true",
        help="search for fewer faults, an earlier place and fewer lost operations",
    )
    parser.add_argument(
        "--promote", action="store_true", help=f"keep it as a regression in {FINDINGS}/"
    )
    parser.add_argument(
        "--subject",
        type=Path,
        metavar="SUBJECT",
        help="the subject file or train spec, where the case names neither a smoke config nor an "
        "earlier run under reports/",
    )
    parser.add_argument(
        "--reports",
        type=Path,
        default=REPORTS,
        metavar="DIR",
        help="where earlier runs are looked for (default: reports)",
    )
    parser.add_argument("--no-fork", action="store_true", help="every attempt a process of its own")
    parser.set_defaults(run=run_reproduce)


def run_reproduce(arguments: argparse.Namespace) -> int:
    """Run the case; exit 1 when it is reproduced."""
    if arguments.keep is not None and arguments.keep.exists() and any(arguments.keep.iterdir()):
        raise UsageError(f"--keep {arguments.keep}: is not empty; name a new directory")
    subject = reproduction.subject_of(
        arguments.case, subject=arguments.subject, reports=arguments.reports
    )
    with worker_pool(1, env=dict(subject.env)) as (executor, temp_dir):
        prepared = reproduction.prepare(
            subject, executor=executor, temp_dir=Path(temp_dir), fork=not arguments.no_fork
        )
        found = reproduction.find(arguments.case, prepared, reports=arguments.reports)
        if arguments.minimize:
            found = minimized(found, prepared, say=_say)
        reruns = []
        for number in range(arguments.times):
            rerun = reproduction.rerun(found.case, prepared, directory=Path(temp_dir) / f"{number}")
            reruns.append(rerun)
            _show(rerun, number=number, times=arguments.times)
        last = reruns[-1]
        if arguments.keep is not None:
            _keep(last, arguments.keep)
        if arguments.promote:
            path = FINDINGS / bundle_name(found.case)
            reproduction.promote(last, prepared, path)
            print(f"promoted to {path}")
    return _verdict(found, reruns, prepared.subject, prepared.baseline)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _show(rerun: Rerun, *, number: int, times: int) -> None:
    if number == 0:
        print(rerun.timeline, end="")
        for finding in rerun.outcome.findings:
            print(f"FAIL {finding.invariant}: {finding.message}")
            if finding.expected or finding.found:
                print(f"  expected {finding.expected}\n  found    {finding.found}")
        if rerun.outcome.evidence:
            print(f"seen: {rerun.outcome.evidence}")
    if times > 1:
        print(f"run {number + 1} of {times}: {rerun.outcome.verdict}")


def _keep(rerun: Rerun, directory: Path) -> None:
    if rerun.crash_state is None:
        raise CannotJudge("there is no crash state to keep: the fault did not happen")
    shutil.copytree(rerun.crash_state, directory, symlinks=True, dirs_exist_ok=True)
    print(f"kept the crash state in {directory}")


def _verdict(found: Found, reruns: list[Rerun], subject: Subject, baseline: Baseline) -> int:
    del subject, baseline
    case: Case = found.case
    verdicts = [r.outcome.verdict for r in reruns]
    failed = verdicts.count(results.FAIL)
    if failed:
        often = f" {failed} of {len(verdicts)} times" if len(verdicts) > 1 else ""
        print(f"reproduced{often}: {case.id}")
        return REPRODUCED
    if results.INCONCLUSIVE in verdicts:
        raise CannotJudge(f"{case.id}: {reruns[-1].outcome.message}")
    print(f"not reproduced: {case.id}")
    return NOT_REPRODUCED
