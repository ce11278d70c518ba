"""The power layer in a campaign: explorations shared out to workers, their failures as cases."""

import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass

from fault_injection.crash_states import DEFAULT_BOUND
from harness import planning, results, tasks
from harness.baseline import Baseline
from harness.campaign import Campaign, Failed, command_for
from harness.cases import Case
from harness.evidence import Finding
from harness.power.explore import Exploration, Explored, Failure, place_case
from harness.results import CaseRecord, LayerCount, Violation
from harness.runner import Outcome
from harness.signatures import signature_of
from harness.subjects import Subject

RECORDS_PER_SIGNATURE = 20


@dataclass(frozen=True, slots=True)
class Started:
    """Explorations under way. Each future answers for the explorations of one stretch."""

    subject: Subject
    began_s: float
    futures: tuple[tuple[tuple[Exploration, ...], "Future[list[Explored]]"], ...]


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
    if stretches is None:
        stretches = planning.operations_of_saves(baseline, saves)
    pieces = [
        piece
        for first, last in stretches
        for piece in planning.shared_out(
            first,
            baseline.operations if last < 0 else last,
            pieces=campaign.options.jobs if len(stretches) == 1 else 1,
        )
    ]
    futures = []
    for first, last in pieces:
        explorations = tuple(
            Exploration(
                subject=subject,
                baseline=baseline,
                trace_dir=f"{campaign.options.trace_dir}/{subject.name}",
                model=model,
                first=first,
                last=last,
                seed=campaign.options.seed if seed is None else seed,
                bound=bound,
                equal_reads=campaign.options.equal_reads,
                filter=campaign.options.filter,
            )
            for model in models
        )
        futures.append((explorations, campaign.executor.submit(tasks.explore_task, explorations)))
    return Started(subject, time.monotonic(), tuple(futures))


def collect_power(campaign: Campaign, started: Started) -> None:
    """Wait for the explorations and record what came of them."""
    name = started.subject.name
    campaign.progress.layer(f"{name} power", len(started.futures))
    by_layer: dict[str, list[Explored]] = {}
    for explorations, future in started.futures:
        for exploration, one in zip(explorations, future.result(), strict=True):
            layer = f"power/{exploration.model}"
            by_layer.setdefault(layer, []).append(one)
            _record(campaign, exploration, layer, one)
        campaign.progress.advance(failed=any(e[-1].failed for e in by_layer.values()))
    for layer, explored in by_layer.items():
        if campaign.options.filter is not None and not any(e.states for e in explored):
            continue
        _count(campaign, layer, explored, seconds=sum(e.seconds for e in explored))


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


def power_case(subject: Subject, layer: str, failure: Failure) -> Case:
    """The case of one crash state."""
    return Case(
        subject=subject.name,
        layer=layer,
        place=failure.place,
        state=(("state", failure.descriptor),),
    )


def _record(campaign: Campaign, exploration: Exploration, layer: str, explored: Explored) -> None:
    subject = exploration.subject
    told: Counter[str] = Counter()
    failed_at: Counter[str] = Counter()
    for failure in explored.failures:
        failed_at[failure.place] += 1
        case = power_case(subject, layer, failure)
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
    return signature_of(finding, needs=failure.cause, site=failure.site)


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
        good = Case(subject.name, layer, place=failure.place, state=(("state", failure.holds_if),))
        holds = good.id
    return Violation(
        case=case.id,
        layer=layer,
        invariant=finding.invariant,
        message=finding.message,
        config=subject.name,
        signature=signature,
        needs=failure.needs + (f"      {failure.site}" if failure.site else ""),
        lost=failure.lost,
        crash=failure.crash,
        holds_if=holds,
        expected=finding.expected,
        found=finding.found,
        evidence=f"{layer} state {failure.descriptor}",
        reproduce=reproduce,
    )


def _count(campaign: Campaign, layer: str, explored: list[Explored], *, seconds: float) -> None:
    before = campaign.layers.get(layer, LayerCount(cases=0, failed=0))
    campaign.layers[layer] = LayerCount(
        cases=before.cases + sum(e.cases for e in explored),
        failed=before.failed + sum(e.failed for e in explored),
        states=before.states + sum(e.states for e in explored),
        judged=before.judged + sum(e.judged for e in explored),
        equal_reads=before.equal_reads + sum(e.equal_reads for e in explored),
        sampled=before.sampled or any(e.sampled for e in explored),
        seconds=round(before.seconds + seconds, 3),
    )
