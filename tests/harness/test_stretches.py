"""The states of a run, shared out in stretches: together they are the enumeration, once each."""

import itertools

import pytest

from fault_injection.crash_states import PlaceCount, enumerate_states
from harness.power.stretches import Enumerated
from tests.fault_injection.test_crash_states_enumeration import checkpoint_save

TRACE = checkpoint_save(3)
END = len(TRACE.operations)
OUTPUTS = tuple(op.index for op in TRACE.operations if op.stream)


def enumerated(most_kept: int) -> Enumerated:
    return Enumerated(TRACE, "posix", 0, 64, OUTPUTS, most_kept)


@pytest.mark.parametrize("most_kept", [10_000, 50, 0])
@pytest.mark.parametrize("last_first", [False, True])
@pytest.mark.parametrize("pieces", [1, 2, 7, END + 1])
def test_stretches_together_are_the_whole(most_kept: int, last_first: bool, pieces: int) -> None:
    expected_counts: list[PlaceCount] = []
    expected = [
        state.descriptor()
        for state in enumerate_states(
            TRACE, model="posix", bound=64, outputs=OUTPUTS, counts=expected_counts
        )
    ]
    bounds = [(END + 1) * n // pieces for n in range(pieces + 1)]
    stretches = [(first, last - 1) for first, last in itertools.pairwise(bounds)]
    stretches[-1] = (stretches[-1][0], -1)
    states = enumerated(most_kept)
    found = {}
    for first, last in reversed(stretches) if last_first else stretches:
        counts: list[PlaceCount] = []
        given = [s.descriptor() for s in states.stretch(first, last, counts)]
        found[first] = (given, counts)
    assert [d for first in sorted(found) for d in found[first][0]] == expected
    assert [c for first in sorted(found) for c in found[first][1]] == expected_counts


def test_a_stretch_can_be_asked_for_again() -> None:
    states = enumerated(10_000)
    once = [s.identity for s in states.stretch(5, 9, [])]
    assert once == [s.identity for s in states.stretch(5, 9, [])] != []
