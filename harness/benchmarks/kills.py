"""Kill-and-resume cases a second: through the fork server, and with a process for each attempt."""

import time
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

from harness import planning, tasks
from harness.baseline import Baseline
from harness.benchmarks.figures import Figure, Pair, median
from harness.benchmarks.sizes import Setting
from harness.cases import Case
from harness.errors import CannotJudge
from harness.results import PASS
from harness.subjects import Subject, discover, with_timeout
from harness.workers import worker_pool

ADAMW_TARGET, NUMPY_TARGET, TORCH_TARGET = 12.0, 10.0, 10.0
_TORCH_CASES = 6  # each takes seconds as processes
_IN_TURN = 6


def kills(setting: Setting) -> list[Figure]:
    """The ``adamw`` smoke config, and the numpy and the torch example."""
    subjects = setting.configs / "subjects"
    numpy_trainer = subjects / "numpy-trainer" / "subject.toml"
    torch_trainer = subjects / "torch-trainer" / "subject.toml"
    cases = setting.sizes.cases
    return [
        _rates("kills-adamw", setting.configs / "adamw.json", cases, target=ADAMW_TARGET),
        _rates("kills-numpy", numpy_trainer, cases, target=NUMPY_TARGET),
        _rates("kills-torch", torch_trainer, min(cases, _TORCH_CASES), target=TORCH_TARGET),
    ]


def _rates(name: str, path: Path, most: int, *, target: float) -> Figure:
    [subject] = discover([path])
    with worker_pool(1, env=dict(subject.env)) as (executor, _):
        baseline = executor.submit(tasks.baseline_task, subject, True, None).result()
        if not baseline.fork:
            raise CannotJudge(f"{subject.name} cannot be forked: {'; '.join(baseline.notes)}")
        subject = with_timeout(subject, baseline_seconds=baseline.seconds)
        everything = planning.kill_cases(subject, baseline)
        everything += planning.point_cases(subject, baseline)
        cases = planning.evenly(everything, most).cases
        pair = _both_ways(executor, subject, baseline, list(cases))
    return rate_figure(name, subject.name, pair, target=target, baseline_s=baseline.seconds)


def _both_ways(executor: Executor, subject: Subject, baseline: Baseline, cases: list[Case]) -> Pair:
    """Each case as forks and as processes. The first of each kind is not counted.

    They take turns by a few cases at a time: forks run one after another where they are used, and
    find what they need in the processor's caches, which starting processes fill with other things.
    """
    taken: dict[bool, list[float]] = {True: [], False: []}
    blocks = [cases[begin : begin + _IN_TURN] for begin in range(0, len(cases), _IN_TURN)]
    for number, block in enumerate([cases[:1], *blocks]):
        for fork in (True, False):
            seconds = [
                _seconds(executor, subject, replace(baseline, fork=fork), case) for case in block
            ]
            taken[fork] += seconds if number else []
    return Pair(tuple(taken[True]), tuple(taken[False]))


def _seconds(executor: Executor, subject: Subject, baseline: Baseline, case: Case) -> float:
    began = time.perf_counter()
    outcome = executor.submit(tasks.case_task, subject, baseline, case).result()
    if outcome.verdict != PASS:
        raise CannotJudge(f"{case.id} ended {outcome.verdict}: {outcome.message}")
    return time.perf_counter() - began


def rate_figure(name: str, subject: str, pair: Pair, *, target: float, baseline_s: float) -> Figure:
    """Cases a second by forks over cases a second by processes, and what bounds the former."""
    forked, started = sum(pair.first_s), sum(pair.second_s)
    cases = len(pair.first_s)
    share = min(1.0, baseline_s / median(pair.first_s))
    return Figure(
        name=name,
        what=f"{subject}: cases a second by forks / by a process for each attempt",
        value=started / forked,
        unit="x",
        target=target,
        at_most=False,
        detail=f"{cases / forked:.2f} and {cases / started:.2f} cases a second on one worker; "
        f"bound by what a case repeats of the run: it takes {median(pair.first_s):.3f} s, an "
        f"uninterrupted run as a fork, its start, supervision and end included, {baseline_s:.3f} s "
        f"({share:.0%} of it)",
        rounds=cases,
    )
