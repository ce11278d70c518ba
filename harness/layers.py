"""The layers of one subject, in the order in which they are cheap: what is run for each.

A layer that cannot run here, or does not apply to the subject, is skipped by name with its reason.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import planning, tasks
from harness.baseline import Baseline
from harness.campaign import Campaign
from harness.cases import Case
from harness.power.layer import Started, collect_power, start_power
from harness.realfs import batches, realfs_cases
from harness.results import FAIL, PASS
from harness.runner import Behaviour, Outcome
from harness.subjects import Subject


@dataclass(frozen=True, slots=True)
class Bounds:
    """How many cases of a layer are run at most (None: all), and which saves are covered.

    ``rewind`` bounds, in each layer, the cases of a rewind that are like those of any other save.
    ``saves`` None covers the whole run; ``power_saves`` is the same for the power layer. ``points``
    is what the names of the failpoints begin with that are meant ("": all), ``only`` the layers
    that are (None: those that were asked for).
    """

    kill: int | None = 4000
    second_kill: int | None = 240
    later_kill: int | None = 60
    saved_kill: int | None = 120
    third_kill: int | None = 120
    signal: int | None = 150
    output_signal: int | None = 60
    error: int | None = 600
    rewind: int | None = None
    realfs: int | None = 200
    saves: tuple[int, ...] | None = None
    power_saves: tuple[int, ...] | None = None
    points: str = ""
    only: tuple[str, ...] | None = None


EXHAUSTIVE = Bounds(
    kill=None,
    second_kill=None,
    later_kill=None,
    saved_kill=None,
    third_kill=None,
    signal=None,
    output_signal=None,
    error=None,
    realfs=None,
)


def gate_bounds(subject: Subject) -> Bounds:
    """Two saves: the first, and the first with retention at work. Power: the latter."""
    retaining = max(1, subject.keep_ckpts)
    return Bounds(
        second_kill=22,
        later_kill=6,
        saved_kill=6,
        third_kill=10,
        signal=24,
        output_signal=12,
        error=120,
        rewind=6,
        realfs=60,
        saves=tuple(sorted({0, retaining})),
        # What was never synced before is pending here still: one save shows it.
        power_saves=(retaining,),
    )


# Of the release: how it trains is what the configurations are for.
RELEASE = Bounds(points="release.", only=("point",))


@dataclass(frozen=True, slots=True)
class Run:
    """One subject under test in a campaign."""

    campaign: Campaign
    subject: Subject
    baseline: Baseline
    bounds: Bounds

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers to run."""
        wanted, only = self.campaign.options.faults, self.bounds.only
        return tuple(layer for layer in wanted if only is None or layer in only)

    def cases(
        self, layer: str, cases: Sequence[Case], bound: int | None = None, *, what: str = ""
    ) -> list[Outcome]:
        """Run at most ``bound`` of the cases, evenly taken, and say what was left out of ``what``
        (default: of the layer)."""
        plan = planning.evenly(self.campaign.wanted(cases), bound)
        self.say(plan, what or layer)
        return self.campaign.run_layer(self.subject, self.baseline, layer, plan.cases)

    def first_of(
        self,
        layer: str,
        cases: Sequence[Case],
        bound: int | None = None,
        *,
        then: Sequence[str],
    ) -> list[Outcome]:
        """Like :meth:`cases`; where a filter names none of them they are run all the same, and not
        recorded, when it may name what the layers ``then`` build upon them."""
        if self.campaign.wanted(cases):
            return self.cases(layer, cases, bound)
        for building in then:
            scouts = planning.evenly(cases, bound).cases
            if found := self.campaign.scout(self.subject, self.baseline, building, scouts):
                return found
        return []

    def say(self, plan: planning.Plan, layer: str) -> None:
        """Note what a plan left out."""
        if note := plan.note(f"{self.subject.name} {layer}"):
            self.campaign.notes.append(note)


def point_layer(run: Run) -> list[Outcome]:
    """Every hit of every failpoint; then the points that only a resume or a rewind reaches.

    Returns the outcome of the undisturbed rewind, if there is one.
    """
    if not run.baseline.points:
        run.campaign.skip(run.subject, "point", "the program has no named failpoints")
        return []
    # The rewind first: what comes of it is needed, and it runs beside the others.
    base = planning.rewind_base(run.subject, run.baseline, layer="point")
    planned = planning.point_cases(run.subject, run.baseline, beginning=run.bounds.points)
    rewound, outcomes = _apart(run.first_of("point", [*base, *planned], then=("point",)))
    known = {p.rpartition("#")[0] for p in run.baseline.points}

    def new_points(outcome: Outcome) -> list[str]:
        return [p for p in outcome.resume_points if p.rpartition("#")[0] not in known]

    covered: set[str] = set()
    more: list[Case] = []
    for outcome in outcomes:
        fresh = [p for p in new_points(outcome) if p not in covered]
        if outcome.verdict == PASS and fresh:
            covered.update(fresh)
            after = outcome.case.faults[0].place
            more += planning.resume_point_cases(
                run.subject, run.baseline, after=after, reached=fresh
            )
    for outcome in rewound:
        more += _rewinds(run, "point", outcome)
    run.cases("point", more)
    return rewound


def kill_layer(run: Run, rewound: list[Outcome]) -> list[Outcome]:
    """Before every changing call, and after the last; then the calls of a rewind.

    ``rewound`` is the outcome of an undisturbed rewind; none is made here when it is known.
    """
    base = [] if rewound else planning.rewind_base(run.subject, run.baseline, layer="kill")
    cases = planning.kill_cases(run.subject, run.baseline, saves=run.bounds.saves)
    found, outcomes = _apart(
        run.first_of("kill", [*base, *cases], run.bounds.kill, then=("kill", "double"))
    )
    for outcome in rewound or found:
        outcomes += run.cases("kill", _rewinds(run, "kill", outcome))
    return outcomes


def _apart(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """The rewinds, and the others."""
    return [o for o in outcomes if o.case.rewind], [o for o in outcomes if not o.case.rewind]


def _rewinds(run: Run, layer: str, base: Outcome) -> list[Case]:
    """The kills of a rewinding attempt, from an undisturbed one that passed."""
    if base.verdict != PASS:
        return []
    if layer == "point":
        planned = run.campaign.wanted(planning.rewind_point_cases(base))
        telling = planning.of_resumes(planned, run.baseline) + planning.between_saves(planned)
    else:
        planned = run.campaign.wanted(planning.rewind_kill_cases(base))
        telling = planning.from_the_first_rename(planned)
    plan = planning.with_a_sample(planned, telling=telling, bound=run.bounds.rewind)
    run.say(plan, f"{layer}, rewind")
    return list(plan.cases)


def double_layer(run: Run, killed: list[Outcome]) -> None:
    """A second and a third kill, in every resume behaviour that is new."""
    seen: set[Behaviour] = set()
    second = planning.deeper_cases(killed, seen=seen)
    outcomes = run.cases("double", second, run.bounds.second_kill)
    later = planning.later_cases(killed, run.baseline)
    run.cases("double", later, run.bounds.later_kill, what="double, later in a resume")
    done = {*second, *later}
    saved = [case for case in planning.acknowledged_cases(killed) if case not in done]
    run.cases("double", saved, run.bounds.saved_kill, what="double, after a resume's first save")
    third = planning.deeper_cases(outcomes, seen=seen)
    run.cases("double", third, run.bounds.third_kill, what="double, third kill")


def signal_layer(run: Run) -> None:
    """SIGTERM, SIGINT, SIGSTOP with SIGCONT; the former two at outputs as well."""
    at_calls = planning.call_signal_cases(run.subject, run.baseline)
    run.cases("signal", at_calls, run.bounds.signal)
    at_outputs = planning.output_signal_cases(run.subject, run.baseline)
    run.cases("signal", at_outputs, run.bounds.output_signal, what="signal, at outputs")


def error_layer(run: Run) -> None:
    """Calls that fail."""
    cases = planning.error_cases(run.subject, run.baseline, saves=run.bounds.saves)
    run.cases("error", cases, run.bounds.error)


def realfs_layer(run: Run, file_system: str) -> None:
    """A real file system, its power cut before every changing call, at once and after a commit."""
    campaign, subject, baseline = run.campaign, run.subject, run.baseline
    layer = f"realfs/{file_system}"
    planned = realfs_cases(subject, baseline, file_system, saves=run.bounds.saves)
    plan = planning.evenly(campaign.wanted(planned), run.bounds.realfs)
    run.say(plan, layer)
    if not plan.cases or campaign.stopped or campaign.out_of_time():
        return
    began = time.monotonic()
    campaign.progress.layer(f"{subject.name} {layer}", len(plan.cases))
    futures = [
        campaign.executor.submit(
            tasks.cuts_task,
            subject,
            baseline,
            file_system,
            batch,
            campaign.told(f"{subject.name}-{file_system}-{number}"),
        )
        for number, batch in enumerate(batches(plan.cases))
    ]
    outcomes: list[Outcome] = []
    try:
        for _, done in campaign.each(futures):
            for outcome in done:
                outcomes.append(outcome)
                campaign.progress.advance(failed=outcome.verdict == FAIL)
                campaign.record(subject, baseline, layer, outcome)
    finally:
        if len(outcomes) < len(plan.cases):
            campaign.notes.append(
                f"{subject.name} {layer}: {len(plan.cases) - len(outcomes)} of {len(plan.cases)} "
                "cases were not run: the run was interrupted"
            )
        campaign.count(layer, outcomes, seconds=time.monotonic() - began)


def run_subject(campaign: Campaign, subject: Subject, baseline: Baseline, bounds: Bounds) -> None:
    """All the layers that were asked for, for one subject."""
    run = Run(campaign, subject, baseline, bounds)
    models = [model for kind, _, model in (w.partition("/") for w in run.layers) if kind == "power"]
    # Explorations are few and long: begun first, they run beside the many short cases.
    power = (
        start_power(campaign, subject, baseline, models, saves=bounds.power_saves)
        if models
        else None
    )
    try:
        _run_layers(run, power)
    except KeyboardInterrupt:
        if power is not None:
            collect_power(campaign, power, stopping=True)
        raise


def _run_layers(run: Run, power: Started | None) -> None:
    campaign, wanted = run.campaign, run.layers
    rewound = point_layer(run) if "point" in wanted else []
    if "kill" in wanted or "double" in wanted:
        killed = kill_layer(run, rewound)
        if "double" in wanted:
            double_layer(run, killed)
    if power is not None:
        collect_power(campaign, power)
    simple: dict[str, Callable[[Run], None]] = {"signal": signal_layer, "error": error_layer}
    for layer in wanted:
        kind, _, file_system = layer.partition("/")
        if layer in simple:
            simple[layer](run)
        elif kind == "realfs":
            realfs_layer(run, file_system)
        elif kind == "corrupt":
            campaign.skip(
                run.subject, layer, "damage is tried by the test suite, not by campaigns yet"
            )
