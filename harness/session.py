"""One run of a campaign command from its options to its exit code.

The order is always the same: what can run here, workers, canary, baselines, layers, bundles, the
result files, what is said. Ctrl-C and SIGTERM end the layers; everything after them still happens,
so that what was found is not lost. A second one ends the wait for what is in the middle of it; from
then on, while the results are written, a further one does nothing.
"""

import platform
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from harness import canary, results
from harness.baseline import Baseline
from harness.campaign import Campaign, Options, baselines
from harness.doctor import reasons
from harness.errors import CannotJudge, HarnessError, UsageError, is_full
from harness.failures import write_bundles
from harness.layers import Bounds, run_subject
from harness.oracle import invariants_of
from harness.progress import progress
from harness.report.text import print_lines, result_lines
from harness.report.words import count
from harness.report.write import write_all
from harness.results import Result
from harness.subjects import ROOT, Subject, with_timeout
from harness.workers import worker_pool

CANARY_CASES = 40
MAX_CALLS = 4
_TIMED = ("kill", "double", "signal", "error")  # their faults have places of recorded calls
LIBRARIES = ("torch", "numpy", "safetensors", "msgspec", "psutil")


@dataclass(frozen=True, slots=True)
class Request:
    """What a command wants run. ``named`` are the layers that the user asked for by name.

    ``drive`` runs the subjects in another way than layer by layer and returns their baselines;
    ``label`` is then what the result calls them. ``remarks`` are notes on a finished result.
    """

    command: str
    subjects: tuple[Subject, ...]
    options: Options
    out: Path
    bounds: Callable[[Subject], Bounds]
    named: tuple[str, ...] = ()
    with_canary: bool = False
    arguments: tuple[str, ...] = ()
    drive: "Callable[[Campaign, Request], dict[str, Baseline]] | None" = None
    label: str = ""
    remarks: Callable[[Result], list[str]] | None = None


def versions() -> dict[str, str]:
    """Versions of everything that a verdict may depend on."""
    found = {
        "durability": metadata.version("durability"),
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
    }
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found


def usable_layers(request: Request) -> tuple[tuple[str, ...], dict[str, str]]:
    """The layers that can run here, and why the others cannot.

    Raises :class:`CannotJudge` when one that was asked for by name cannot.
    """
    missing = reasons()
    usable, skipped = [], {}
    for layer in request.options.faults:
        reason = missing.get(layer, "")
        if reason and layer in request.named:
            raise CannotJudge(f"the layer {layer} was asked for and cannot run here: {reason}")
        if reason:
            skipped[layer] = reason
        else:
            usable.append(layer)
    return tuple(usable), skipped


def run(request: Request) -> int:
    """Run the campaign, write its files, say what was found; the exit code."""
    with _interrupting() as signals:
        return _run(request, signals)


def _run(request: Request, signals: "_Signals") -> int:
    usable, skipped = usable_layers(request)
    options = replace(request.options, faults=usable)
    request = replace(request, options=options)
    started, began = datetime.now(UTC), time.monotonic()
    with (
        worker_pool(options.jobs, env=dict(_common_env(request.subjects))) as (executor, temp_dir),
        progress(stream=sys.stderr) as shown,
    ):
        options = replace(options, trace_dir=f"{temp_dir}/traces")
        request = replace(request, options=options)
        campaign = Campaign(
            options=options,
            executor=executor,
            progress=shown,
            deadline=None if options.budget_s is None else began + options.budget_s,
            out=request.out,
            skipped=skipped,
        )
        try:
            if request.with_canary:
                campaign.canary = _canary(campaign)
            campaign.said.update((request.drive or _subjects)(campaign, request))
            if campaign.failed:
                _keep_failures(campaign, request.out, executor=executor)
        except KeyboardInterrupt:
            signals.hold()
            campaign.interrupted = True
            _keep_failures(campaign, request.out, executor=None)
    signals.hold()
    result = _result(campaign, request)
    result.started = started.isoformat(timespec="seconds")
    result.seconds = round(time.monotonic() - began, 3)
    if request.remarks is not None:
        result.notes += request.remarks(result)
    try:
        write_all(request.out, result, campaign.records)
    except OSError as error:
        if not is_full(error):
            raise
        print_lines(result_lines(result), stream=sys.stdout)  # no page to point to
        raise CannotJudge(
            f"{request.out}: no space left on the device, and the results above were not written; "
            "make room, or give another directory with --out"
        ) from error
    print_lines(result_lines(result, directory=request.out), stream=sys.stdout)
    return results.exit_code(result)


def _keep_failures(campaign: Campaign, out: Path, *, executor: Executor | None) -> None:
    """Write the bundles; where there is no room for all of them, those that there is room for."""
    try:
        write_bundles(campaign, out, versions=versions(), executor=executor)
    except (OSError, CannotJudge) as error:
        if isinstance(error, OSError) and not is_full(error):
            raise
        why = "no space left on the device" if isinstance(error, OSError) else str(error)
        campaign.notes.append(
            f"{out}: not every failure could be kept ({why}); each can be made again with its "
            "reproduce command"
        )


class _Signals:
    """SIGINT and SIGTERM interrupt the run, until they are held."""

    def __init__(self) -> None:
        self._held = False

    def hold(self) -> None:
        """Nothing is interrupted from now on: what follows is short and must be whole."""
        self._held = True

    def came(self, _number: int, _frame: object) -> None:
        """A signal came."""
        if not self._held:
            raise KeyboardInterrupt


@contextmanager
def _interrupting() -> Iterator[_Signals]:
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals  # Python handles signals in the main thread only
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, signals.came) for number in numbers]
    try:
        yield signals
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _common_env(subjects: Sequence[Subject]) -> tuple[tuple[str, str], ...]:
    """The environment in which workers import modules: that of the subject, when there is one."""
    return subjects[0].env if len(subjects) == 1 else ()


def _canary(campaign: Campaign) -> str:
    """Run the writer that must fail under the layers of this run; says how it went."""
    subject = with_timeout(canary.canary_subject(), baseline_seconds=0)
    options = replace(campaign.options, filter=None, fail_fast=False)
    aside = Campaign(
        options=options, executor=campaign.executor, progress=campaign.progress, deadline=None
    )
    [(_, baseline)] = baselines([subject], options=options, executor=campaign.executor)
    if isinstance(baseline, HarnessError):
        campaign.reasons.append(f"the canary could not be run: {baseline}")
        return "could not be run"
    run_subject(aside, subject, baseline, Bounds(CANARY_CASES, 0, 0, 0, 0))
    uncaught = [n for n, c in sorted(aside.layers.items()) if n in CAUGHT_BY and not c.failed]
    if uncaught or not aside.violations:
        campaign.reasons.append(
            "the canary did not fail"
            + (f" under {', '.join(uncaught)}" if uncaught else "")
            + ": the harness is broken, and this run proves nothing"
        )
        return "not caught"
    found = sorted({v.invariant for v in aside.violations})
    return f"caught: {', '.join(found)}"


CAUGHT_BY = ("point", "kill", "power/posix", "power/ext4", "power/xfs", "power/btrfs")


def _subjects(campaign: Campaign, request: Request) -> dict[str, Baseline]:
    said = campaign.said
    refused: list[HarnessError] = []
    for subject, answer in baselines(
        request.subjects, options=request.options, executor=campaign.executor
    ):
        if isinstance(answer, HarnessError):
            refused.append(answer)
        else:
            said[subject.name] = answer
    wrong = [e for e in refused if isinstance(e, UsageError)]
    if wrong:
        raise UsageError("\n".join(str(e) for e in wrong))
    if refused and not said:
        raise CannotJudge("\n".join(str(e) for e in refused))
    campaign.reasons += [str(e) for e in refused]
    for subject in request.subjects:
        baseline = said.get(subject.name)
        if baseline is None or campaign.stopped:
            continue
        campaign.notes += [f"{subject.name}: {note}" for note in baseline.notes]
        if baseline.untraceable:
            campaign.reasons.append(f"{subject.name}: not traceable: {baseline.untraceable}")
        run_subject(
            campaign,
            with_timeout(subject, baseline_seconds=baseline.seconds),
            baseline,
            request.bounds(subject),
        )
    return said


def _result(campaign: Campaign, request: Request) -> Result:
    said, interrupted = campaign.said, campaign.interrupted
    reasons_why = list(campaign.reasons)
    if not campaign.records and not interrupted:
        reasons_why.append(f"no case was run{_filtered(request)}")
    if unseen := [r for r in campaign.records if r.verdict == results.INCONCLUSIVE]:
        reasons_why.append(_unseen(unseen))
    if interrupted:
        reasons_why.append("interrupted")
    described = {name: _described(b) for name, b in said.items()}
    return Result(
        command=request.command,
        subject=request.label or ", ".join(s.name for s in request.subjects),
        verdict=results.FAIL
        if campaign.violations
        else results.INCONCLUSIVE
        if reasons_why
        else results.PASS,
        reasons=reasons_why,
        baseline=_together(list(described.values())),
        configs=described,
        layers=campaign.layers,
        skipped=campaign.skipped,
        violations=campaign.violations,
        lints=[lint for name, b in said.items() for lint in _lints(name, b)],
        canary=campaign.canary,
        notes=campaign.notes,
        invariants=_invariants(request),
        versions=versions(),
        seed=request.options.seed,
        interrupted=interrupted,
        loss_digits=_digits(said),
        arguments=list(request.arguments),
    )


def _unseen(records: Sequence[results.CaseRecord]) -> str:
    """Where faults were not seen to happen, and what is to be done about it."""
    said = f"the fault of {count(len(records), 'case')} was not seen to happen"
    places = (r.case.partition("@")[2].rpartition("-")[0] for r in records if r.layer in _TIMED)
    calls = sorted({place.rpartition("+")[2].partition("#")[0] for place in places})
    if not calls:
        return said
    more = f" and {len(calls) - MAX_CALLS:,} more" if len(calls) > MAX_CALLS else ""
    return (
        f"{said}, at {', '.join(calls[:MAX_CALLS])}{more}. A call that is made by the clock and "
        "not by the step comes at another time in each run: leave it out of the configuration "
        f"under test, or let it write outside {ROOT}"
    )


def _filtered(request: Request) -> str:
    """What a filter had to do with it that nothing was run."""
    pattern = request.options.filter
    if pattern is None:
        return ""
    return f": --filter {pattern!r} matches no case's id (cases.jsonl of an earlier run has them)"


def _lints(name: str, baseline: Baseline) -> list[results.Lint]:
    return [
        results.Lint(
            name=found.name,
            place=found.place,
            file=found.file,
            message=found.message,
            site=found.site,
            config=name,
        )
        for found in baseline.lints
    ]


def _described(baseline: Baseline) -> results.Baseline:
    return results.Baseline(
        steps=len({e.step for e in baseline.losses}),
        seconds=round(baseline.seconds, 3),
        operations=len(baseline.places),
        losses=[(e.step, e.loss) for e in baseline.losses[:: max(1, len(baseline.losses) // 400)]],
    )


def _together(all_of: Sequence[results.Baseline]) -> results.Baseline | None:
    if not all_of:
        return None
    if len(all_of) == 1:
        return all_of[0]
    return results.Baseline(
        steps=sum(b.steps for b in all_of),
        seconds=round(sum(b.seconds for b in all_of), 3),
        operations=sum(b.operations for b in all_of),
    )


def _invariants(request: Request) -> list[str]:
    names: list[str] = []
    for subject in request.subjects:
        for name in invariants_of(subject, layers=list(request.options.faults)):
            if name not in names:
                names.append(name)
    return names


def _digits(said: dict[str, Baseline]) -> str:
    """A sentence when losses were printed in too few digits to tell two float32 apart."""
    few = {n: b.loss_digits for n, b in said.items() if 0 < b.loss_digits < 9}
    if not few:
        return ""
    words = ", ".join(f"{name}: {digits}" for name, digits in sorted(few.items()))
    return f"losses were printed with fewer than 9 significant digits ({words})"
