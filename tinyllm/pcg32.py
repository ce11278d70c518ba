"""PCG32, the generator of the data order: PCG-XSH-RR 64/32.

The method is M. E. O'Neill's (PCG: A Family of Simple Fast Space-Efficient Statistically Good
Algorithms for Random Number Generation, 2014): a 64-bit linear congruential generator whose state
is permuted into 32 bits. Seeding and the unbiased bounded draw follow its reference
implementation, whose published output for seed 42 and sequence 54 is a test here.

A generator is a small immutable value, ``Pcg32(state, increment)``; functions return the next
one. That makes saving and restoring it a matter of two integers, with nothing hidden.

Also here: how far one state lies behind another (:func:`distance`), which lets a resume prove
that a stored state belongs to the seed that it claims.

Not covered: floating-point draws, and speed. A draw takes a fraction of a microsecond, which is
enough for shuffling the windows of an epoch.
"""

from dataclasses import dataclass

MULTIPLIER = 6364136223846793005
MASK_64 = (1 << 64) - 1
MASK_32 = (1 << 32) - 1


@dataclass(frozen=True, slots=True)
class Pcg32:
    """The whole generator: its 64-bit ``state`` and its odd 64-bit ``increment`` (the stream)."""

    state: int
    increment: int

    def __post_init__(self) -> None:
        if not 0 <= self.state <= MASK_64:
            raise ValueError(f"the generator's state {self.state} is not a 64-bit number")
        if not 0 <= self.increment <= MASK_64 or self.increment % 2 == 0:
            raise ValueError(
                f"the generator's increment {self.increment} is not an odd 64-bit number"
            )


def seeded(seed: int, *, sequence: int) -> Pcg32:
    """The generator of the reference's ``pcg32_srandom_r(seed, sequence)``."""
    increment = ((sequence << 1) | 1) & MASK_64
    state = _step(0, increment)
    state = (state + seed) & MASK_64
    return Pcg32(state=_step(state, increment), increment=increment)


def draw(generator: Pcg32) -> tuple[int, Pcg32]:
    """The next 32-bit number, and the generator after it."""
    after = Pcg32(state=_step(generator.state, generator.increment), increment=generator.increment)
    return _output(generator.state), after


def draw_below(generator: Pcg32, bound: int) -> tuple[int, Pcg32]:
    """A number in ``range(bound)``, each equally likely; ``1 <= bound < 2**32``."""
    if not 1 <= bound <= MASK_32:
        raise ValueError(f"a bound of {bound} is not in 1..2**32-1")
    state, number = _below(generator.state, generator.increment, bound)
    return number, Pcg32(state=state, increment=generator.increment)


def shuffled(generator: Pcg32, count: int) -> tuple[list[int], Pcg32]:
    """A Fisher-Yates permutation of ``range(count)``, and the generator after it.

    From the last place to the second: each takes the item of a place drawn from those up to it.
    """
    items = list(range(count))
    state, increment = generator.state, generator.increment
    for last in range(count - 1, 0, -1):
        state, chosen = _below(state, increment, last + 1)
        items[last], items[chosen] = items[chosen], items[last]
    return items, Pcg32(state=state, increment=increment)


def distance(start: Pcg32, end: Pcg32) -> int | None:
    """How many draws lead from ``start`` to ``end``; None when they are of different streams.

    A linear congruential generator with an odd increment has period 2**64, so within one stream
    the answer always exists. Bit by bit from the lowest: the lowest k bits of the state have
    period 2**k, so whether 2**k more draws are needed shows in bit k alone (F. Brown, Random
    Number Generation with Arbitrary Strides, 1994).
    """
    if start.increment != end.increment:
        return None
    state, multiplier, increment = start.state, MULTIPLIER, start.increment
    bit, draws = 1, 0
    while state != end.state:
        if (state ^ end.state) & bit:
            state = (state * multiplier + increment) & MASK_64
            draws |= bit
        bit <<= 1
        increment = (multiplier + 1) * increment & MASK_64
        multiplier = multiplier * multiplier & MASK_64
    return draws


def _step(state: int, increment: int) -> int:
    return (state * MULTIPLIER + increment) & MASK_64


def _output(state: int) -> int:
    word = (((state >> 18) ^ state) >> 27) & MASK_32
    turn = state >> 59
    return ((word >> turn) | (word << (-turn & 31))) & MASK_32


def _below(state: int, increment: int, bound: int) -> tuple[int, int]:
    """The bounded draw on a bare state: ``(state after it, number)``.

    Numbers under ``2**32 % bound`` are drawn again; what is left divides evenly. The loop ends
    with probability one, and after more than 64 rounds with probability under 2**-64.
    """
    threshold = (1 << 32) % bound
    while True:
        number = _output(state)
        state = _step(state, increment)
        if number >= threshold:
            return state, number % bound
