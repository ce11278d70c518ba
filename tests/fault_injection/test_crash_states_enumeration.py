"""The enumeration: what is taken, in which order, how it is counted, and how fast it is."""

import random
import time

import pytest

from fault_injection.crash_states import PlaceCount, State, enumerate_states, rebuild
from fault_injection.trace import Trace
from tests.fault_injection.traces import Build

ALL = ("posix", "ext4", "xfs", "btrfs")


def checkpoint_save(files: int) -> Trace:
    """One save by the book, over a tree of two older checkpoints, with retention after it."""
    rng = random.Random(files)
    tree: dict[str, bytes | None] = {"ckpt": None, "progress": b"p" * 500}
    for step in ("step-1", "step-2"):
        tree[f"ckpt/{step}"] = None
        for n in range(files):
            tree[f"ckpt/{step}/f{n}"] = rng.randbytes(2000)
    build = Build({**tree, "ckpt/LATEST": b"step-2\n"})
    build.mkdir("ckpt/step-3.tmp")
    for n in range(files):
        build.create(f"ckpt/step-3.tmp/f{n}", rng.randbytes(50_000))
        build.fsync(f"ckpt/step-3.tmp/f{n}")
    build.fsync("ckpt/step-3.tmp")
    build.rename("ckpt/step-3.tmp", "ckpt/step-3")
    build.fsync("ckpt")
    build.create("ckpt/LATEST.tmp", b"step-3\n")
    build.fsync("ckpt/LATEST.tmp")
    build.rename("ckpt/LATEST.tmp", "ckpt/LATEST")
    build.fsync("ckpt")
    build.output("saved step=3")
    build.rename("ckpt/step-1", "ckpt/step-1.tmp")
    for n in range(files):
        build.unlink(f"ckpt/step-1.tmp/f{n}")
    build.rmdir("ckpt/step-1.tmp")
    return build.trace()


def nothing_synced(files: int) -> Trace:
    build = Build()
    for n in range(files):
        build.create(f"f{n}", b"%d" % n)
    return build.trace()


@pytest.mark.parametrize("model", ALL)
def test_each_identity_comes_once_and_always_in_the_same_order(model: str) -> None:
    first = [s.descriptor() for s in enumerate_states(checkpoint_save(3), model=model, seed=7)]
    second = [s.descriptor() for s in enumerate_states(checkpoint_save(3), model=model, seed=7)]
    assert first == second
    states = list(enumerate_states(checkpoint_save(3), model=model))
    assert len({state.identity for state in states}) == len(states)


def test_all_sets_are_taken_while_they_are_few() -> None:
    build = Build()
    for n in range(6):
        build.create(f"f{n}")
    counts: list[PlaceCount] = []
    states = list(enumerate_states(build.trace(), model="posix", counts=counts))
    assert len(states) == 2**6
    assert [count.allowed for count in counts] == [2**n for n in range(7)]
    assert [count.new for count in counts] == [1, 1, 2, 4, 8, 16, 32]
    assert not any(count.sampled for count in counts)


def test_above_the_bound_it_says_so_and_takes_prefixes_omissions_and_pairs() -> None:
    build = Build()
    for n in range(14):
        build.create(f"f{n}")
    counts: list[PlaceCount] = []
    shapes = {
        frozenset(state.tree().entries)
        for state in enumerate_states(build.trace(), model="posix", counts=counts, bound=600)
    }
    everything = frozenset(b"f%d" % n for n in range(14))
    assert counts[-1].sampled
    assert counts[-1].allowed == -1
    assert counts[-1].sets <= 600
    assert [count.sampled for count in counts[:10]] == [False] * 10
    for n in range(14):
        assert frozenset(b"f%d" % i for i in range(n)) in shapes
        assert everything - {b"f%d" % n} in shapes
        assert {b"f%d" % n} in shapes
        for m in range(n):
            assert everything - {b"f%d" % n, b"f%d" % m} in shapes


def test_another_seed_gives_another_sample() -> None:
    trace = nothing_synced(12)
    samples = [
        {s.digest for s in enumerate_states(trace, model="posix", bound=300, seed=seed)}
        for seed in (1, 2)
    ]
    assert samples[0] != samples[1]


def test_each_form_of_a_file_while_the_others_are_whole_and_while_they_are_lost() -> None:
    build = Build(dict.fromkeys("abc", b"-" * 512))
    for name in "abc":
        build.write(name, name.encode() * 512, offset=0)
    build.output("cut here")
    found = {
        tuple(state.tree().read(name)[-1:] for name in (b"a", b"b", b"c"))
        for state in enumerate_states(build.trace(), model="xfs")
        if state.outputs
    }
    # Whole, lost, one lost, two lost: with two forms a file these are all combinations.
    assert len(found) == 8


def test_outputs_tell_equal_trees_apart() -> None:
    build = Build({"f": b"f"})
    build.output("one")
    build.output("two")
    assert [s.outputs for s in enumerate_states(build.trace(), model="posix")] == [0, 1, 2]
    only_second = list(enumerate_states(build.trace(), model="posix", outputs={1}))
    assert [s.outputs for s in only_second] == [0, 1]


def test_a_file_written_through_as_an_acknowledgement_counts_as_seen() -> None:
    build = Build({"log": b""})
    build.write("log", b"ack\n", synced="all")
    states = list(enumerate_states(build.trace(), model="posix", outputs={0}))
    assert [(s.outputs, s.tree().read(b"log")) for s in states] == [(0, b""), (1, b"ack\n")]


def test_the_bound_must_be_positive() -> None:
    with pytest.raises(ValueError, match="bound 0"):
        next(enumerate_states(nothing_synced(1), model="posix", bound=0))


def _rebuilt(trace: Trace, descriptor: str) -> State:
    return rebuild(trace, "posix", descriptor)


@pytest.mark.parametrize(
    ("descriptor", "why"),
    [
        ("{", "not the descriptor"),
        ("[]", "not the descriptor"),
        ('{"after":"start","data":[],"lost":[],"model":"ext4","place":0}', "under ext4"),
        ('{"after":"create-x#1","data":[],"lost":[],"model":"posix","place":1}', "no crash place"),
        ('{"after":"start","data":[],"lost":[],"model":"posix","place":99}', "no crash place"),
        ('{"after":"fsync-f0#1","data":[],"lost":[1],"model":"posix","place":3}', "has not all"),
        (
            '{"after":"fsync-root#1","data":[],"lost":[0],"model":"posix","place":4}',
            "does not allow",
        ),
        (
            '{"after":"fsync-f0#1","data":[[1,"lost"]],"lost":[],"model":"posix","place":3}',
            "does not allow file 1 to be 'lost'",
        ),
    ],
)
def test_a_descriptor_that_fits_nothing_says_why(descriptor: str, why: str) -> None:
    build = Build()
    build.create("f0", b"0")
    build.fsync("f0")
    build.fsync()
    with pytest.raises(ValueError, match=why):
        _rebuilt(build.trace(), descriptor)


def test_one_save_under_all_models_takes_about_a_second() -> None:
    """CPU time, so that other work on the machine does not matter; measured: about 0.15 s."""
    trace = checkpoint_save(7)
    assert 40 <= len(trace.operations) <= 60
    started = time.process_time()
    found = {model: sum(1 for _ in enumerate_states(trace, model=model)) for model in ALL}
    assert time.process_time() - started < 2.0
    assert found["posix"] > 1000
    assert found["ext4"] > 40


def test_twice_the_files_takes_in_proportion_where_the_order_is_kept() -> None:
    """States found, which is what the time goes by: exact, unlike a clock."""
    for model in ("ext4", "xfs", "btrfs"):
        few, many = (
            sum(1 for _ in enumerate_states(checkpoint_save(files), model=model))
            for files in (8, 16)
        )
        assert many <= 2.5 * few


def test_the_adversary_is_held_by_its_bound() -> None:
    """All subsets of a directory's names double with each file, up to the bound at each place."""
    for files in (8, 16):
        counts: list[PlaceCount] = []
        for _ in enumerate_states(checkpoint_save(files), model="posix", bound=64, counts=counts):
            pass
        assert max(count.sets for count in counts) == 64
        assert max(count.states for count in counts) <= 8 * 64
        assert all(count.sampled for count in counts if count.allowed == -1)
        assert any(count.sampled for count in counts)
