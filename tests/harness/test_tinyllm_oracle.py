"""The invariants that need tinyllm's format: silent on what is right, seen to fail on the rest."""

from dataclasses import replace

from harness.evidence import Step
from harness.observation import Event
from harness.oracle import judge
from harness.tinyllm_state import RunState
from tests.harness.histories import a_baseline, a_subject, ack, ended, history, killed, loss, losses

SUBJECT = a_subject(format="tinyllm", keep_ckpts=2, final=())
FILES = {step: {"model": f"m{step}", "optimizer": f"o{step}", "config": "c"} for step in (3, 6, 9)}
BASELINE = a_baseline(step_files=FILES, final={})
ALL = frozenset(range(1, 11))
CRASHED = RunState(
    latest=6, complete=(3, 6), files={s: FILES[s] for s in (3, 6)}, progress_steps=frozenset({1})
)
DONE = RunState(latest=9, complete=(6, 9), files=FILES, progress_steps=ALL, resumed_from=6)


def broken(*steps: Step, layer: str = "kill") -> list[str]:
    found = judge(history(*steps, subject=SUBJECT, final={}, layer=layer), BASELINE)
    return [f.invariant for f in found]


def crash(**changes: object) -> Step:
    state = replace(CRASHED, **changes)  # type: ignore[arg-type]
    return killed(*losses(1, 3), ack(3), *losses(4, 6), ack(6), after=state)


def resumed(**changes: object) -> Step:
    state = replace(DONE, **changes)  # type: ignore[arg-type]
    return ended(*losses(7, 9), ack(9), loss(10), after=state)


def test_a_right_case_is_silent() -> None:
    assert broken(crash(), resumed()) == []


def test_a_pointer_to_what_is_not_complete() -> None:
    assert broken(crash(pointer_problem="names step-000009, which is not there"), resumed()) == [
        "pointer-complete"
    ]


def test_a_fresh_start_beside_a_complete_checkpoint() -> None:
    step = resumed(resumed_from=None, started_fresh=True)
    assert broken(crash(), step) == ["no-silent-restart"]


def test_a_mixed_checkpoint() -> None:
    mixed = {6: {**FILES[6], "optimizer": "o3"}}
    assert broken(crash(files=mixed), resumed()) == ["never-mixed"]


def test_files_that_are_the_same_in_every_step_are_not_mixed() -> None:
    assert broken(crash(files={6: FILES[6]}), resumed()) == []


def test_an_unreadable_progress_file() -> None:
    assert broken(crash(), resumed(progress_problem="line 3 is not JSON")) == ["progress-readable"]


def test_a_step_missing_in_the_progress_file() -> None:
    assert broken(crash(), resumed(progress_steps=ALL - {5})) == ["progress-readable"]


def test_retention_that_keeps_too_many() -> None:
    assert broken(crash(complete=(0, 1, 2, 3)), resumed()) == ["retention"]
    assert broken(crash(), resumed(complete=(3, 6, 9))) == ["retention"]


def test_retention_that_keeps_too_few() -> None:
    assert broken(crash(complete=(6,)), resumed()) == ["retention"]
    assert broken(crash(complete=(6,)), resumed(), layer="corrupt") == []


def test_a_rewind_gives_up_no_checkpoint_before_the_next_is_there() -> None:
    """The old one of the next save's name is moved aside, when the new one is whole."""
    first = killed(*losses(1, 9), ack(3), ack(6), ack(9), after=replace(CRASHED, complete=(6, 9)))
    spare = crash(complete=(6,), spare=("step-000009.aside-1.tmp", "step-000009.tmp"))
    back = replace(spare, events=losses(7, 9), resuming=True, rewind="step-000006")
    assert broken(first, back, resumed()) == []
    assert "retention" in broken(first, replace(back, rewind=""), resumed())
    gone = replace(back, after=replace(CRASHED, complete=(6,)))
    assert broken(first, gone, resumed()) == ["retention"]


def test_the_line_that_a_rewind_gives_up_is_gone_when_it_has_saved_and_gone_on() -> None:
    first = killed(*losses(1, 9), ack(3), ack(6), ack(9), after=replace(CRASHED, complete=(6, 9)))
    stands = crash(complete=(6, 9))

    def rewound(*events: Event, **changes: object) -> Step:
        return replace(
            stands,
            events=events,
            resuming=True,
            rewind="step-000003",
            **changes,  # type: ignore[arg-type]
        )

    went_on = (*losses(4, 6), ack(6), *losses(7, 7))
    assert broken(first, rewound(*went_on), resumed()) == ["retention"]
    gone = replace(CRASHED, complete=(3, 6))
    assert broken(first, rewound(*went_on, after=gone), resumed()) == []
    # What was given up is no longer promised, but what it went back to is.
    three = replace(SUBJECT, keep_ckpts=3)
    all_three = replace(first, after=replace(CRASHED, complete=(3, 6, 9)))
    fewer = replace(CRASHED, complete=(3,))
    for after, found in ((gone, []), (fewer, ["retention"])):
        back = rewound(*went_on, after=after)
        judged = judge(
            history(all_three, back, resumed(complete=(3, 6, 9)), subject=three, final={}), BASELINE
        )
        assert [f.invariant for f in judged] == found
    # Not yet: before its next step it may still be removing; and its own save of step 9 is no
    # leftover. Nor is there such a line without a rewind.
    assert broken(first, rewound(*losses(4, 6), ack(6)), resumed()) == []
    assert broken(first, rewound(*went_on, *losses(8, 9)), resumed()) == []
    assert "retention" not in broken(first, replace(rewound(*went_on), rewind=""), resumed())


def test_a_step_directory_that_stays_half_deleted() -> None:
    def left(**files: str) -> Step:
        there = {**FILES, 3: files}
        return resumed(broken=(("step-000003", "does not verify"),), files=there)

    assert broken(crash(), left(model="m3", config="c")) == ["retention"]
    assert broken(crash(), left(**FILES[3])) == ["retention"]  # without its manifest
    whole_but_damaged = left(**{**FILES[3], "model": "x", "MANIFEST.json": "m"})
    assert broken(crash(), whole_but_damaged) == []


def test_something_temporary_that_outlives_the_next_save() -> None:
    assert broken(crash(), resumed(temporary=("step-000009.tmp",))) == ["retention"]
    nothing_saved = ended(loss(10), after=replace(DONE, temporary=("step-000009.tmp",)))
    done = killed(*losses(1, 9), ack(9), after=CRASHED)
    assert "retention" not in broken(done, nothing_saved)
