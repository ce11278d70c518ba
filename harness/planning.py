"""Planning: which cases a layer consists of, from what the baseline did.

Pure, and in a fixed order. Where a layer is larger than its bound, places are taken evenly over
the run, never cut off at the end, and the number left out is said.

``double`` is planned from behaviour: a resumed attempt is characterised by the shape of the tree it
found and the calls it made up to its first acknowledgement. Each behaviour that no earlier case
showed is expanded once, with a second (or third) kill before each of its calls. What it did after
that acknowledgement is expanded too, once each, where it is not what the uninterrupted run did.

A rewind (tinyllm only) is planned from one undisturbed: a run to its end, then back to the
checkpoint before the last. There the next save wants the name that LATEST names. Where three are
kept it goes back by two: there the next save leaves a checkpoint of the line that was given up.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.baseline import Baseline
from harness.cases import Case, kill_case, rewind_case
from harness.runner import Behaviour, Outcome
from harness.subjects import Subject
from tinyllm.paths import step_name

SIGNALS = ("SIGTERM", "SIGINT")
ERRNOS_OF_CALLS = {
    "create": ("ENOSPC", "EMFILE", "EDQUOT"),
    "write": ("ENOSPC", "EIO", "EDQUOT", "EINTR"),
    "fsync": ("EIO", "ENOSPC"),
    "fdatasync": ("EIO",),
    "rename": ("EIO", "ENOSPC"),
    "mkdir": ("ENOSPC", "EDQUOT"),
    "unlink": ("EIO",),
    "rmdir": ("EIO",),
}


@dataclass(frozen=True, slots=True)
class Plan:
    """The cases of a layer, how many the bound left out, and how the others were chosen."""

    cases: tuple[Case, ...]
    left_out: int = 0
    how: str = "taken evenly over the run"

    def note(self, layer: str) -> str:
        """A sentence when something was left out, else ""."""
        if not self.left_out:
            return ""
        total = len(self.cases) + self.left_out
        return f"{layer}: {len(self.cases)} of {total} cases were run, {self.how}"


def evenly(items: Sequence[Case], bound: int | None) -> Plan:
    """At most ``bound`` items, evenly spread, the first and the last included."""
    if bound is None or len(items) <= bound:
        return Plan(tuple(items))
    if bound <= 1:
        return Plan(tuple(items[:bound]), len(items) - bound)
    picked = sorted({round(i * (len(items) - 1) / (bound - 1)) for i in range(bound)})
    return Plan(tuple(items[i] for i in picked), len(items) - len(picked))


def with_a_sample(items: Sequence[Case], *, telling: Collection[Case], bound: int | None) -> Plan:
    """The ``telling`` items, and at most ``bound`` of the others, evenly spread; in their order."""
    sample = evenly([item for item in items if item not in telling], bound)
    chosen = {*telling, *sample.cases}
    how = f"the {len(telling)} unlike those of any other save, and of the rest an even sample"
    return Plan(tuple(item for item in items if item in chosen), sample.left_out, how)


def point_cases(subject: Subject, baseline: Baseline, *, beginning: str = "") -> list[Case]:
    """A kill at every hit of every failpoint that the uninterrupted run reached.

    ``beginning``: only of those whose name begins so.
    """
    return [
        kill_case(subject.name, "point", TriggerKind.POINT, point)
        for point in baseline.points
        if point.startswith(beginning)
    ]


def resume_point_cases(
    subject: Subject, baseline: Baseline, *, after: str, reached: Iterable[str]
) -> list[Case]:
    """Kills at the points that only a resume reaches, after a first kill at the point ``after``."""
    known = {p.rpartition("#")[0] for p in baseline.points}
    new = [p for p in reached if p.rpartition("#")[0] not in known]
    return [kill_case(subject.name, "point", TriggerKind.POINT, after, p) for p in new]


def rewind_base(subject: Subject, baseline: Baseline, *, layer: str) -> list[Case]:
    """The undisturbed rewind, by two checkpoints if as many stay beside the last, else by one.

    None for a program that cannot be told to, and where only the last stays.
    """
    kept = baseline.promises[-subject.keep_ckpts :] if subject.keep_ckpts else ()
    if subject.format != "tinyllm" or len(kept) < 2:
        return []
    back_to = step_name(kept[-min(len(kept), 3)].step)
    return [rewind_case(subject.name, layer, TriggerKind.POINT, back_to)]


def rewind_point_cases(base: Outcome) -> list[Case]:
    """A kill at every hit of every failpoint of the rewinding attempt ``base``."""
    case = base.case
    return [
        rewind_case(case.subject, "point", TriggerKind.POINT, case.rewind, place)
        for place in base.resume_points
    ]


def of_resumes(cases: Iterable[Case], baseline: Baseline) -> list[Case]:
    """Those that end at a point which the uninterrupted run never reached."""
    known = {p.rpartition("#")[0] for p in baseline.points}
    return [c for c in cases if c.faults[-1].place.rpartition("#")[0] not in known]


def between_saves(cases: Sequence[Case]) -> list[Case]:
    """Of the point cases of a rewinding attempt, the first in a step after its first save.

    By then the line that was given up must be gone.
    """
    saved = False
    for case in cases:
        name = case.faults[-1].place.rpartition("#")[0]
        if saved and name == "step.reported":
            return [case]
        saved |= name == "save.announced"
    return []


def rewind_kill_cases(base: Outcome) -> list[Case]:
    """A kill before every call of the rewinding attempt ``base`` up to its acknowledgement."""
    case = base.case
    return [
        rewind_case(case.subject, "kill", TriggerKind.CALL, case.rewind, place)
        for behaviour in base.behaviours[-1:]
        for place in behaviour.calls
    ]


def from_the_first_rename(cases: Sequence[Case]) -> list[Case]:
    """Those that are killed at the first rename or later.

    Until then a save works in a directory of its own, after a rewind as ever.
    """
    places = [c.faults[-1].place for c in cases]
    first = next((i for i, p in enumerate(places) if p.startswith("rename-")), len(cases))
    return list(cases[first:])


def places_of_saves(baseline: Baseline, saves: Sequence[int] | None) -> list[str]:
    """The places of the given saves (indices of acknowledgements), or all of them for None.

    A save reaches from the end of the one before to the first loss after its acknowledgement, so
    that what follows the acknowledgement (retention) belongs to it.
    """
    if saves is None or not baseline.save_ends:
        return list(baseline.places)
    chosen: list[str] = []
    for save in saves:
        if save < len(baseline.save_ends):
            begin = baseline.save_ends[save - 1] if save > 0 else 0
            chosen += baseline.places[begin : baseline.save_ends[save]]
    return chosen


def operations_of_saves(baseline: Baseline, saves: Sequence[int] | None) -> list[tuple[int, int]]:
    """The crash places (operation indices, both included) of the saves; -1 is the end."""
    acks = [i for i, e in enumerate(baseline.shown) if e.kind == "ack"]
    if saves is None or not acks:
        return [(0, -1)]
    ends = []
    for position in acks:
        rest = baseline.shown[position + 1 :]
        following = next((e.operation for e in rest if e.kind == "loss"), -1)
        ends.append(max(following, baseline.shown[position].operation) if following >= 0 else -1)
    return [(ends[s - 1] if s > 0 else 0, ends[s]) for s in saves if s < len(ends)]


def shared_out(first: int, last: int, *, pieces: int) -> list[tuple[int, int]]:
    """``first`` to ``last`` (both included) in at most ``pieces`` stretches of like length."""
    length = last - first + 1
    pieces = max(1, min(pieces, length))
    bounds = [first + length * n // pieces for n in range(pieces + 1)]
    return [(bounds[n], bounds[n + 1] - 1) for n in range(pieces)]


def kill_cases(
    subject: Subject, baseline: Baseline, *, saves: Sequence[int] | None = None
) -> list[Case]:
    """A kill before every changing call of the saves (None: of the whole run), and at the end."""
    cases = [
        kill_case(subject.name, "kill", TriggerKind.CALL, place)
        for place in places_of_saves(baseline, saves)
    ]
    return [*cases, kill_case(subject.name, "kill", TriggerKind.AFTER_LAST_CALL, "end")]


def deeper_cases(outcomes: Iterable[Outcome], *, seen: set[Behaviour]) -> list[Case]:
    """One more kill, before each call of every resume behaviour that is new.

    ``outcomes`` are those of the depth before, in planning order; ``seen`` collects behaviours
    and is extended. Failed and inconclusive outcomes are not built upon.
    """
    cases = []
    for outcome in outcomes:
        if outcome.verdict != "pass" or not outcome.behaviours:
            continue
        behaviour = outcome.behaviours[-1]
        if behaviour in seen or not behaviour.calls:
            continue
        seen.add(behaviour)
        cases += _killed_again(outcome.case, behaviour.calls)
    return cases


def later_cases(outcomes: Iterable[Outcome], baseline: Baseline) -> list[Case]:
    """One more kill, before each call after a resume's first acknowledgement.

    Of each sequence of such calls once, and not of those with which the uninterrupted run ended.
    """
    cases = []
    in_order = baseline.threads == 1
    seen: set[tuple[str, ...]] = set()
    for outcome in outcomes:
        if outcome.verdict != "pass" or not outcome.behaviours:
            continue
        later = outcome.behaviours[-1].later
        kinds = _kinds(later, in_order=in_order)
        usual = _kinds(_last(baseline.places, len(later)), in_order=in_order)
        if kinds != usual and kinds not in seen:
            seen.add(kinds)
            cases += _killed_again(outcome.case, later)
    return cases


def acknowledged_cases(outcomes: Iterable[Outcome]) -> list[Case]:
    """One more kill right after what each resume first acknowledged, or at its end.

    What a resume saved must be found by the next one, whatever it was resumed from.
    """
    cases = []
    for outcome in outcomes:
        if outcome.verdict != "pass" or not outcome.behaviours:
            continue
        later = outcome.behaviours[-1].later
        if later:
            cases += _killed_again(outcome.case, later[:1])
        else:
            end = Fault(TriggerKind.AFTER_LAST_CALL, "end", ActionKind.KILL)
            cases.append(replace(outcome.case, layer="double", faults=(*outcome.case.faults, end)))
    return cases


def _last(places: Sequence[str], count: int) -> Sequence[str]:
    return places[max(0, len(places) - count) :]


def _kinds(places: Sequence[str], *, in_order: bool) -> tuple[str, ...]:
    """Places without their ordinals, which count from the beginning of an attempt."""
    kinds = [place.rpartition("#")[0] for place in places]
    return tuple(kinds if in_order else sorted(kinds))


def _killed_again(case: Case, places: Iterable[str]) -> list[Case]:
    faults = (Fault(TriggerKind.CALL, place, ActionKind.KILL) for place in places)
    return [replace(case, layer="double", faults=(*case.faults, fault)) for fault in faults]


def signal_cases(subject: Subject, baseline: Baseline) -> list[Case]:
    """Every signal, at the changing calls and at the outputs."""
    return [*call_signal_cases(subject, baseline), *output_signal_cases(subject, baseline)]


def call_signal_cases(subject: Subject, baseline: Baseline) -> list[Case]:
    """SIGTERM, SIGINT, and SIGSTOP with SIGCONT, at every changing call."""
    cases = []
    for place in baseline.places:
        cases += _signalled(subject, place)
        fault = Fault(TriggerKind.CALL, place, ActionKind.PAUSE)
        cases.append(Case(subject.name, "signal", (fault,), place=f"SIGSTOP-{place}"))
    return cases


def output_signal_cases(subject: Subject, baseline: Baseline) -> list[Case]:
    """SIGTERM and SIGINT at every output, most of which come between saves.

    At those that end a line: in the middle of one a handler's own words would tear it.
    """
    return [case for place in baseline.outputs for case in _signalled(subject, place)]


def _signalled(subject: Subject, place: str) -> list[Case]:
    faults = [Fault(TriggerKind.CALL, place, ActionKind.SIGNAL, name) for name in SIGNALS]
    return [Case(subject.name, "signal", (f,), place=f"{f.detail}-{place}") for f in faults]


def error_cases(subject: Subject, baseline: Baseline, *, saves: Sequence[int] | None) -> list[Case]:
    """Each call of the saves fails with each errno that fits it; writes are also cut short."""
    cases = []
    for place in places_of_saves(baseline, saves):
        call = place.partition("-")[0]
        for errno in ERRNOS_OF_CALLS.get(call, ()):
            for times, suffix in ((1, ""), (0, "-for-ever")):
                if times == 0 and (call, errno) not in (("fsync", "EIO"), ("write", "ENOSPC")):
                    continue
                fault = Fault(TriggerKind.CALL, place, ActionKind.ERRNO, errno, times)
                words = f"{errno}-{place}{suffix}"
                cases.append(Case(subject.name, "error", (fault,), place=words))
        if call == "write":
            fault = Fault(TriggerKind.CALL, place, ActionKind.SHORT_WRITE)
            cases.append(Case(subject.name, "error", (fault,), place=f"short-{place}"))
    return cases
