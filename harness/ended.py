"""A run that was made to its end, for the cases that begin with one: made once, then laid out.

After a kill everything that was written is there, so that a copy of the tree is as good a beginning
as the tree itself, and the first attempt is the same in each of these cases. A process remembers
one, the last.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fault_injection.attempt import Attempt
from fault_injection.faults import Fault
from harness.baseline import Baseline
from harness.evidence import Step
from harness.scratch import copied
from harness.subjects import Subject


@dataclass(frozen=True, slots=True)
class Ended:
    """The first attempt of a subject, ended by ``step.fault``; ``tree`` is a copy of what it left.

    The baseline is held against as well: a program that was changed in between has another one.
    """

    subject: Subject
    baseline: Baseline
    attempt: Attempt
    step: Step
    tree: Path


_last: list[Ended] = []


def run_to_its_end(
    subject: Subject,
    baseline: Baseline,
    fault: Fault | None,
    *,
    root: Path,
    tree: Path,
    make: Callable[[], tuple[Attempt, Step]],
) -> tuple[Attempt, Step]:
    """The attempt that ``make`` makes in ``root``, or the one remembered, its tree laid out there.

    ``tree`` is where this worker has the copy.
    """
    for ended in _last:
        alike = (ended.tree, ended.subject, ended.step.fault) == (tree, subject, fault)
        if alike and ended.baseline == baseline and tree.is_dir():
            copied(tree, root)
            return ended.attempt, ended.step
    _last.clear()
    attempt, step = make()
    if step.fault_seen:
        copied(root, tree)
        _last.append(Ended(subject, baseline, attempt, step, tree))
    return attempt, step
