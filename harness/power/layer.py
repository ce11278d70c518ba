"""The power layer in a campaign: explorations shared out to workers, their failures as cases."""

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from fault_injection.crash_states import DEFAULT_BOUND
from harness import planning, results, tasks, underway
from harness.baseline import Baseline
from harness.campaign import Campaign, Failed, command_for
from harness.cases import Case, at_state
from harness.evidence import Finding
from harness.power.explore import PLENTY, Exploration, Explored, Failure, place_case
from harness.results import CaseRecord, LayerCount, Violation
from harness.runner import Outcome
from harness.signatures import signature_of
from harness.subjects import Subject

RECORDS_PER_SIGNATURE = 20
PIECES_A_WORKER = 16  # states lie unevenly along a run; what a worker has learned it keeps


@dataclass(slots=True)
class Piece:
    """The explorations of one stretch, in one task; ``told`` is its file of ``underway``."""

    explorations: tuple[Exploration, ...]
    future: "Future[list[Explored]]"
    told: str
    recorded: bool = False
    doubtful: bool = False
    states: int = 0

    def judged(self) -> int:
        """How many states have been judged by now."""
        return self.states if self.recorded else underway.counted(self.told)


@dataclass(frozen=True, slots=True)
class Started:
    """Explorations under way."""

    subject: Subject
    pieces: tuple[Piece, ...]


def start_power(
    campaign: Campaign,
    subject: Subject,
    baseline: Baseline,
    models: Sequence[str],
    *,
    saves: tuple[int, ...] | None,
    stretches: Sequence[tuple[int, int]] | None = None,
    bound: int = DEFAULT_BOUND,
    seed: int | None = None,
) -> Started | None:
    """Begin to explore every crash state of the saves under the models; None: skipped.

    A stretch is one worker's, under all models: what one model's states taught answers those of
    the next. ``stretches`` (first and last crash place, both included) take the place of
    ``saves``; ``seed`` that of the campaign's.
    """
    if baseline.untraceable:
        for model in models:
            campaign.skip(subject, f"power/{model}", f"not traceable: {baseline.untraceable}")
        return None
    if campaign.options.trace_dir is None or campaign.stopped or campaign.out_of_time():
        return None
    jobs = campaign.options.jobs
    pieces = [
        (run, piece)
        for run in (baseline, *baseline.others)
        for piece in _pieces(run, _stretches(run, saves, stretches), jobs=jobs)
    ]
    started = []
    # The last first: what is pending grows along a save, and the longest must not begin last.
    for number, (run, (first, last)) in reversed(list(enumerate(pieces))):
        explorations = tuple(
            Exploration(
                subject=subject,
                baseline=run,
                trace_dir=f"{campaign.options.trace_dir}/{subject.name}",
                model=model,
                first=first,
                last=last,
                seed=campaign.options.seed if seed is None else seed,
                bound=bound,
                equal_reads=campaign.options.equal_reads,
                # A protocol that is known to remove leftovers as it finds them, whatever they are.
                presume=subject.format == "tinyllm" and not campaign.options.exhaustive,
                filter=campaign.options.filter,
                plenty=None if campaign.options.exhaustive else PLENTY,
                fail_fast=campaign.options.fail_fast,
            )
            for model in models
        )
        told = campaign.told(f"{subject.name}-power-{number}")
        future = campaign.executor.submit(tasks.explore_task, explorations, told, campaign.deadline)
        started.append(Piece(explorations, future, told))
    started.reverse()
    return Started(subject, tuple(started))


def _stretches(
    run: Baseline,
    saves: tuple[int, ...] | None,
    stretches: Sequence[tuple[int, int]] | None,
) -> Sequence[tuple[int, int]]:
    """The crash places to explore: given ones are of the first recording."""
    if stretches is None:
        return planning.operations_of_saves(run, saves)
    return () if run.number else stretches


def _pieces(
    run: Baseline, stretches: Sequence[tuple[int, int]], *, jobs: int
) -> list[tuple[int, int]]:
    """The tasks' crash places: one long stretch is shared out."""
    pieces = PIECES_A_WORKER * jobs if len(stretches) == 1 and jobs > 1 else 1
    return [
        piece
        for first, last in stretches
        for piece in planning.shared_out(first, run.operations if last < 0 else last, pieces=pieces)
    ]


def collect_power(campaign: Campaign, started: Started, *, stopping: bool = False) -> None:
    """Wait for the explorations and record what came of them.

    ``stopping``: the run is interrupted; what was judged by now is recorded, once.
    """
    name = started.subject.name
    left = [piece for piece in started.pieces if not piece.recorded]
    futures = [piece.future for piece in left]
    if stopping:
        for position, explored in campaign.what_ended(futures):
            _take_down(campaign, left[position], explored)
        return
    campaign.progress.layer(f"{name} power", len(left))

    def waiting() -> None:
        states = sum(piece.judged() for piece in left)
        campaign.progress.working(f"{states:,} states judged")

    for position, explored in campaign.each(futures, waiting=waiting):
        _take_down(campaign, left[position], explored)
        failed = any(one.failed for one in explored)
        campaign.stopped |= campaign.options.fail_fast and failed
        waiting()
        campaign.progress.advance(failed=failed)


def _take_down(campaign: Campaign, piece: Piece, explored: Sequence[Explored]) -> None:
    piece.recorded = True
    piece.states = sum(one.states for one in explored)
    for exploration, one in zip(piece.explorations, explored, strict=False):
        layer = f"power/{exploration.model}"
        _record(campaign, exploration, layer, one)
        if one.states or not (one.cut or exploration.filter is not None):
            _count(campaign, layer, one)
        if one.passed_over:
            campaign.notes.append(
                f"{exploration.subject.name} {layer}: {one.passed_over:,} crash states were not "
                f"judged: at their places {exploration.plenty} had failed in ways already known "
                "(--exhaustive judges all)"
            )
        if one.contradictions and not piece.doubtful:
            piece.doubtful = True
            campaign.reasons.append(f"{exploration.subject.name}: {one.contradictions[0]}")
        if one.cut:
            campaign.notes.append(
                f"{exploration.subject.name} {layer}: {one.cut} after {one.states:,} crash states "
                "of a stretch"
            )


def power_layer(
    campaign: Campaign,
    subject: Subject,
    baseline: Baseline,
    model: str,
    *,
    saves: tuple[int, ...] | None,
    stretches: Sequence[tuple[int, int]] | None = None,
    bound: int = DEFAULT_BOUND,
    seed: int | None = None,
) -> None:
    """Explore under one model, from beginning to end."""
    started = start_power(
        campaign,
        subject,
        baseline,
        (model,),
        saves=saves,
        stretches=stretches,
        bound=bound,
        seed=seed,
    )
    if started is not None:
        collect_power(campaign, started)


def _record(campaign: Campaign, exploration: Exploration, layer: str, explored: Explored) -> None:
    subject = exploration.subject
    told: Counter[str] = Counter()
    failed_at: Counter[str] = Counter()
    for failure in explored.failures:
        failed_at[failure.place] += 1
        case = at_state(place_case(exploration, failure.place), failure.descriptor)
        for finding in failure.findings:
            signature = _signature(finding, failure)
            told[signature] += 1
            if told[signature] <= RECORDS_PER_SIGNATURE:
                campaign.violations.append(
                    _violation(
                        subject,
                        layer,
                        case,
                        failure,
                        finding,
                        signature=signature,
                        reproduce=command_for(case, out=campaign.out),
                    )
                )
        if max(told[_signature(f, failure)] for f in failure.findings) <= RECORDS_PER_SIGNATURE:
            outcome = Outcome(
                case=case,
                verdict=results.FAIL,
                findings=failure.findings,
                evidence=failure.lost,
                seconds=0.0,
            )
            campaign.failed.append(Failed(subject, exploration.baseline, outcome, exploration))
            campaign.records.append(
                CaseRecord(
                    case=case.id,
                    layer=layer,
                    verdict=results.FAIL,
                    config=subject.name,
                    evidence=failure.lost,
                    message="; ".join(f.message for f in failure.findings),
                )
            )
    held = [(case, f"crash state after {case.place}") for case in explored.singled]
    for place, states in explored.places:
        passed = states - failed_at[place]
        if passed:
            held.append((place_case(exploration, place), f"{passed} crash states after {place}"))
    campaign.records += [
        CaseRecord(
            case=case.id,
            layer=layer,
            verdict=results.PASS,
            config=subject.name,
            evidence=evidence,
        )
        for case, evidence in held
    ]


def _signature(finding: Finding, failure: Failure) -> str:
    # A helper's line alone: by which caller is another way to the same fault.
    return signature_of(finding, needs=failure.cause, site=failure.site.partition(" from ")[0])


def _violation(
    subject: Subject,
    layer: str,
    case: Case,
    failure: Failure,
    finding: Finding,
    *,
    signature: str,
    reproduce: str,
) -> Violation:
    holds = ""
    if failure.holds_if:
        holds = at_state(case, failure.holds_if).id
    return Violation(
        case=case.id,
        layer=layer,
        invariant=finding.invariant,
        message=finding.message,
        config=subject.name,
        signature=signature,
        needs=failure.needs + (f"      {failure.site}" if failure.needs and failure.site else ""),
        lost=failure.lost,
        crash=failure.crash,
        holds_if=holds,
        expected=finding.expected,
        found=finding.found,
        evidence=f"{layer} state {failure.descriptor}",
        reproduce=reproduce,
    )


def _count(campaign: Campaign, layer: str, explored: Explored) -> None:
    before = campaign.layers.get(layer, LayerCount(cases=0, failed=0))
    campaign.layers[layer] = LayerCount(
        cases=before.cases + explored.cases,
        failed=before.failed + explored.failed,
        states=before.states + explored.states,
        judged=before.judged + explored.judged,
        equal_reads=before.equal_reads + explored.equal_reads,
        sampled=before.sampled or explored.sampled,
        seconds=round(before.seconds + explored.seconds, 3),
    )
