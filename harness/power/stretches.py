"""The crash states of one recorded run, enumerated once for all stretches of it that a worker gets.

A state belongs to the first crash place that shows it, so that a stretch cannot be enumerated
without what comes before; and workers are given many short stretches, the last first.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field

from fault_injection.crash_states import PlaceCount, State, enumerate_states
from fault_injection.trace import Trace

MOST_KEPT = 200_000  # states, of some 250 bytes each


@dataclass(slots=True)
class Enumerated:
    """The states of ``trace`` under a model, as far along as a stretch has been asked for.

    More than ``most_kept`` are not kept: they are enumerated anew for each stretch.
    """

    trace: Trace
    model: str
    seed: int
    bound: int
    outputs: tuple[int, ...]
    most_kept: int = MOST_KEPT
    _states: list[State] = field(default_factory=list)
    _places: list[int] = field(default_factory=list)  # those of the states
    _counts: list[PlaceCount] = field(default_factory=list)
    _rest: Iterator[State] | None = None
    _too_many: bool = False

    def stretch(self, first: int, last: int, counts: list[PlaceCount]) -> Iterator[State]:
        """The states first found at the places ``first`` to ``last`` (-1: to the end), in order.

        ``counts`` is filled with what was done at these places.
        """
        if not self._too_many:
            self._reach(last)
        if self._too_many:
            found: list[PlaceCount] = []
            states = self._enumerate(found)
        else:
            found = self._counts
            states = iter(self._states[bisect_left(self._places, first) :])
        for state in states:
            if 0 <= last < state.place:
                break
            if state.place >= first:
                yield state
        counts += (c for c in found if c.place >= first and not 0 <= last < c.place)

    def _reach(self, last: int) -> None:
        """Enumerate up to a state beyond the place ``last``, or to the end."""
        if self._rest is None:
            self._rest = self._enumerate(self._counts)
        while last < 0 or not self._places or self._places[-1] <= last:
            state = next(self._rest, None)
            if state is None:
                return
            self._states.append(state)
            self._places.append(state.place)
            if len(self._states) > self.most_kept:
                self._too_many = True
                self._rest = None
                for kept in (self._states, self._places, self._counts):
                    kept.clear()
                return

    def _enumerate(self, counts: list[PlaceCount]) -> Iterator[State]:
        return enumerate_states(
            self.trace,
            model=self.model,
            seed=self.seed,
            bound=self.bound,
            outputs=self.outputs,
            counts=counts,
        )
