"""PCG32 gives the reference implementation's numbers, and knows how far apart two states are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm import pcg32
from tinyllm.pcg32 import Pcg32

# What the reference implementation's demonstration program prints for seed 42 and sequence 54:
# six numbers, 65 flips of a coin, 33 rolls of a die, a shuffled deck.
NUMBERS = [0xA15C02B7, 0x7B47F409, 0xBA1D3330, 0x83D2F293, 0xBFA4784B, 0xCBED606E]
COINS = "HHTTTHTHHHTHTTTHHHHHTTTHHHTHTHTHTTHTTTHHHHHHTTTTHHTTTTTHTTTTTTTHT"
ROLLS = "3 4 1 1 2 2 3 2 4 3 2 4 3 3 5 2 3 1 3 1 5 1 4 1 5 6 4 6 6 2 6 3 3"
DECK = (
    "Qd Ks 6d 3s 3d 4c 3h Td Kc 5c Jh Kd Jd As 4s 4h Ad Th Ac Jc 7s Qs 2s 7h Kh 2d "
    "6c Ah 4d Qh 9h 6s 5s 2c 9c Ts 8d 9s 3c 8c Js 5d 2h 6h 7d 8s 9d 5h 8h Qc 7c Tc"
)

words = st.integers(0, 2**64 - 1)


def test_golden_vectors() -> None:
    generator = pcg32.seeded(42, sequence=54)
    numbers = []
    for _ in range(6):
        number, generator = pcg32.draw(generator)
        numbers.append(number)
    coins = ""
    for _ in range(65):
        number, generator = pcg32.draw_below(generator, 2)
        coins += "TH"[number]
    rolls = []
    for _ in range(33):
        number, generator = pcg32.draw_below(generator, 6)
        rolls.append(str(number + 1))
    deck, _ = pcg32.shuffled(generator, 52)
    cards = ["A23456789TJQK"[card // 4] + "hcds"[card % 4] for card in deck]
    assert (numbers, coins) == (NUMBERS, COINS)
    assert (" ".join(rolls), " ".join(cards)) == (ROLLS, DECK)


@given(words, words, st.integers(2, 2**32 - 1))
def test_a_bounded_draw_is_below_its_bound_and_throws_the_surplus_away(
    seed: int, sequence: int, bound: int
) -> None:
    generator = pcg32.seeded(seed, sequence=sequence)
    number, after = pcg32.draw_below(generator, bound)
    assert 0 <= number < bound
    raw, generator = pcg32.draw(generator)
    while raw < 2**32 % bound:
        raw, generator = pcg32.draw(generator)
    assert (number, after) == (raw % bound, generator)


@given(words, words, st.integers(0, 200))
def test_distance_counts_the_draws(seed: int, sequence: int, draws: int) -> None:
    start = generator = pcg32.seeded(seed, sequence=sequence)
    for _ in range(draws):
        _, generator = pcg32.draw(generator)
    assert pcg32.distance(start, generator) == draws
    assert pcg32.distance(generator, start) == -draws % 2**64


def test_streams_that_never_meet_have_no_distance() -> None:
    assert pcg32.distance(pcg32.seeded(1, sequence=1), pcg32.seeded(1, sequence=2)) is None


@given(words, st.integers(0, 300))
def test_a_shuffle_is_a_permutation_and_repeats(seed: int, count: int) -> None:
    generator = pcg32.seeded(seed, sequence=1)
    items, after = pcg32.shuffled(generator, count)
    assert sorted(items) == list(range(count))
    assert pcg32.shuffled(generator, count) == (items, after)


@pytest.mark.parametrize("bound", [0, -1, 2**32])
def test_an_impossible_bound_is_refused(bound: int) -> None:
    with pytest.raises(ValueError, match="is not in"):
        pcg32.draw_below(pcg32.seeded(1, sequence=1), bound)


@pytest.mark.parametrize(("state", "increment"), [(-1, 1), (2**64, 1), (0, 2), (0, 2**64 + 1)])
def test_a_generator_that_cannot_be_is_refused(state: int, increment: int) -> None:
    with pytest.raises(ValueError, match="is not"):
        Pcg32(state=state, increment=increment)
