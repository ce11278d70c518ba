"""The nightly run: random cases of random subjects until the budget is used up.

It goes in rounds. A round takes one subject, a given one or a random train spec, and hurts it with
a handful of random cases: kills at places and points and after times, chains of kills through the
resumes, signals, errors, and the crash states of a random stretch of the run under a random model,
with a larger bound than the gate's.

Every draw comes from a generator of its own, named by the run's seed, the round and the purpose,
so that a round does not depend on how long the one before it took. A chain is built as it goes:
the next kill is put before a call that the last resume was seen to make.

A kill after a time strikes wherever the program happens to be. Such a case is run with everything
kept, so that its bundle holds the very state that it left. One that came too late hurt nobody: it
is counted in a note and is no case.

Not covered: two programs at once, real file systems.
"""

import json
import random
import shutil
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fault_injection.crash_states import DEFAULT_BOUND
from fault_injection.faults import Fault, TriggerKind
from harness import planning, results, tasks
from harness.baseline import Baseline
from harness.campaign import Campaign, baselines
from harness.cases import Case, time_case
from harness.errors import CannotJudge, HarnessError, UsageError
from harness.nightly_specs import random_spec, write_spec
from harness.power.layer import power_layer
from harness.rerun import KeptRun
from harness.runner import Outcome
from harness.session import Request
from harness.stored import read_regular
from harness.subjects import FILE_LIMIT_BYTES, Subject, tinyllm_subject, with_timeout

CASES_IN_A_ROUND = 24
TIME_KILLS_IN_A_ROUND = 3
CHAINS_IN_A_ROUND = 6
DEPTH = 3
POWER_BOUND = 4 * DEFAULT_BOUND
STRETCH_OPERATIONS = 60
SPECS = "specs"

# How often each kind of case is drawn.
_WEIGHTS = {"kill": 8, "point": 6, "signal": 3, "error": 3}
_SHARE_OF_RANDOM_SPECS = 0.7


@dataclass(slots=True)
class Nightly:
    """A night's work: its seed, what it may use, and what it has learned so far."""

    campaign: Campaign
    subjects: tuple[Subject, ...]
    specs: tuple[Path, ...]
    directory: Path
    said: dict[str, Baseline] = field(default_factory=dict)
    done: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    too_late: int = 0
    rounds: int = 0


def generator(seed: int, *names: object) -> random.Random:
    """The generator of one draw; the same for the same seed and names, on every machine."""
    return random.Random(":".join(str(name) for name in (seed, *names)))


def drive(
    campaign: Campaign, request: Request, *, specs: Sequence[Path], rounds: int | None = None
) -> dict[str, Baseline]:
    """Run rounds until the budget is used up (or ``rounds`` of them); the baselines by subject.

    ``specs`` are the train specs of which random ones are made. Raises :class:`CannotJudge` when
    no subject at all could be judged.
    """
    night = Nightly(
        campaign, request.subjects, tuple(specs), request.out / SPECS, said=campaign.said
    )
    try:
        while not campaign.stopped and not campaign.out_of_time():
            used_up = rounds is not None and night.rounds >= rounds
            nobody_left = not night.specs and all(s.name in night.refused for s in night.subjects)
            if used_up or nobody_left:
                break
            one_round(night)
    finally:
        _tell(night)
    if not night.said and night.refused:
        raise CannotJudge("\n".join(night.refused.values()))
    return night.said


def one_round(night: Nightly) -> None:
    """One subject, hurt at random."""
    campaign, number = night.campaign, night.rounds
    night.rounds += 1
    found = _ready(night, _choose(night, number))
    if found is None:
        return
    subject, baseline = found
    rng = generator(campaign.options.seed, "cases", number)
    drawn = draw_cases(rng, subject, baseline, faults=campaign.options.faults)
    fresh = [case for case in drawn if case.id not in night.done]
    night.done.update(case.id for case in fresh)
    killed: list[Outcome] = []
    for layer in ("point", "kill", "signal", "error"):
        outcomes = campaign.run_layer(
            subject, baseline, layer, [c for c in fresh if c.layer == layer]
        )
        if layer in ("point", "kill"):
            killed += outcomes
    if "kill" in campaign.options.faults:
        _time_kills(night, subject, baseline, number)
    if "double" in campaign.options.faults:
        _chains(night, subject, baseline, killed, number)
    _power(night, subject, baseline, number)
    _forget_trace(night, subject)


def draw_cases(
    rng: random.Random, subject: Subject, baseline: Baseline, *, faults: Sequence[str]
) -> list[Case]:
    """The round's cases of single faults at places, without duplicates, in the order drawn.

    Errors are drawn for tinyllm only: what another program says of a full disk is its own affair.
    """
    pools: dict[str, list[Case]] = {}
    if "kill" in faults:
        pools["kill"] = planning.kill_cases(subject, baseline)
    if "point" in faults and baseline.points:
        pools["point"] = planning.point_cases(subject, baseline)
    if "signal" in faults and baseline.places:
        pools["signal"] = planning.signal_cases(subject, baseline)
    if "error" in faults and subject.format == "tinyllm":
        pools["error"] = planning.error_cases(subject, baseline, saves=None)
    kinds = [kind for kind, pool in pools.items() if pool]
    if not kinds:
        return []
    drawn: dict[str, Case] = {}
    for _ in range(CASES_IN_A_ROUND):
        [kind] = rng.choices(kinds, weights=[_WEIGHTS[k] for k in kinds])
        case = rng.choice(pools[kind])
        drawn[case.id] = case
    return list(drawn.values())


def time_cases(rng: random.Random, subject: Subject, baseline: Baseline) -> list[Case]:
    """Kills after random times within the uninterrupted run."""
    times = [rng.uniform(0, baseline.seconds) for _ in range(TIME_KILLS_IN_A_ROUND)]
    return [time_case(subject.name, f"{time:.6f}") for time in times]


def next_in_chain(rng: random.Random, outcomes: Iterable[Outcome]) -> list[Case]:
    """For some of the outcomes, one more kill before a call that its last resume made."""
    extensible = [o for o in outcomes if o.verdict == results.PASS and _calls(o)]
    chosen = rng.sample(extensible, min(CHAINS_IN_A_ROUND, len(extensible)))
    return [
        replace(
            outcome.case,
            layer="double",
            faults=(*outcome.case.faults, Fault(TriggerKind.CALL, rng.choice(_calls(outcome)))),
        )
        for outcome in chosen
    ]


def _calls(outcome: Outcome) -> tuple[str, ...]:
    return outcome.behaviours[-1].calls if outcome.behaviours else ()


def _choose(night: Nightly, number: int) -> Subject:
    """A given subject, or one made of a random train spec."""
    rng = generator(night.campaign.options.seed, "subject", number)
    usable = [s for s in night.subjects if s.name not in night.refused]
    if night.specs and (not usable or rng.random() < _SHARE_OF_RANDOM_SPECS):
        base = rng.choice(night.specs)
        data = read_regular(base, limit_bytes=FILE_LIMIT_BYTES, follow=True)
        content: dict[str, Any] = json.loads(data)
        spec = random_spec(rng, content)
        return tinyllm_subject(write_spec(spec, base=base, directory=night.directory))
    return rng.choice(usable)


def _ready(night: Nightly, subject: Subject) -> tuple[Subject, Baseline] | None:
    """The subject with its baseline, or None when it cannot be judged, which is noted.

    Raises :class:`UsageError` when a given subject is wrongly described.
    """
    known = night.said.get(subject.name)
    trace = _trace(night, subject)
    if known is None or not trace.is_dir():
        campaign = night.campaign
        [(_, found)] = baselines([subject], options=campaign.options, executor=campaign.executor)
        if isinstance(found, UsageError) and subject in night.subjects:
            raise found
        if isinstance(found, HarnessError):
            night.refused[subject.name] = str(found)
            return None
        if found.untraceable:
            campaign.reasons.append(f"{subject.name}: not traceable: {found.untraceable}")
        known = night.said[subject.name] = found
    return with_timeout(subject, baseline_seconds=known.seconds), known


def _time_kills(night: Nightly, subject: Subject, baseline: Baseline, number: int) -> None:
    campaign = night.campaign
    rng = generator(campaign.options.seed, "times", number)
    if campaign.options.trace_dir is None or campaign.stopped:
        return
    kept = Path(campaign.options.trace_dir) / "kept"
    running: list[tuple[Path, Future[KeptRun]]] = []
    for case in campaign.wanted(time_cases(rng, subject, baseline)):
        directory = kept / f"{number}-{case.digest}"
        directory.mkdir(parents=True, exist_ok=True)
        task = campaign.executor.submit(
            tasks.kept_case_task, subject, baseline, case, str(directory)
        )
        running.append((directory, task))
    campaign.progress.layer(f"{subject.name} kill by time", len(running))
    for position, run in campaign.each([task for _, task in running]):
        directory = running[position][0]
        failed = run.outcome.verdict == results.FAIL
        campaign.progress.advance(failed=failed)
        if run.outcome.verdict == results.INCONCLUSIVE:
            night.too_late += 1
        else:
            campaign.record(subject, baseline, "kill", run.outcome, kept=(str(directory), run))
            campaign.count("kill", [run.outcome], seconds=run.outcome.seconds)
        if not failed:
            shutil.rmtree(directory, ignore_errors=True)


def _chains(
    night: Nightly, subject: Subject, baseline: Baseline, killed: list[Outcome], number: int
) -> None:
    outcomes = killed
    for depth in range(2, DEPTH + 1):
        rng = generator(night.campaign.options.seed, "chain", number, depth)
        cases = [c for c in next_in_chain(rng, outcomes) if c.id not in night.done]
        night.done.update(case.id for case in cases)
        outcomes = night.campaign.run_layer(subject, baseline, "double", cases)


def _power(night: Nightly, subject: Subject, baseline: Baseline, number: int) -> None:
    campaign = night.campaign
    models = [f.partition("/")[2] for f in campaign.options.faults if f.startswith("power/")]
    if not models or not baseline.operations:
        return
    rng = generator(campaign.options.seed, "power", number)
    first = rng.randrange(baseline.operations)
    power_layer(
        campaign,
        subject,
        baseline,
        rng.choice(models),
        saves=None,
        stretches=[(first, min(baseline.operations, first + STRETCH_OPERATIONS))],
        bound=POWER_BOUND,
        seed=rng.getrandbits(32),
    )


def _trace(night: Nightly, subject: Subject) -> Path:
    return Path(night.campaign.options.trace_dir or "") / subject.name


def _forget_trace(night: Nightly, subject: Subject) -> None:
    """A trace is needed again only for given subjects, and for the bundle of what failed."""
    if subject.name in {s.name for s in night.subjects}:
        return
    if not any(f.subject.name == subject.name for f in night.campaign.failed):
        shutil.rmtree(_trace(night, subject), ignore_errors=True)


def _tell(night: Nightly) -> None:
    notes = night.campaign.notes
    notes.append(f"{night.rounds} rounds over {len(night.said)} subjects")
    if night.too_late:
        notes.append(f"{night.too_late} kills by time came after the program had ended: no cases")
    night.campaign.reasons += [f"{name}: {why}" for name, why in sorted(night.refused.items())]
