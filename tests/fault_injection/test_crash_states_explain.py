"""Explanations: the order that was needed, the fsyncs to add, the fsyncs that nothing needs."""

import json

import pytest
from hypothesis import given, settings

from fault_injection.crash_states import (
    State,
    Status,
    cause_of,
    describe,
    enumerate_states,
    mend,
    timeline,
    unneeded_syncs,
    with_fsync,
    without,
)
from fault_injection.crash_states.history import nameless_since
from fault_injection.trace import Kind
from tests.fault_injection.random_traces import builds
from tests.fault_injection.traces import Build

DATA = b"d" * 9000


def two_renames(*, sync_files: bool, sync_between: bool) -> Build:
    """Data, then the pointer to it, in one directory; acknowledged after an fsync of it."""
    build = Build({"LATEST": b"old", "old": DATA})
    build.create("new.tmp", DATA)
    if sync_files:
        build.fsync("new.tmp")
    build.rename("new.tmp", "new")
    if sync_between:
        build.fsync()
    build.create("LATEST.tmp", b"new")
    if sync_files:
        build.fsync("LATEST.tmp")
    build.rename("LATEST.tmp", "LATEST")
    build.fsync()
    build.output("saved")
    return build


def resumes(state: State) -> bool:
    """LATEST names a whole file, and the new one once that was acknowledged."""
    tree = state.tree()
    if b"LATEST" not in tree.entries:
        return False
    pointer = tree.read(b"LATEST")
    if pointer not in tree.entries or tree.read(pointer) != DATA:
        return False
    return pointer == b"new" or state.outputs == 0


def failing(build: Build, model: str) -> list[State]:
    return [s for s in enumerate_states(build.trace(), model=model) if not resumes(s)]


def test_a_lost_rename_is_described_and_its_order_named() -> None:
    (bad,) = failing(two_renames(sync_files=True, sync_between=False), "posix")[-1:]
    assert describe(bad) == ("#3 rename new.tmp -> new   not durable at the crash",)
    cause = cause_of(bad, resumes)
    assert cause is not None
    assert (cause.needed, cause.before, cause.smallest) == ((3,), 7, True)
    assert cause.words == (
        "`rename LATEST.tmp -> LATEST` was durable while `rename new.tmp -> new` was not"
    )
    assert cause.good.lost() == ()
    assert json.loads(cause.good.descriptor())["lost"] == []


def test_lost_bytes_are_described_and_their_order_named() -> None:
    bad = failing(two_renames(sync_files=False, sync_between=True), "xfs")
    pointer = next(s for s in bad if [form.name for _, form in s.data] == ["lost"])
    assert describe(pointer) == ("#5 write LATEST.tmp (3 bytes at 0)   not durable at the crash",)
    cause = cause_of(pointer, resumes)
    assert cause is not None
    assert cause.words == (
        "`rename LATEST.tmp -> LATEST` was durable while `write LATEST.tmp (3 bytes at 0)` was not"
    )


def test_a_lost_acknowledgement_names_what_the_world_saw() -> None:
    build = Build({"f": b"old"})
    build.create("tmp", b"new")
    build.fsync("tmp")
    build.rename("tmp", "f")
    build.output("saved\n")

    def kept(state: State) -> bool:
        return state.outputs == 0 or state.tree().read(b"f") == b"new"

    (bad,) = [s for s in enumerate_states(build.trace(), model="ext4") if not kept(s)]
    cause = cause_of(bad, kept)
    assert cause is not None
    assert cause.words == (
        "the world saw `output to stdout: saved` while `rename tmp -> f` was not durable"
    )


def test_a_good_state_and_a_hopeless_one_have_no_cause() -> None:
    states = list(
        enumerate_states(two_renames(sync_files=True, sync_between=True).trace(), model="posix")
    )
    assert cause_of(states[0], resumes) is None
    assert cause_of(states[-1], lambda _: False) is None


def test_two_losses_that_must_both_come_back() -> None:
    build = Build()
    build.create("a", b"a")
    build.create("b", b"b")
    build.output("saved")

    def both(state: State) -> bool:
        names = set(state.tree().entries)
        return state.outputs == 0 or names == {b"a", b"b"}

    none = next(
        s
        for s in enumerate_states(build.trace(), model="posix")
        if s.outputs and not s.tree().entries
    )
    cause = cause_of(none, both)
    assert cause is not None
    assert cause.needed == (0, 2)
    assert cause.smallest


@pytest.mark.parametrize(
    ("model", "additions"),
    [
        (
            "posix",
            {
                "fsync new.tmp after #1 write new.tmp (9000 bytes at 0)",
                "fsync the root after #2 rename new.tmp -> new",
                "fsync LATEST.tmp after #4 write LATEST.tmp (3 bytes at 0)",
            },
        ),
        ("ext4", {"fsync new.tmp after #1 write new.tmp (9000 bytes at 0)"}),
        (
            "xfs",
            {
                "fsync new.tmp after #1 write new.tmp (9000 bytes at 0)",
                "fsync LATEST.tmp after #4 write LATEST.tmp (3 bytes at 0)",
            },
        ),
    ],
)
def test_the_smallest_set_of_fsyncs_that_mends_it(model: str, additions: set[str]) -> None:
    found = mend(two_renames(sync_files=False, sync_between=False).trace(), model, resumes)
    assert {addition.words for addition in found.additions} == additions
    assert (found.complete, found.smallest, found.sampled) == (True, True, False)
    assert found.failing > 0


def test_nothing_is_added_to_a_correct_program() -> None:
    found = mend(two_renames(sync_files=True, sync_between=True).trace(), "posix", resumes)
    assert (found.additions, found.complete, found.failing) == ((), True, 0)


def test_a_rename_across_directories_is_mended_by_two() -> None:
    build = Build({"d": None, "e": None})
    build.create(
        "d/f",
        b"f",
    )
    build.fsync("d/f")
    build.rename("d/f", "e/f")
    build.output("saved")

    def there(state: State) -> bool:
        return state.outputs == 0 or b"e/f" in state.tree().entries

    found = mend(build.trace(), "posix", there)
    assert [a.words for a in found.additions] == [
        "fsync d/ after #3 rename d/f -> e/f",
        "fsync e/ after #3 rename d/f -> e/f",
    ]


def test_what_no_fsync_can_mend_is_said() -> None:
    build = Build({"f": b"old"})
    build.unlink("f")
    build.create("f", b"new")
    build.fsync("f")
    build.fsync()

    found = mend(build.trace(), "ext4", lambda state: b"f" in state.tree().entries)
    assert not found.complete
    assert found.additions == ()


def test_the_fsyncs_that_nothing_needs_are_named_per_model() -> None:
    trace = two_renames(sync_files=True, sync_between=True).trace()
    unneeded = {
        model: [u.words for u in unneeded_syncs(trace, model, resumes)]
        for model in ("posix", "ext4", "xfs")
    }
    assert unneeded == {
        "posix": [],
        # The next fsync of any file forces the earlier names, and a replacing rename its data.
        "ext4": ["fsync the root", "fsync LATEST.tmp"],
        "xfs": ["fsync the root"],
    }


def test_a_timeline_has_every_operation_with_what_became_of_it() -> None:
    build = Build({"f": b"o" * 8192})
    build.write("f", b"n" * 8192, offset=0)
    build.output("ack")
    build.fsync("f")
    cut = next(
        s
        for s in enumerate_states(build.trace(), model="xfs")
        if s.outputs == 1 and s.data and s.data[0][1].name == "cut#0@4096"
    )
    lines = timeline(cut)
    assert [line.status for line in lines] == [Status.PARTLY, Status.SEEN, Status.AFTER]
    assert lines[0].detail == "#0 cut at the page at 4096 of 8192"
    assert describe(cut) == (
        "#0 write f (8192 bytes at 0)   came back in part: #0 cut at the page at 4096 of 8192",
    )


def test_edits_change_the_order_of_nothing_else() -> None:
    trace = two_renames(sync_files=True, sync_between=False).trace()
    edited = with_fsync(trace, 3, 0)
    assert [op.index for op in edited.operations] == list(range(len(trace.operations) + 1))
    added = edited.operations[4]
    assert (added.kind, added.inode) == (Kind.FSYNC, 0)
    for earlier, later in zip(edited.operations, edited.operations[1:], strict=False):
        assert earlier.ended < later.began
    back = without(edited, 4)
    assert [op.place for op in back.operations] == [op.place for op in trace.operations]
    with pytest.raises(ValueError, match="is a create, not a sync"):
        without(trace, 0)
    with pytest.raises(ValueError, match="the trace has"):
        with_fsync(trace, 99, 0)


def test_without_takes_the_sync_off_an_o_sync_write() -> None:
    build = Build({"f": b""})
    build.write("f", b"x", synced="all")
    edited = without(build.trace(), 0)
    assert [op.synced for op in edited.operations] == [""]
    assert len(list(enumerate_states(edited, model="ext4"))) == 2


@settings(deadline=None, max_examples=60)
@given(build=builds())
def test_what_the_timeline_says_of_each_operation_is_what_the_bytes_are(build: Build) -> None:
    """Of every file that lost operations whole: the others, in order, give its content."""
    trace = build.trace()
    for model in ("posix", "ext4", "xfs", "btrfs"):
        for state in enumerate_states(trace, model=model, bound=40):
            became = {line.index: line.status for line in timeline(state)}
            for inode, form in state.data:
                done = state.context.content_ops(inode)
                assert any(became[i] is not Status.DURABLE for i in done)
                if any(became[i] is Status.PARTLY for i in done):
                    continue
                kept = tuple(i for i in done if became[i] is Status.DURABLE)
                store = state.space.history.store
                assert store.digest(state.space.history.content(inode, kept)) == form.digest


@settings(deadline=None, max_examples=40)
@given(build=builds())
def test_what_is_put_back_is_what_the_timeline_says_is_lost(build: Build) -> None:
    for state in enumerate_states(build.trace(), model="posix", bound=40):
        cause = cause_of(state, lambda other: not other.lost() and not other.data)
        lost = [
            line.index for line in timeline(state) if line.status in (Status.LOST, Status.PARTLY)
        ]
        if cause is not None:
            assert set(cause.needed) <= set(lost)


def test_since_when_a_file_has_no_name() -> None:
    build = Build({"a": b"", "b": b""})
    nameless = build.tmpfile(b"x")
    linked = build.tmpfile(b"x")
    build.link(linked, "c")
    build.link("a", "d")
    build.unlink("a")
    build.rename("b", "d")
    build.unlink("d")
    a, b = 1, 2
    assert nameless_since(build.trace()) == {nameless: 0, a: 7, b: 8}
