"""``durability recheck``: judge stored states again, without running the faults."""

import argparse
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from harness.rechecking import Rechecked, bundles_below, recheck
from harness.report.clean import one_line
from harness.stored import encode_pretty
from harness.subjects import Subject, discover
from harness.workers import worker_pool

HOLDS, VIOLATED, NOT_JUDGED = 0, 1, 3
_NOW = {"violated": "STILL VIOLATED", "holds": "holds", "not judged": "NOT JUDGED"}


def add_parser(subparsers: Any) -> None:
    """Add ``recheck``."""
    parser = subparsers.add_parser(
        "recheck",
        help="judge stored states again, without running the faults",
        description="Lay out the crash state of each bundle, run the subject's resume on it and "
        "judge with today's oracle. Exit 1 when one is still violated, 0 when none is, 3 when one "
        "could not be judged (a violation wins).",
    )
    parser.add_argument(
        "target",
        type=Path,
        metavar="DIR | BUNDLE",
        help="a bundle, or a directory with bundles below it (a run's, reports/findings)",
    )
    parser.add_argument(
        "--subject",
        type=Path,
        metavar="SUBJECT",
        help="the subject file or train spec, in place of the one that the bundles name",
    )
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument("--no-fork", action="store_true", help="every attempt a process of its own")
    parser.set_defaults(run=run_recheck)


def run_recheck(arguments: argparse.Namespace) -> int:
    """Judge every bundle; the exit code."""
    paths = bundles_below(arguments.target)
    subject: Subject | None = None
    if arguments.subject is not None:
        [subject] = discover([arguments.subject])
    done: list[Rechecked] = []
    env = dict(subject.env) if subject is not None else {}
    with worker_pool(1, env=env) as (executor, _):
        for one in recheck(paths, executor=executor, fork=not arguments.no_fork, subject=subject):
            done.append(one)
            if not arguments.json:
                print("\n".join(lines_of(one)), flush=True)
    if arguments.json:
        sys.stdout.write(encode_pretty([as_json(one) for one in done]).decode())
    else:
        print(summary_of(done))
    return exit_code(done)


def lines_of(one: Rechecked) -> list[str]:
    """A row of the table, and below it what is wrong."""
    was = ", ".join(one.before) or "nothing"
    lines = [f"{_NOW[one.verdict]:<15} {one_line(one.case)}   was {was}"]
    if one.problem:
        lines += [f"    {one_line(line)}" for line in one.problem.splitlines()[:8]]
    for finding in one.now:
        lines.append(f"    {finding.invariant}: {one_line(finding.message, limit=300)}")
    return lines


def summary_of(done: list[Rechecked]) -> str:
    """The last line: how many are still violated, hold, or could not be judged."""
    counts = Counter(one.verdict for one in done)
    return (
        f"{len(done)} stored {'state' if len(done) == 1 else 'states'}: "
        f"{counts['violated']} still violated, {counts['holds']} hold, "
        f"{counts['not judged']} not judged"
    )


def as_json(one: Rechecked) -> dict[str, Any]:
    """A row as JSON values."""
    return {
        "bundle": str(one.path),
        "case": one.case,
        "verdict": one.verdict,
        "before": list(one.before),
        "now": [{"invariant": f.invariant, "message": f.message} for f in one.now],
        "problem": one.problem,
    }


def exit_code(done: list[Rechecked]) -> int:
    """1 when one is violated, else 3 when one could not be judged, else 0."""
    verdicts = {one.verdict for one in done}
    if "violated" in verdicts:
        return VIOLATED
    return NOT_JUDGED if "not judged" in verdicts else HOLDS
