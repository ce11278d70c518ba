"""Case ids: stable, readable, one for each case."""

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.cases import Case, kill_case


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
