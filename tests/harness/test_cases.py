"""Case ids: stable, readable, one for each case."""

import msgspec
import pytest

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.cases import Case, kill_case, rewind_case


def test_an_id_never_changes() -> None:
    case = kill_case("my-trainer", "kill", TriggerKind.CALL, "rename-LATEST#2")
    assert case.id == "my-trainer/kill@rename-LATEST#2-5ead403b"


def test_what_defines_a_case_is_in_its_digest() -> None:
    one = kill_case("a", "kill", TriggerKind.CALL, "fsync-x#1")
    others = [
        kill_case("b", "kill", TriggerKind.CALL, "fsync-x#1"),
        kill_case("a", "double", TriggerKind.CALL, "fsync-x#1"),
        kill_case("a", "kill", TriggerKind.CALL, "fsync-x#2"),
        kill_case("a", "kill", TriggerKind.POINT, "fsync-x#1"),
        kill_case("a", "kill", TriggerKind.CALL, "fsync-x#1", "fsync-x#1"),
        Case("a", "kill", (Fault(TriggerKind.CALL, "fsync-x#1", ActionKind.SIGNAL, "SIGTERM"),)),
        Case("a", "kill", one.faults, state=(("lost", "3"),)),
    ]
    assert len({one.digest, *(c.digest for c in others)}) == len(others) + 1


def test_names_of_any_kind_make_ids_that_are_paths() -> None:
    case = kill_case("a", "power/posix", TriggerKind.CALL, "write-a b/%ff\n#1")
    assert case.id.startswith("a/power-posix@write-a_b_")
    assert "\n" not in case.id
    assert case.id.count("/") == 1


def a_rewind(*places: str, back_to: str = "step-000006") -> Case:
    return rewind_case("a", "point", TriggerKind.POINT, back_to, *places)


def test_the_id_of_a_rewind_says_where_to_in_the_place_of_the_first_fault() -> None:
    assert a_rewind().id == "a/point@rewind-step-000006-e8122d24"
    assert a_rewind("save.x#1").id == "a/point@rewind-step-000006+save.x#1-a3370b87"


def test_a_rewind_is_in_the_digest_only_when_there_is_one() -> None:
    """Else the ids of all cases that were ever recorded would change."""
    plain = kill_case("a", "point", TriggerKind.AFTER_LAST_CALL, "end")
    assert plain.digest == "466ca793"
    assert len({plain.digest, a_rewind().digest, a_rewind(back_to="step-000004").digest}) == 3


def test_a_rewind_in_words() -> None:
    assert a_rewind().describe() == "SIGKILL after the last call, then a rewind to step-000006"
    assert a_rewind("save.x#1", "b#1").describe() == (
        "SIGKILL after the last call, then a rewind to step-000006 with SIGKILL at save.x#1, then "
        "SIGKILL at b#1"
    )


@pytest.mark.parametrize("name", ["step-6", "step-000006/..", "../step-000006", "step-000006\n"])
def test_a_rewind_goes_to_a_step_directory_and_nowhere_else(name: str) -> None:
    """A bundle may come from a stranger."""
    with pytest.raises(ValueError, match="not the name of a step directory"):
        a_rewind(back_to=name)
    stored = {**msgspec.to_builtins(a_rewind()), "rewind": name}
    with pytest.raises(msgspec.ValidationError, match="not the name of a step directory"):
        msgspec.convert(stored, Case)


def test_a_rewind_needs_a_first_attempt() -> None:
    with pytest.raises(ValueError, match="comes after a first attempt"):
        Case("a", "kill", rewind="step-000006")


def test_a_case_that_was_stored_before_there_were_rewinds_is_read() -> None:
    stored = msgspec.to_builtins(kill_case("a", "kill", TriggerKind.CALL, "fsync-x#1"))
    del stored["rewind"]
    assert msgspec.convert(stored, Case).rewind == ""
