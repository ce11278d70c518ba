"""A campaign: subjects times layers, on an executor, within a budget, to one result.

For each subject the baseline comes first, then each layer's cases in a fixed order. Outcomes are
collected as they come and reported in the order in which they were planned, so that the result
does not depend on how many workers there were.
"""

import fnmatch
import shlex
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from harness import results, tasks, underway
from harness.baseline import Baseline
from harness.cases import LAYERS, Case
from harness.errors import HarnessError
from harness.results import CaseRecord, LayerCount, Violation
from harness.runner import TRIES, Outcome
from harness.signatures import signature_of
from harness.subjects import Subject

if TYPE_CHECKING:
    from harness.power.explore import Exploration
    from harness.rerun import KeptRun

T = TypeVar("T")

TIMEOUTS_OF_A_KIND = 3
MOMENT_S = 10.0  # for what is in the middle of something when the run is interrupted
REPORTS = Path("reports")  # where earlier runs are looked for


def command_for(case: Case, *, out: Path | None) -> str:
    """The command that runs a case again, from here, when its run wrote to ``out``."""
    words = ["durability", "reproduce", case.digest]
    if out is not None and not out.resolve().is_relative_to(REPORTS.resolve()):
        words += ["--reports", str(out)]
    return shlex.join(words)


class Progress(Protocol):
    """What a campaign tells while it runs."""

    def layer(self, name: str, total: int) -> None:
        """A layer of ``total`` cases begins."""
        ...

    def advance(self, *, failed: bool = False) -> None:
        """One case is done."""
        ...

    def working(self, words: str) -> None:
        """How far the cases under way have come."""
        ...


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line asked for. ``budget_s`` None: no bound."""

    faults: tuple[str, ...]
    models: tuple[str, ...] = ("posix", "ext4", "xfs", "btrfs")
    jobs: int = 2
    budget_s: float | None = None
    seed: int = 0
    filter: str | None = None
    fail_fast: bool = False
    exhaustive: bool = False
    fork: bool = True
    equal_reads: bool = True
    trace_dir: str | None = None


@dataclass(frozen=True, slots=True)
class Failed:
    """A case that failed, and what is needed to run it again (power: the exploration).

    ``kept`` is a run with everything kept, and where: it is bundled instead of another run.
    """

    subject: Subject
    baseline: Baseline
    outcome: Outcome
    exploration: "Exploration | None" = None
    kept: "tuple[str, KeptRun] | None" = None


@dataclass(slots=True)
class Campaign:
    """The state of a running campaign: what came out so far. ``out`` is where it will go.

    ``said`` are the baselines by subject, ``canary`` what became of the canary. After Ctrl-C all
    that ended is taken down, what is in the middle of it is given a moment to answer with what it
    has, and KeyboardInterrupt goes on.
    """

    options: Options
    executor: Executor
    progress: Progress
    deadline: float | None
    out: Path | None = None
    records: list[CaseRecord] = field(default_factory=list)
    violations: list[Violation] = field(default_factory=list)
    failed: list[Failed] = field(default_factory=list)
    layers: dict[str, LayerCount] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    said: dict[str, Baseline] = field(default_factory=dict)
    canary: str = ""
    stopped: bool = False
    interrupted: bool = False
    waited: bool = False

    @property
    def under_way(self) -> Path | None:
        """Where the files of :mod:`harness.underway` are, when there is a place for them."""
        return Path(self.options.trace_dir) / ".under-way" if self.options.trace_dir else None

    def told(self, name: str) -> str:
        """The file of :mod:`harness.underway` for the task ``name``; empty when there is none."""
        return underway.path_of(self.under_way, name) if self.under_way else ""

    def out_of_time(self) -> bool:
        """Whether the budget is used up."""
        return self.deadline is not None and time.monotonic() >= self.deadline

    def skip(self, subject: Subject, layer: str, reason: str) -> None:
        """Name a layer that was not run, and why. A layer that other subjects ran stays counted."""
        if layer not in self.layers:
            self.skipped[layer] = f"{subject.name}: {reason}"

    def wanted(self, cases: Iterable[Case]) -> list[Case]:
        """The cases that ``--filter`` lets through."""
        pattern = self.options.filter
        if pattern is None:
            return list(cases)
        return [c for c in cases if fnmatch.fnmatchcase(c.id, pattern)]

    def scout(
        self, subject: Subject, baseline: Baseline, layer: str, cases: Sequence[Case]
    ) -> list[Outcome]:
        """Run cases that ``--filter`` does not name, to find those that it may: none is recorded.

        Nothing is run without a filter, nor where it cannot name a case of the layer.
        """
        pattern = self.options.filter
        if pattern is None or self.stopped or not may_name(pattern, subject.name, layer):
            return []
        self.progress.layer(f"{subject.name} {layer}, to find what the filter names", len(cases))
        outcomes: dict[int, Outcome] = {}
        self._collect(subject, baseline, cases, outcomes)
        self.stopped = False  # what fails here is not what was asked for
        return [outcomes[i] for i in sorted(outcomes)]

    def run_layer(
        self, subject: Subject, baseline: Baseline, layer: str, cases: Sequence[Case]
    ) -> list[Outcome]:
        """Run a layer's cases; their outcomes in planning order."""
        chosen = self.wanted(cases)
        if not chosen or self.stopped:
            return []
        began = time.monotonic()
        self.progress.layer(f"{subject.name} {layer}", len(chosen))
        outcomes: dict[int, Outcome] = {}
        try:
            self._collect(subject, baseline, chosen, outcomes)
        except KeyboardInterrupt:
            self.interrupted = True
            raise
        finally:
            done = [outcomes[i] for i in sorted(outcomes)]
            reached = self._take_down(subject, baseline, layer, chosen, done)
            self.count(layer, reached, seconds=time.monotonic() - began)
        return reached

    def _take_down(
        self,
        subject: Subject,
        baseline: Baseline,
        layer: str,
        chosen: Sequence[Case],
        done: Sequence[Outcome],
    ) -> list[Outcome]:
        """Record what ended, and say what is left out. The outcomes that count."""
        if len(done) < len(chosen):
            self.notes.append(
                f"{subject.name} {layer}: {len(chosen) - len(done)} of {len(chosen)} cases were "
                f"not run: {self._why_cut(done)}"
            )
        reached = [outcome for outcome in done if not outcome.unreached]
        if len(reached) < len(done):
            self.notes.append(
                f"{subject.name} {layer}: {len(done) - len(reached)} of {len(done)} cases are not "
                f"counted: threads took turns in another way in each of {TRIES} tries, and did not "
                "come to the place of the second fault"
            )
        for outcome in reached:
            self.record(subject, baseline, layer, outcome)
        return reached

    def each(
        self, futures: Sequence[Future[T]], *, waiting: Callable[[], None] = lambda: None
    ) -> Iterator[tuple[int, T]]:
        """Positions and results, in order. ``waiting`` is called now and then while one waits."""
        given = 0
        try:
            for given, future in enumerate(futures):
                while not wait([future], timeout=underway.TICK_S).done:
                    waiting()
                yield given, future.result()
        except KeyboardInterrupt:
            for position, result in self.what_ended(futures[given:]):
                yield given + position, result
            raise

    def what_ended(self, futures: Sequence[Future[T]]) -> list[tuple[int, T]]:
        """Positions and results of what has ended by now, or does when it is asked to."""
        self.interrupted = True
        if self.under_way is not None:
            underway.ask_to_stop(self.under_way)
        left = [future for future in futures if not future.cancel()]
        wait(left, timeout=0 if self.waited else MOMENT_S)
        self.waited = True
        return [(n, f.result()) for n, f in enumerate(futures) if _has_result(f)]

    def _why_cut(self, done: Sequence[Outcome]) -> str:
        if self.interrupted:
            return "the run was interrupted"
        if self.out_of_time():
            return "the budget was used up"
        hung = Counter(_kind(o.case) for o in done if o.timed_out)
        if kinds := sorted(kind for kind, times in hung.items() if times >= TIMEOUTS_OF_A_KIND):
            return (
                f"{TIMEOUTS_OF_A_KIND} cases had reached their time limit with {', '.join(kinds)}, "
                "and were killed then"
            )
        return "--fail-fast, after a failure"

    def _collect(
        self,
        subject: Subject,
        baseline: Baseline,
        cases: Sequence[Case],
        outcomes: dict[int, Outcome],
    ) -> None:
        """Put outcomes in by position. Never more than two tasks a worker are under way.

        A kind of fault after which attempts hung is left alone, the others go on.
        """
        running: dict[Future[Outcome], int] = {}
        upcoming = iter(enumerate(cases))
        timeouts: Counter[str] = Counter()
        try:
            while True:
                while len(running) < 2 * self.options.jobs and not self._must_stop():
                    position, case = next(upcoming, (-1, None))
                    if case is None:
                        break
                    if timeouts[_kind(case)] >= TIMEOUTS_OF_A_KIND:
                        continue
                    future = self.executor.submit(tasks.case_task, subject, baseline, case)
                    running[future] = position
                if not running:
                    return
                finished, _ = wait(running, return_when=FIRST_COMPLETED)
                for future in finished:
                    outcome = future.result()
                    outcomes[running.pop(future)] = outcome
                    timeouts[_kind(outcome.case)] += outcome.timed_out
                    failed = outcome.verdict == results.FAIL
                    self.stopped |= failed and self.options.fail_fast
                    self.progress.advance(failed=failed)
        finally:
            for future, position in running.items():
                if not future.cancel() and _has_result(future):
                    outcomes[position] = future.result()

    def _must_stop(self) -> bool:
        return self.stopped or self.out_of_time()

    def record(
        self,
        subject: Subject,
        baseline: Baseline,
        layer: str,
        outcome: Outcome,
        *,
        kept: "tuple[str, KeptRun] | None" = None,
    ) -> None:
        """Take down what came of a case. ``kept``: see :class:`Failed`."""
        self.records.append(
            CaseRecord(
                case=outcome.case.id,
                layer=layer,
                verdict=outcome.verdict,
                config=subject.name,
                evidence=outcome.evidence,
                seconds=round(outcome.seconds, 4),
                message=outcome.message or "; ".join(f.message for f in outcome.findings),
            )
        )
        if outcome.findings:
            self.failed.append(Failed(subject, baseline, outcome, kept=kept))
        for finding in outcome.findings:
            self.violations.append(
                Violation(
                    case=outcome.case.id,
                    layer=layer,
                    invariant=finding.invariant,
                    message=finding.message,
                    config=subject.name,
                    signature=signature_of(finding),
                    crash=_crash(outcome.case, baseline),
                    evidence=outcome.evidence,
                    expected=finding.expected,
                    found=finding.found,
                    reproduce=command_for(outcome.case, out=self.out),
                )
            )

    def count(self, layer: str, done: list[Outcome], *, seconds: float) -> None:
        """Add outcomes to a layer's counts."""
        before = self.layers.get(layer, LayerCount(cases=0, failed=0))
        self.layers[layer] = LayerCount(
            cases=before.cases + len(done),
            failed=before.failed + sum(o.verdict == results.FAIL for o in done),
            inconclusive=before.inconclusive + sum(o.verdict == results.INCONCLUSIVE for o in done),
            seconds=round(before.seconds + seconds, 3),
        )


def may_name(pattern: str, subject: str, layer: str) -> bool:
    """Whether a glob can be meant for cases of the layer."""
    beginning, at, _ = pattern.partition("@")
    if at:
        return fnmatch.fnmatchcase(f"{subject}/{layer}", beginning)
    literal = pattern[: min((pattern.find(c) for c in "*?[" if c in pattern), default=None)]
    whole = f"{subject}/{layer}@"
    others = [other for other in LAYERS if other != layer and other in pattern]
    return not others and (whole.startswith(literal) or literal.startswith(whole))


def _crash(case: Case, baseline: Baseline) -> str:
    """What was done, with the source line of the call where one was struck."""
    site = baseline.sites.get(case.faults[0].place, "") if len(case.faults) == 1 else ""
    return case.describe() + (f"      {site}" if site else "")


def _kind(case: Case) -> str:
    """What is done to the attempts of a case, wherever it strikes them."""
    return ", ".join(fault.what for fault in case.faults)


def _has_result(future: Future[T]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def baselines(
    subjects: Sequence[Subject], *, options: Options, executor: Executor
) -> list[tuple[Subject, Baseline | HarnessError]]:
    """Each subject's baseline, or why there is none, in the order of the subjects."""
    futures = [
        executor.submit(
            tasks.baseline_task,
            subject,
            options.fork,
            f"{options.trace_dir}/{subject.name}" if options.trace_dir else None,
        )
        for subject in subjects
    ]
    found: list[tuple[Subject, Baseline | HarnessError]] = []
    for subject, future in zip(subjects, futures, strict=True):
        try:
            found.append((subject, future.result()))
        except HarnessError as error:
            found.append((subject, error))
    return found
