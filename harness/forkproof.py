"""Whether what is judged as forks would be judged alike as processes, where the two can differ.

All forks of a worker hash strings alike; of real processes each draws its own seed. A program that
saves in the order of a set, and resumes in the order of another, is right in every fork and wrong
in every second process. Uninterrupted runs do not show it, a resume does: of a kill case the resume
is therefore also run as a process, once, or twice where a start is cheap.

Not covered: a set of so few strings that the seeds agree by luck; tinyllm, which starts slowly and
whose own test resumes it with another seed.
"""

import os
from dataclasses import replace
from pathlib import Path

from fault_injection.faults import TriggerKind
from harness.baseline import Baseline
from harness.cases import Case, kill_case
from harness.results import FAIL, PASS
from harness.runner import run_case
from harness.subjects import Subject

_TRIES = 2


def proven(subject: Subject, baseline: Baseline, scratch: Path) -> Baseline:
    """The baseline; with ``fork`` False, and a note, when a resume fails in processes alone."""
    if not baseline.fork or not baseline.places or _has_one_seed(subject):
        return baseline
    if subject.format == "tinyllm":
        return baseline
    case = _halfway(subject, baseline)
    resumed_as_process = replace(baseline, fork_resumes=False)
    for _ in range(1 if subject.preload else _TRIES):
        outcome = run_case(subject, resumed_as_process, case, scratch)
        if outcome.verdict == FAIL:
            if run_case(subject, baseline, case, scratch).verdict != PASS:
                return baseline  # it is wrong either way
            said = (
                "runs as a process, not as a fork: as a fork a resume is right, and as a process "
                f"{outcome.findings[0].message}. What depends on the order of a set of strings "
                "does so: each process hashes them anew (PYTHONHASHSEED)"
            )
            return replace(baseline, fork=False, notes=(*baseline.notes, said))
    return baseline


def _has_one_seed(subject: Subject) -> bool:
    """Whether every process of the subject hashes alike, and so a fork as any other."""
    seed = dict(subject.env).get("PYTHONHASHSEED", os.environ.get("PYTHONHASHSEED", ""))
    return seed.isdigit()


def _halfway(subject: Subject, baseline: Baseline) -> Case:
    """A kill after about half of the saves, before a call with which something else begins."""
    ends = [end for end in baseline.save_ends if end < len(baseline.places)]
    at = ends[len(ends) // 2] if ends else len(baseline.places) // 2
    return kill_case(subject.name, "kill", TriggerKind.CALL, baseline.places[at])
