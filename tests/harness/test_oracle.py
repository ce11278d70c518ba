"""Each invariant: silent on what is right, and seen to fail on what is wrong."""

from dataclasses import replace

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.evidence import Step
from harness.observation import Event, losses_of
from harness.oracle import invariants_of, judge
from harness.promises import promises_of
from tests.harness.histories import (
    a_baseline,
    a_subject,
    ack,
    ended,
    history,
    killed,
    loss,
    losses,
    uninterrupted,
)


def broken(*args: object, **kwargs: object) -> list[str]:
    return [f.invariant for f in judge(history(*args, **kwargs), a_baseline())]  # type: ignore[arg-type]


def test_a_resume_from_the_newest_acknowledged_checkpoint_is_right() -> None:
    assert broken(killed(*losses(1, 3), ack(3), loss(4)), ended(*losses(4, 10))) == []


def test_a_resume_from_a_checkpoint_newer_than_the_last_acknowledgement_is_right() -> None:
    assert broken(killed(*losses(1, 3), ack(3), *losses(4, 6)), ended(*losses(7, 10))) == []


def test_a_fresh_start_before_any_acknowledgement_is_right() -> None:
    assert broken(killed(loss(1), loss(2)), ended(*uninterrupted())) == []


def twice(*steps: int) -> tuple[Event, ...]:
    """Each step is trained, saved, and evaluated."""
    return tuple(e for s in steps for e in (loss(s), ack(s), loss(s, f"0.{s}")))


def test_a_step_may_have_a_loss_before_its_acknowledgement_and_one_after() -> None:
    events = twice(1, 2, 3)
    known = a_baseline(losses=losses_of(events), shown=events, promises=promises_of(events))

    def found(*steps: Step) -> list[str]:
        return [f.invariant for f in judge(history(*steps), known)]

    evaluated = killed(loss(1), ack(1), loss(1, "0.1"), loss(2), ack(2))
    assert found(evaluated, ended(loss(2, "0.2"), *twice(3))) == []
    assert found(evaluated, ended(*twice(3))) == []  # one that does not evaluate again
    assert found(evaluated, ended(*twice(2, 3))) == ["no-lost-ack"]
    assert found(evaluated, ended(*twice(1, 2, 3))) == ["no-lost-ack", "no-silent-restart"]


def test_an_acknowledgement_that_the_uninterrupted_run_never_gave_is_a_promise_as_well() -> None:
    stopped = killed(*losses(1, 3), ack(3), loss(4), loss(5), ack(5))
    for count_steps, found in ((True, ["no-lost-ack"]), (False, [])):
        known = a_baseline(acks_count_steps=count_steps)
        steps = history(stopped, ended(*losses(5, 10)))
        assert [f.invariant for f in judge(steps, known)] == found
        assert judge(history(stopped, ended(*losses(6, 10))), known) == []


def test_losing_an_acknowledged_checkpoint() -> None:
    assert broken(killed(*uninterrupted()[:8]), ended(*losses(4, 10))) == ["no-lost-ack"]


def test_losing_the_very_first_is_also_a_silent_restart() -> None:
    found = broken(killed(*losses(1, 3), ack(3)), ended(*losses(1, 10)))
    assert found == ["no-lost-ack", "no-silent-restart"]


def test_an_acknowledgement_with_nothing_after_it_was_too_early() -> None:
    found = broken(
        killed(*uninterrupted()[:8], calls_since_ack=0),
        ended(*losses(4, 10)),
    )
    assert found == ["no-lost-ack", "ack-after-durable"]


def test_calls_after_the_acknowledgement_may_have_destroyed_it_instead() -> None:
    found = broken(killed(*uninterrupted()[:8], calls_since_ack=2), ended(*losses(4, 10)))
    assert found == ["no-lost-ack"]


def test_an_acknowledgement_of_the_last_checkpoint_allows_only_what_follows_it() -> None:
    assert broken(killed(*uninterrupted()), ended(loss(10))) == []
    assert broken(killed(*uninterrupted()), ended(*losses(9, 10))) == ["no-lost-ack"]


def test_the_acknowledgement_of_an_earlier_attempt_still_counts() -> None:
    found = broken(
        killed(*losses(1, 3), ack(3), loss(4)),
        killed(loss(4), resuming=True),
        ended(*losses(1, 10)),
    )
    assert found == ["no-lost-ack", "no-silent-restart"]


def test_one_bit_of_one_loss() -> None:
    found = broken(killed(loss(1)), ended(loss(1), loss(2, "0.500000001"), *losses(3, 10)))
    assert found == ["same-losses"]


def test_a_loss_of_the_killed_attempt_counts_too() -> None:
    assert broken(killed(loss(1, "2")), ended(*losses(1, 10))) == ["same-losses"]


def test_a_step_that_never_was() -> None:
    assert broken(killed(loss(1)), ended(*losses(1, 10), loss(11))) == ["same-losses"]


def test_ending_early_with_success() -> None:
    assert broken(killed(*losses(1, 4)), ended(*losses(4, 8))) == ["same-losses"]


def test_a_step_left_out_on_the_way() -> None:
    assert broken(killed(loss(1)), ended(*losses(1, 4), *losses(6, 10))) == ["same-losses"]


def test_no_loss_printed_is_right_only_when_all_was_done() -> None:
    assert broken(killed(*losses(1, 5)), ended()) == ["same-losses"]
    assert broken(killed(*losses(1, 5)), ended(), tree_is_final=True) == []
    assert broken(killed(*uninterrupted()), ended()) == []


def test_final_artifacts() -> None:
    run = (killed(loss(1)), ended(*losses(1, 10)))
    assert broken(*run, final={"final.bin": "bb"}) == ["same-final"]
    assert broken(*run, final={}) == ["same-final"]
    assert broken(*run, final={"final.bin": "aa", "other.bin": "aa"}) == ["same-final"]


def test_a_failing_or_hanging_resume() -> None:
    assert broken(killed(loss(1)), ended(exit_code=1, output="Traceback\nKeyError: 'x'\n")) == [
        "resumable"
    ]
    [finding] = judge(
        history(killed(loss(1)), ended(exit_code=1, output="Traceback\nKeyError: 'x'\n")),
        a_baseline(),
    )
    assert "KeyError: 'x'" in finding.message
    assert broken(killed(loss(1)), ended(timed_out=True)) == ["resumable"]


def test_an_error_must_be_told_with_the_name_of_its_file() -> None:
    """The root has no name of its own: it is meant when the output has its path."""

    def found(place: str, output: str) -> list[str]:
        fault = Fault(TriggerKind.CALL, place, action=ActionKind.ERRNO, detail="EIO")
        failed = replace(killed(loss(1)), fault=fault, output=output)
        return broken(failed, ended(*losses(1, 10)), layer="error")

    assert found("fsync-a.bin#2", "error: {root}/a.bin: Input/output error\n") == []
    assert found("fsync-a.bin#2", "error: {root}: Input/output error\n") == ["error-is-clear"]
    assert found("fsync-.#1", "error: {root}: cannot fsync\n") == []
    assert found("fsync-.#1", "something failed.\n") == ["error-is-clear"]


def test_which_invariants_apply_depends_on_what_the_subject_tells() -> None:
    bare = a_subject(losses=None, acknowledged=None, final=())
    assert invariants_of(bare, layers=["kill"]) == ["resumable"]
    assert invariants_of(a_subject(), layers=["kill"]) == [
        "resumable",
        "no-lost-ack",
        "no-silent-restart",
        "ack-after-durable",
        "same-losses",
        "same-final",
    ]
    assert "error-is-clear" in invariants_of(bare, layers=["error"])
    assert invariants_of(a_subject(format="tinyllm"), layers=["kill"])[-4:] == [
        "pointer-complete",
        "never-mixed",
        "progress-readable",
        "retention",
    ]


REWIND = replace(killed(*losses(7, 9), ack(9), resuming=True), rewind="step-000006")


def rewind(*events: object, **changes: object) -> object:
    return replace(REWIND, events=events, **changes)  # type: ignore[arg-type]


def test_a_rewind_gives_up_what_was_acknowledged_after_it() -> None:
    assert (
        broken(killed(*uninterrupted()), replace(ended(*uninterrupted()[8:]), rewind="step-000006"))
        == []
    )


def test_a_rewind_that_begins_before_the_step_it_was_told_has_lost_it() -> None:
    found = broken(killed(*uninterrupted()), rewind(*losses(4, 9)), ended(*losses(7, 10)))
    assert found == ["no-lost-ack"]


def test_after_a_killed_rewind_either_end_is_right() -> None:
    """The old last checkpoint, when the rewind changed nothing yet, or the one gone back to."""
    for last in (ended(loss(10)), ended(*losses(7, 10))):
        assert broken(killed(*uninterrupted()), rewind(loss(7)), last) == []


def test_after_a_killed_rewind_the_step_gone_back_to_is_still_promised() -> None:
    found = broken(killed(*uninterrupted()), rewind(loss(7)), ended(*losses(4, 10)))
    assert found == ["no-lost-ack"]
    found = broken(killed(*uninterrupted()), rewind(loss(7)), ended(*losses(1, 10)))
    assert found == ["no-lost-ack", "no-silent-restart"]


def test_what_the_rewinding_attempt_acknowledges_counts_again() -> None:
    found = broken(killed(*uninterrupted()), rewind(*losses(7, 9), ack(9)), ended(*losses(7, 10)))
    assert found == ["no-lost-ack"]
