"""Plans: complete or evenly spread, in a fixed order, and honest about what they leave out."""

from fault_injection.faults import ActionKind
from harness import planning
from harness.cases import Case
from harness.runner import Behaviour, Outcome
from tests.harness.histories import a_baseline, a_subject

SUBJECT = a_subject()
PLACES = ("mkdir-c#1", "write-m#1", "rename-L#1", "write-m#2", "rename-L#2", "unlink-m#1")
BASELINE = a_baseline(places=PLACES, save_ends=(3, 6), points=("save.a#1", "step.b#1"))


def placed(cases: list[Case]) -> list[str]:
    return ["+".join(f.place for f in c.faults) for c in cases]


def test_every_call_and_the_end_are_killed() -> None:
    assert placed(planning.kill_cases(SUBJECT, BASELINE)) == [*PLACES, "end"]


def test_a_save_reaches_to_the_first_loss_after_its_acknowledgement() -> None:
    assert planning.places_of_saves(BASELINE, (0,)) == list(PLACES[:3])
    assert planning.places_of_saves(BASELINE, (1,)) == list(PLACES[3:])
    assert planning.places_of_saves(BASELINE, (0, 1)) == list(PLACES)
    assert planning.places_of_saves(BASELINE, None) == list(PLACES)


def test_every_point_is_killed() -> None:
    assert placed(planning.point_cases(SUBJECT, BASELINE)) == ["save.a#1", "step.b#1"]


def test_points_of_the_resume_follow_a_first_kill() -> None:
    cases = planning.resume_point_cases(
        SUBJECT, BASELINE, after="save.a#1", reached=["resume.x#1", "step.b#1", "resume.y#1"]
    )
    assert placed(cases) == ["save.a#1+resume.x#1", "save.a#1+resume.y#1"]


def outcome(place: str, *behaviours: tuple[str, ...], verdict: str = "pass") -> Outcome:
    case = planning.kill_cases(SUBJECT, a_baseline(places=(place,)))[0]
    return Outcome(
        case, verdict, (), "", 0.1, behaviours=tuple(Behaviour((), b) for b in behaviours)
    )


def test_each_new_behaviour_of_a_resume_is_killed_once_at_each_of_its_calls() -> None:
    seen: set[Behaviour] = set()
    outcomes = [
        outcome("a#1", ("unlink-t#1", "mkdir-t#1")),
        outcome("a#2", ("unlink-t#1", "mkdir-t#1")),
        outcome("a#3", ("mkdir-t#1",)),
        outcome("a#4", ("other#1",), verdict="fail"),
    ]
    cases = planning.deeper_cases(outcomes, seen=seen)
    assert placed(cases) == ["a#1+unlink-t#1", "a#1+mkdir-t#1", "a#3+mkdir-t#1"]
    assert {c.layer for c in cases} == {"double"}
    assert planning.deeper_cases(outcomes, seen=seen) == []


def test_a_bound_spreads_and_says_what_it_left_out() -> None:
    cases = planning.kill_cases(SUBJECT, BASELINE)
    plan = planning.evenly(cases, 3)
    assert placed(list(plan.cases)) == ["mkdir-c#1", "write-m#2", "end"]
    assert plan.note("toy kill") == "toy kill: 3 of 7 cases were run, taken evenly over the run"
    assert planning.evenly(cases, None).note("toy kill") == ""
    assert planning.evenly(cases, 0).left_out == 7


def test_errors_fit_their_calls() -> None:
    cases = planning.error_cases(SUBJECT, a_baseline(places=("fsync-x#1", "meta-x#1")), saves=None)
    assert [(c.faults[0].detail, c.faults[0].times) for c in cases] == [
        ("EIO", 1),
        ("EIO", 0),
        ("ENOSPC", 1),
    ]
    writes = planning.error_cases(SUBJECT, a_baseline(places=("write-x#1",)), saves=None)
    assert writes[-1].faults[0].action is ActionKind.SHORT_WRITE


def test_signals_strike_everywhere() -> None:
    cases = planning.signal_cases(SUBJECT, a_baseline(places=("fsync-x#1",)))
    assert [c.place for c in cases] == [
        "SIGTERM-fsync-x#1",
        "SIGINT-fsync-x#1",
        "SIGSTOP-fsync-x#1",
    ]
