"""Figures: what a benchmark says, and the arithmetic behind it. Pure but for the clock it is given.

Everything that can be is a ratio of two things measured in one run, alternately, so that a slow
machine slows both. The median of several rounds is taken; the order within a round alternates,
since the first of two may find the machine warmer or colder.
"""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure. ``value`` None: it could not be measured, and ``detail`` says why.

    ``unit`` follows the number ("x" for ratios). ``target`` None: there is none; ``at_most`` says
    on which side of it the value has to be.
    """

    name: str
    what: str
    value: float | None
    unit: str
    target: float | None = None
    at_most: bool = True
    detail: str = ""
    rounds: int = 1

    @property
    def met(self) -> bool | None:
        """Whether the target is met; None without a target or a value."""
        if self.value is None or self.target is None:
            return None
        return self.value <= self.target if self.at_most else self.value >= self.target


@dataclass(frozen=True, slots=True)
class Pair:
    """Seconds of two things, a pair a round."""

    first_s: tuple[float, ...]
    second_s: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """How many times as long the first takes: the ratio of the medians."""
        return median(self.first_s) / median(self.second_s)

    def words(self) -> str:
        """The two medians, and how far the rounds were apart."""
        return (
            f"medians {median(self.first_s):.3g} s and {median(self.second_s):.3g} s of "
            f"{len(self.first_s)} ({_range(self.first_s)}; {_range(self.second_s)})"
        )


def median(values: tuple[float, ...]) -> float:
    """The median; ValueError for no values."""
    if not values:
        raise ValueError("no values were measured")
    return float(statistics.median(values))


def _range(values: tuple[float, ...]) -> str:
    return f"{min(values):.3g} to {max(values):.3g}"


def paired(
    first: Callable[[], object],
    second: Callable[[], object],
    *,
    rounds: int,
    before: Callable[[], object] = lambda: None,
    warm_up: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> Pair:
    """Measure both ``rounds`` times, in turn; ``before`` is called before each and not timed.

    ``warm_up`` does both once before: the first to fill memory that a virtual machine has not
    touched yet waits for its host.
    """
    if warm_up:
        for do in (first, second):
            before()
            do()
    taken: tuple[list[float], list[float]] = ([], [])
    for number in range(rounds):
        order = (0, 1) if number % 2 == 0 else (1, 0)
        for which in order:
            before()
            began = clock()
            (first, second)[which]()
            taken[which].append(clock() - began)
    return Pair(tuple(taken[0]), tuple(taken[1]))


def ratio_figure(
    name: str, what: str, pair: Pair, *, target: float, at_most: bool = True
) -> Figure:
    """A ratio with its medians. ``what`` names first what must not be slower."""
    return Figure(
        name=name,
        what=what,
        value=pair.ratio,
        unit="x",
        target=target,
        at_most=at_most,
        detail=pair.words(),
        rounds=len(pair.first_s),
    )


def unmeasured(name: str, what: str, why: str) -> Figure:
    """A figure that could not be had here."""
    return Figure(name=name, what=what, value=None, unit="", detail=why)
