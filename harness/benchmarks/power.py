"""The power layer: how fast crash states are judged, how that grows, and what memory it takes."""

import time
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from pathlib import Path

from fault_injection.attempt import run_attempt
from harness import tasks
from harness.baseline import Baseline
from harness.benchmarks.figures import MIB, Figure, Pair, median, ratio_figure
from harness.benchmarks.memory import peak_bytes
from harness.benchmarks.quiet import Quiet
from harness.benchmarks.sizes import Setting
from harness.campaign import Campaign, Options, baselines
from harness.errors import CannotJudge, HarnessError
from harness.power.layer import collect_power, start_power
from harness.runner import settings
from harness.scratch import emptied
from harness.subjects import Pattern, Subject, checked, discover, with_timeout
from harness.workers import worker_pool

MODELS = ("posix", "ext4", "xfs", "btrfs")
EXPLORE_TARGET_S, JUDGE_TARGET, FILES_TARGET, MEMORY_TARGET_MIB = 10.0, 1000.0, 2.5, 2048.0
PROCESSES = 3
GROWTH_MODELS = ("posix", "xfs")
MOST_GROWTH_ROUNDS = 3
MANY_FILES = Path(__file__).resolve().parent / "programs" / "many_files.py"
SMALL_FILE_BYTES = 6000
LARGE_FILES = 8


@dataclass(frozen=True, slots=True)
class Explored:
    """An exploration of one save: wall ``seconds`` and the counts of all its models together."""

    seconds: float
    cases: int
    states: int
    judged: int
    equal_reads: int
    sampled: bool
    failed: int

    def words(self) -> str:
        """The counts."""
        return (
            f"{self.cases:,} states found, {self.states:,} distinct, {self.judged:,} run for "
            f"real, {self.equal_reads:,} answered by equal reads"
            + (", sampled" if self.sampled else "")
        )


def power(setting: Setting) -> list[Figure]:
    """One save of ``adamw`` under all four models, and how fast the states of a save are judged.

    A rate is bound by what must be run. tinyllm reads its progress file and clears leftovers away,
    so that much of what a crash leaves shows (``adamw``; ``file-tokenizer`` has the most files); a
    trainer that reads its checkpoint and no more takes two runs for the torch example, and four
    for a checkpoint of several files.
    """
    [adamw] = discover([setting.configs / "adamw.json"])
    [files] = discover([setting.configs / "file-tokenizer.json"])
    [torch] = discover([setting.configs / "subjects" / "torch-trainer" / "subject.toml"])
    shards = many_files(2 * setting.sizes.files, SMALL_FILE_BYTES, steps=2, with_torch=True)
    found, _ = _one_save(adamw, jobs=setting.jobs, starts=0)
    rates = [
        rate_figure(
            f"power-rate{suffix}", subject.name, *_one_save(subject, jobs=1, starts=PROCESSES)
        )
        for suffix, subject in (
            ("", adamw),
            ("-files", files),
            ("-torch", torch),
            ("-shards", shards),
        )
    ]
    return [exploration_figure(found, jobs=setting.jobs), *rates]


def _one_save(subject: Subject, *, jobs: int, starts: int) -> tuple[Explored, tuple[float, ...]]:
    """Explore a save of a subject, from cold; and the seconds of ``starts`` processes."""
    save = max(1, subject.keep_ckpts)  # the first with retention at work
    with worker_pool(jobs, env=dict(subject.env)) as (executor, temp):
        subject, baseline = _baseline(subject, executor, temp, jobs=jobs)
        for ready in [executor.submit(tasks.preload, subject) for _ in range(jobs)]:
            ready.result()  # to import torch in every worker is no part of exploring
        found = explored(subject, baseline, executor, temp, models=MODELS, save=save, jobs=jobs)
        once = [executor.submit(start_once, subject, baseline) for _ in range(starts)]
        return found, tuple(start.result() for start in once)


def exploration_figure(found: Explored, *, jobs: int) -> Figure:
    """The wall time of an exploration."""
    return Figure(
        name="power",
        what=f"exploring one save of adamw under {len(MODELS)} models on {jobs} workers",
        value=found.seconds,
        unit="s",
        target=EXPLORE_TARGET_S,
        detail=found.words(),
    )


def rate_figure(name: str, config: str, found: Explored, starts_s: tuple[float, ...]) -> Figure:
    """The judged states a second of one worker against one start a state."""
    start_s = median(starts_s)
    rate = found.states / found.seconds
    return Figure(
        name=name,
        what=f"judged states a second of {config} / process starts a second, on one worker",
        value=rate * start_s,
        unit="x",
        target=JUDGE_TARGET,
        at_most=False,
        detail=f"{rate:,.0f} states a second; a start with its resume takes {start_s:.2f} s "
        f"(median of {len(starts_s)}); bound by what is run: {found.words()}",
    )


def growth(setting: Setting) -> list[Figure]:
    """One save of a checkpoint with twice the files, under the widest model and a narrow one.

    Under posix the states of n names that are not yet durable are 2^n up to the bound of a crash
    place; under a model of prefixes they are n.
    """
    return [_growth(setting, model) for model in GROWTH_MODELS]


def _growth(setting: Setting, model: str) -> Figure:
    few, many = setting.sizes.files, 2 * setting.sizes.files
    seconds: dict[int, tuple[float, ...]] = {few: (), many: ()}
    words = {}
    for number in range(min(MOST_GROWTH_ROUNDS, setting.sizes.rounds)):
        for files in (few, many) if number % 2 == 0 else (many, few):
            found, _ = _of_files(files, SMALL_FILE_BYTES, model=model, steps=2)
            seconds[files] += (found.seconds,)
            words[files] = found.words()
    figure = ratio_figure(
        f"power-files-{model}",
        f"exploring one save of {many} files / of {few} files, under {model}",
        Pair(seconds[many], seconds[few]),
        target=FILES_TARGET,
    )
    detail = f"{figure.detail}; {few} files: {words[few]}; {many} files: {words[many]}"
    return replace(figure, detail=detail)


def memory(setting: Setting) -> list[Figure]:
    """What a worker takes that explores a large checkpoint."""
    size = setting.sizes.checkpoint_bytes
    found, peak = _of_files(
        LARGE_FILES, size // LARGE_FILES, model="ext4", steps=1, scratch=str(setting.scratch)
    )
    return [
        Figure(
            name="power-memory",
            what=f"peak memory of a worker that explores a checkpoint of {size / 1e9:.2f} GB "
            "(ext4)",
            value=peak / MIB,
            unit="MiB",
            target=MEMORY_TARGET_MIB,
            detail=f"{found.words()}, in {found.seconds:.1f} s",
        )
    ]


def _of_files(
    files: int, size_bytes: int, *, model: str, steps: int, scratch: str | None = None
) -> tuple[Explored, int]:
    """Explore the last save of the program of many files; also the worker's peak memory.

    ``scratch`` is where states are laid out (None: in memory where there is room).
    """
    subject = many_files(files, size_bytes, steps)
    with worker_pool(1, scratch=scratch) as (executor, temp):
        subject, baseline = _baseline(subject, executor, temp, jobs=1)
        found = explored(subject, baseline, executor, temp, models=(model,), save=steps - 1, jobs=1)
        return found, executor.submit(peak_bytes).result()


def many_files(files: int, size_bytes: int, steps: int, *, with_torch: bool = False) -> Subject:
    """The correct trainer with as many files a checkpoint, ``size_bytes`` each.

    ``with_torch``: it imports torch first, as trainers do.
    """
    words: tuple[str, ...] = ("python", str(MANY_FILES), "{root}")
    words += (str(files), str(size_bytes), str(steps), *(["torch"] if with_torch else []))
    return checked(
        Subject(
            name=f"many-files-{files}",
            preload=("torch",) if with_torch else (),
            env=(("OMP_NUM_THREADS", "1"),) if with_torch else (),
            train=words,
            resume=words,
            cwd=str(MANY_FILES.parent),
            losses=Pattern("stdout", r"^step=(?P<step>\d+) loss=(?P<loss>\S+)"),
            acknowledged=Pattern("stdout", r"^saved step=(?P<step>\d+)"),
        ),
        where="the program of many files",
    )


def explored(
    subject: Subject,
    baseline: Baseline,
    executor: Executor,
    temp: str,
    *,
    models: tuple[str, ...],
    save: int,
    jobs: int,
) -> Explored:
    """Explore one save of a correct program, from cold. Raises CannotJudge for a violation."""
    campaign = Campaign(
        options=_options(models, temp, jobs=jobs),
        executor=executor,
        progress=Quiet(),
        deadline=None,
    )
    began = time.perf_counter()
    started = start_power(campaign, subject, baseline, models, saves=(save,))
    if started is None:
        raise CannotJudge(f"{subject.name} cannot be explored: {campaign.skipped}")
    collect_power(campaign, started)
    seconds = time.perf_counter() - began
    if campaign.violations:
        raise CannotJudge(f"{subject.name}: {campaign.violations[0].message}")
    counts = list(campaign.layers.values())
    return Explored(
        seconds=seconds,
        cases=sum(c.cases for c in counts),
        states=sum(c.states for c in counts),
        judged=sum(c.judged for c in counts),
        equal_reads=sum(c.equal_reads for c in counts),
        sampled=any(c.sampled for c in counts),
        failed=sum(c.failed for c in counts),
    )


def _options(models: tuple[str, ...], temp: str, *, jobs: int) -> Options:
    faults = tuple(f"power/{model}" for model in models)
    return Options(faults=faults, models=models, jobs=jobs, trace_dir=f"{temp}/traces")


def _baseline(
    subject: Subject, executor: Executor, temp: str, *, jobs: int
) -> tuple[Subject, Baseline]:
    options = _options(MODELS, temp, jobs=jobs)
    [(_, baseline)] = baselines([subject], options=options, executor=executor)
    if isinstance(baseline, HarnessError):
        raise baseline
    return with_timeout(subject, baseline_seconds=baseline.seconds), baseline


def start_once(subject: Subject, baseline: Baseline) -> float:
    """The seconds of one process that starts, resumes and ends; run in a worker."""
    root = emptied(tasks.scratch() / "root")
    began = time.perf_counter()
    attempt = run_attempt(
        subject.command(root=str(root), resuming=True),
        replace(settings(subject, baseline, root=root, fault=None), fork=False),
    )
    if attempt.exit_code != 0:
        raise CannotJudge(f"{subject.name} could not be started: {attempt.stderr!r}")
    return time.perf_counter() - began
