"""The words for why a crash state is bad: an order that an fsync keeps, or why none can."""

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings

from fault_injection.crash_states import Cause, State, cause_of, enumerate_states, with_fsync
from fault_injection.crash_states.space import is_allowed, space_of, world_sees
from fault_injection.trace import FileType, Kind, Node
from harness.power.reasons import Reason, reason_of, to_sync
from tests.fault_injection.random_traces import builds
from tests.fault_injection.traces import Build

MODELS = ("posix", "ext4", "xfs", "btrfs")
ONE_BLOCK = b"o" * 300


def reasons(build: Build, model: str, good: Callable[[State], bool]) -> list[Reason]:
    """Of each failing state, in the order of enumeration, each once."""
    found: dict[Reason, None] = {}
    for state in enumerate_states(build.trace(), model=model):
        if not good(state):
            found.setdefault(reason_of(state, cause_of(state, good)))
    return list(found)


class Good:
    """Some file of ``names`` is a whole ``size`` bytes, from ``outputs`` acknowledgements on."""

    def __init__(self, *names: bytes, size: int, outputs: int = 1) -> None:
        self.names, self.size, self.outputs = names, size, outputs

    def __call__(self, state: State) -> bool:
        tree = state.tree()
        there = [tree.read(name) for name in self.names if name in tree.entries]
        return state.outputs < self.outputs or self.size in [len(data) for data in there]


def needs_of(build: Build, model: str, good: Callable[[State], bool]) -> list[str]:
    return list(dict.fromkeys(reason.needs for reason in reasons(build, model, good)))


@pytest.mark.parametrize("model", MODELS)
def test_a_copy_that_was_not_synced_when_the_original_went_is_paired_with_that(model: str) -> None:
    """The acknowledgement of the original is older than the copy: nothing belongs between them."""
    build = Build()
    build.create("c", ONE_BLOCK)
    build.fsync("c")
    build.fsync()
    build.output("saved step=1\n")
    build.create("c.bak", ONE_BLOCK)
    build.fsync()
    build.truncate("c", call="openat")
    assert needs_of(build, model, Good(b"c", b"c.bak", size=300)) == [
        "fsync(c.bak) between #6 write c.bak (300 bytes at 0) and #8 truncate c to 0 bytes"
    ]


def test_of_several_lost_ones_the_last_before_what_came_too_early_is_named() -> None:
    """Both saves are lost; the first was told of long before the second was made."""
    build = Build()
    for step in (1, 2):
        build.create("tmp", ONE_BLOCK)
        build.fsync("tmp")
        build.rename("tmp", "c")
        build.output(f"saved step={step}\n")
    rename = "#3 rename tmp -> c"
    acknowledgement = '#4 the acknowledgement "saved step=1"'
    assert needs_of(build, "ext4", Good(b"c", size=300)) == [
        f"fsync(the root directory) between {rename} and {acknowledgement}"
    ]


def test_what_no_fsync_can_order_is_not_given_an_interval() -> None:
    in_place = Build({"c": b"o" * 9000})
    in_place.output("saved\n")
    in_place.truncate("c", call="openat")
    in_place.write("c", b"n" * 9000)
    whole = Good(b"c", size=9000)

    def or_empty(state: State) -> bool:
        return whole(state) or not state.tree().read(b"c")

    advice = "an fsync cannot make it so: write a new file, sync it, and rename it over the old one"
    write = "#2 write c (9000 bytes at 0)"
    at_once = f"{write} to be durable at once with #1 truncate c to 0 bytes; {advice}"
    assert needs_of(in_place, "xfs", whole) == ["", at_once]  # a kill leaves the empty one
    assert needs_of(in_place, "xfs", or_empty) == [f"{write} to be atomic; {advice}"]


def test_of_what_was_lost_only_what_came_too_late_is_blamed() -> None:
    """The whole chain is lost, but what was told of is what the last rename brings."""
    build = Build()
    build.create("tmp", b"old")
    build.fsync("tmp")
    build.rename("tmp", "c")
    build.create("tmp", ONE_BLOCK)
    build.fsync("tmp")
    build.output("saved\n")
    build.rename("tmp", "c")
    build.output("step\n")
    rename, told_of = "#8 rename tmp -> c", '#7 the acknowledgement "saved"'
    assert needs_of(build, "posix", Good(b"c", size=300)) == [
        "",  # a kill before the rename
        f"{rename}, then fsync(the root directory), before {told_of}, which came too early",
    ]


def test_an_acknowledgement_that_came_first_and_a_removal_that_did() -> None:
    told = Build()
    told.output("saved\n")
    told.create("c", ONE_BLOCK)
    told.fsync("c")
    write, told_of = "#2 write c (300 bytes at 0)", '#0 the acknowledgement "saved"'
    assert needs_of(told, "posix", Good(b"c", size=300)) == [
        "",  # a kill before it is made
        f"{write}, then fsync(c), before {told_of}, which came too early",
    ]
    removed = Build({"c-1": ONE_BLOCK})
    removed.output("saved\n")
    removed.create("tmp", ONE_BLOCK)
    removed.fsync("tmp")
    removed.unlink("c-1")
    removed.fsync()
    removed.rename("tmp", "c-2")
    removed.output("saved\n")
    rename, advice = "#6 rename tmp -> c-2", "remove the old one when the new one is durable"
    assert needs_of(removed, "ext4", Good(b"c-1", b"c-2", size=300))[1:] == [
        f"{rename} to be durable at once with #4 unlink c-1; an fsync cannot make it so: {advice}"
    ]


def test_a_length_that_changed_and_bytes_that_did_not_come_are_told_apart() -> None:
    """The form in which only lengths and holes are durable loses the write, not the hole."""
    build = Build({"slots": ONE_BLOCK + bytes(8192 - 300)})
    build.output("saved\n")
    build.write("slots", ONE_BLOCK, offset=4096)
    index = build._add(Kind.PUNCH, "punch-slots", inode=1, size=4096, keep_size=True)
    build.fsync("slots")

    def good(state: State) -> bool:
        return ONE_BLOCK in state.tree().read(b"slots")

    (bad,) = [s for s in enumerate_states(build.trace(), model="xfs") if not good(s)]
    assert [form.name for _, form in bad.data] == ["sizes"]
    reason = reason_of(bad, cause_of(bad, good))
    write = "#1 write slots (300 bytes at 4096)"
    assert reason.lost == (f"{write}   not durable at the crash",)
    assert reason.needs == (
        f"fsync(slots) between {write} and #{index} punch slots (4096 bytes at 0)"
    )


def test_what_came_back_in_part_is_not_called_lost() -> None:
    build = Build({"c": b"o" * 9000})
    build.write("c", b"n" * 9000, offset=0)

    def good(state: State) -> bool:
        return len(set(state.tree().read(b"c"))) == 1

    found = reasons(build, "xfs", good)
    assert found[0].lost == (
        "#0 write c (9000 bytes at 0)   came back in part: #0 cut at the page at 4096 of 9000",
    )
    assert {reason.signature for reason in found} == {"atomic write of fsync(c)"}


def test_a_directory_outside_the_root_is_called_that() -> None:
    build = Build()
    build.start[7] = Node(7, FileType.DIRECTORY, 0o755, entries={b"c": 8})
    build.start[8] = Node(8, FileType.FILE, 0o644, blob=build.blobs.add(ONE_BLOCK), size=300)
    build._add(Kind.RENAME, "rename-c", inode=8, parent=7, name=b"c", new_parent=0, new_name=b"c")
    build.output("saved\n")
    syncs = "fsync(the root directory) and fsync(the directory outside the root)"
    moved, told_of = "#0 rename (outside the root)/c -> c", '#1 the acknowledgement "saved"'
    assert needs_of(build, "posix", Good(b"c", size=300)) == [
        f"{syncs} between {moved} and {told_of}"
    ]


def parted(state: State) -> bool:
    """Half of all states are bad, by no order that anybody meant."""
    return int(state.digest[:2], 16) % 2 == 0


def is_excluded(state: State, cause: Cause) -> bool:
    """Whether the fsyncs that are named, where they are said to belong, forbid the state."""
    trace = state.space.history.trace
    earlier = [i for i in cause.needed if i < cause.before]
    place, edited = state.place, trace
    for inode in sorted({inode for i in earlier for inode in to_sync(trace, i)}):
        edited = with_fsync(edited, earlier[-1], inode)
        place += 1
    seen = frozenset(op.index for op in edited.operations if op.kind is Kind.OUTPUT)
    space = space_of(edited, state.space.model.name, seen)
    context = space.contexts[place]
    if not is_allowed(space, context, state.durable):
        return True
    for inode, form in state.data:
        forms = space.forms_of(inode, *space.split(context, state.durable, inode))
        if form.digest not in [other.digest for other in forms]:
            return True
    return False


@settings(deadline=None, max_examples=60)
@given(build=builds())
def test_an_interval_never_ends_before_it_begins(build: Build) -> None:
    """And the fsyncs in it forbid the state: over random runs, and states bad at random."""
    trace = build.trace()
    for model in MODELS:
        states = enumerate_states(trace, model=model, bound=40, outputs=world_sees(trace))
        for state in states:
            cause = cause_of(state, parted)
            reason = reason_of(state, cause)
            numbers = [int(n) for n in re.findall(r"#(\d+)", reason.needs)]
            if cause is None or not numbers:
                continue
            if " between " in reason.needs:
                first, last = numbers
                assert first < last == cause.before
                assert first in cause.needed
                assert is_excluded(state, cause)
            else:
                assert cause.too_late
                assert min(n for n in numbers if n != cause.before) > cause.before
