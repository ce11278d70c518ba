"""Where a fault strikes, decided from names and counts alone."""

import pytest

from fault_injection.aim import Aim
from fault_injection.faults import ActionKind, Fault, TriggerKind

CALLS = [f"{label}#{n}" for n in range(1, 6) for label in ("write-a", "write-b", "fsync-a")]


def struck(fault: Fault | None) -> list[str]:
    """The calls of a run that an aim hits, counted as its caller counts."""
    aim = Aim(fault)
    found = []
    for place in CALLS:
        if aim.hits_call(place):
            aim.strikes += 1
            found.append(place)
    return found


@pytest.mark.parametrize(
    ("place", "action", "times", "expected"),
    [
        ("write-a#3", ActionKind.KILL, 1, ["write-a#3"]),
        ("write-a#3", ActionKind.SIGNAL, 5, ["write-a#3"]),
        ("write-a#3", ActionKind.PAUSE, 0, ["write-a#3"]),
        ("write-a#6", ActionKind.KILL, 1, []),
        ("write-c#1", ActionKind.KILL, 1, []),
        ("write-b#2", ActionKind.ERRNO, 1, ["write-b#2"]),
        ("write-b#2", ActionKind.ERRNO, 2, ["write-b#2", "write-b#3"]),
        ("write-b#4", ActionKind.ERRNO, 0, ["write-b#4", "write-b#5"]),
        ("fsync-a#5", ActionKind.SHORT_WRITE, 3, ["fsync-a#5"]),
    ],
)
def test_a_place_is_hit_as_often_as_the_action_says(
    place: str, action: ActionKind, times: int, expected: list[str]
) -> None:
    detail = "EIO" if action is ActionKind.ERRNO else "SIGTERM"
    assert struck(Fault(TriggerKind.CALL, place, action, detail, times)) == expected


def test_a_name_may_hold_the_sign_that_counts() -> None:
    fault = Fault(TriggerKind.CALL, "write-x#1#2")
    assert Aim(fault).hits_call("write-x#1#2")
    assert not Aim(fault).hits_call("write-x#2")


def test_faults_of_another_kind_and_none_hit_no_call() -> None:
    for fault in (None, Fault(TriggerKind.POINT, "write-a#1"), Fault(TriggerKind.TIME, "1")):
        assert struck(fault) == []


def test_only_the_chosen_point_counts_and_only_once() -> None:
    aim = Aim(Fault(TriggerKind.POINT, "a.b"))
    assert aim.chosen_point() == "a.b"
    assert not aim.hits_point("a.b#2")
    assert not aim.hits_point("a.c#1")
    assert aim.hits_point("a.b#1")
    aim.strikes = 1
    assert not aim.hits_point("a.b#1")


def test_an_end_is_hit_once_and_only_when_asked_for() -> None:
    aim = Aim(Fault(TriggerKind.AFTER_LAST_CALL, ""))
    assert aim.watches_end()
    assert aim.hits_end()
    aim.strikes = 1
    assert not aim.hits_end()
    assert not Aim(Fault(TriggerKind.POINT, "a")).watches_end()
    assert not Aim(None).hits_end()


@pytest.mark.parametrize("place", ["", "write", "write-a#", "write-a#0", "#1", "write-a#-1"])
def test_a_place_without_a_name_or_an_occurrence_is_an_error(place: str) -> None:
    with pytest.raises(ValueError, match="is not <call>-<name>#<occurrence>"):
        Aim(Fault(TriggerKind.CALL, place))


def test_seconds_are_a_number_from_0_on() -> None:
    assert Aim(Fault(TriggerKind.TIME, "0.25")).time_s() == 0.25
    assert Aim(Fault(TriggerKind.POINT, "a")).time_s() is None
    for wrong in ("-1", "nan", "inf", "soon"):
        with pytest.raises(ValueError, match=r"number of seconds|could not convert"):
            Aim(Fault(TriggerKind.TIME, wrong)).time_s()
