"""Plans: complete or evenly spread, in a fixed order, and honest about what they leave out."""

from dataclasses import replace

from fault_injection.faults import ActionKind, TriggerKind
from harness import planning
from harness.baseline import Baseline
from harness.cases import Case, rewind_case
from harness.promises import Promise
from harness.runner import Behaviour, Outcome
from tests.harness.histories import a_baseline, a_subject

SUBJECT = a_subject()
PLACES = ("mkdir-c#1", "write-m#1", "rename-L#1", "write-m#2", "rename-L#2", "unlink-m#1")
TINYLLM = a_subject(format="tinyllm", keep_ckpts=2)
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


def resumed(place: str, *later: str, verdict: str = "pass") -> Outcome:
    return replace(
        outcome(place, verdict=verdict), behaviours=(Behaviour((), ("mkdir-t#1",), later),)
    )


def test_what_a_resume_does_after_its_first_acknowledgement_is_killed_where_it_is_unusual() -> None:
    usual = ("rename-L#1", "unlink-m#1")  # as the uninterrupted run ended
    other = ("rename-L#1", "unlink-n#1")
    outcomes = [
        resumed("a#1", *usual),
        resumed("a#2", *other),
        resumed("a#3", *other),
        resumed("a#4", "unlink-q#1", verdict="fail"),
        resumed("a#5"),
    ]
    cases = planning.later_cases(outcomes, BASELINE)
    assert placed(cases) == ["a#2+rename-L#1", "a#2+unlink-n#1"]
    assert {c.layer for c in cases} == {"double"}
    # Threads take turns in any order.
    outcomes = [resumed("a#1", *reversed(usual)), resumed("a#2", *reversed(other))]
    assert len(planning.later_cases(outcomes, BASELINE)) == 4
    assert len(planning.later_cases(outcomes, replace(BASELINE, threads=2))) == 2


def test_a_resume_is_killed_again_after_what_it_saved() -> None:
    outcomes = [
        resumed("a#1", "unlink-o#2", "unlink-n#1"),
        resumed("a#2"),
        resumed("a#3", "unlink-q#1", verdict="fail"),
    ]
    cases = planning.acknowledged_cases(outcomes)
    assert placed(cases) == ["a#1+unlink-o#2", "a#2+end"]
    assert {c.layer for c in cases} == {"double"}
    assert cases[1].faults[1].trigger is TriggerKind.AFTER_LAST_CALL


def test_signals_strike_everywhere() -> None:
    cases = planning.signal_cases(SUBJECT, a_baseline(places=("fsync-x#1",)))
    assert [c.place for c in cases] == [
        "SIGTERM-fsync-x#1",
        "SIGINT-fsync-x#1",
        "SIGSTOP-fsync-x#1",
    ]
    told = a_baseline(places=("fsync-x#1",), outputs=("output-stdout#1",))
    assert planning.call_signal_cases(SUBJECT, told) == cases
    assert [c.place for c in planning.output_signal_cases(SUBJECT, told)] == [
        "SIGTERM-output-stdout#1",
        "SIGINT-output-stdout#1",
    ]
    everywhere = planning.output_signal_cases(SUBJECT, told)
    assert planning.signal_cases(SUBJECT, told) == [*cases, *everywhere]


def rewound(baseline: Baseline = BASELINE) -> Outcome:
    """The undisturbed rewind, which hit three points and made four calls."""
    [case] = planning.rewind_base(TINYLLM, baseline, layer="point")
    calls = ("mkdir-t#1", "write-t#1", "rename-L#1", "fsync-c#1")
    return Outcome(
        case,
        "pass",
        (),
        "",
        0.1,
        behaviours=(Behaviour((), calls),),
        resume_points=("step.b#1", "rewind.y#1", "save.a#1"),
    )


def test_a_rewind_goes_back_by_one_acknowledged_checkpoint() -> None:
    [case] = planning.rewind_base(TINYLLM, BASELINE, layer="kill")
    assert (case.layer, case.rewind, placed([case])) == ("kill", "step-000006", ["end"])


def test_a_rewind_goes_back_by_two_where_three_are_kept() -> None:
    """And no further: the checkpoints before are gone, or the same with fewer."""
    five = a_baseline(promises=tuple(Promise(step, step, -1) for step in (2, 4, 6, 8, 10)))
    for keep, step in ((2, 8), (3, 6), (4, 6)):
        subject = a_subject(format="tinyllm", keep_ckpts=keep)
        [case] = planning.rewind_base(subject, five, layer="kill")
        assert case.rewind == f"step-{step:06d}"


def test_a_rewind_is_killed_between_two_saves() -> None:
    places = ("step.reported#1", "save.announced#1", "step.began#2", "step.reported#2")
    cases = [
        rewind_case("s", "point", TriggerKind.POINT, "step-000002", place)
        for place in (*places, "step.reported#3")
    ]
    assert placed(planning.between_saves(cases)) == ["end+step.reported#2"]
    assert planning.between_saves(cases[:1]) == planning.between_saves(cases[:2]) == []


def test_there_is_no_rewind_without_a_checkpoint_to_go_back_to() -> None:
    one = a_baseline(promises=(Promise(3, 3, -1),))
    assert planning.rewind_base(TINYLLM, one, layer="kill") == []
    keeps_one = a_subject(format="tinyllm", keep_ckpts=1)
    assert planning.rewind_base(keeps_one, BASELINE, layer="kill") == []
    assert planning.rewind_base(SUBJECT, BASELINE, layer="kill") == []


def test_a_rewinding_attempt_is_killed_at_each_point_and_before_each_call() -> None:
    points = planning.rewind_point_cases(rewound())
    assert placed(points) == ["end+step.b#1", "end+rewind.y#1", "end+save.a#1"]
    assert placed(planning.of_resumes(points, BASELINE)) == ["end+rewind.y#1"]
    kills = planning.rewind_kill_cases(rewound())
    assert placed(kills) == ["end+mkdir-t#1", "end+write-t#1", "end+rename-L#1", "end+fsync-c#1"]
    assert placed(planning.from_the_first_rename(kills)) == ["end+rename-L#1", "end+fsync-c#1"]
    assert {(c.layer, c.rewind) for c in kills} == {("kill", "step-000006")}
    assert {(c.layer, c.rewind) for c in points} == {("point", "step-000006")}


def test_what_tells_most_is_never_left_out() -> None:
    kills = planning.rewind_kill_cases(rewound())
    telling = planning.from_the_first_rename(kills)
    plan = planning.with_a_sample(kills, telling=telling, bound=1)
    assert placed(list(plan.cases)) == ["end+mkdir-t#1", "end+rename-L#1", "end+fsync-c#1"]
    assert plan.note("toy kill") == (
        "toy kill: 3 of 4 cases were run, the 2 unlike those of any other save, and of the rest an "
        "even sample"
    )
    whole = planning.with_a_sample(kills, telling=telling, bound=None)
    assert (list(whole.cases), whole.left_out) == (kills, 0)
