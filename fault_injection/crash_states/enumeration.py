"""Enumerating crash states: every allowed set of durable operations, every form of every file.

At each crash place all allowed sets are taken while they are at most ``bound``. Above that: all
prefixes, all sets that lack one operation (and what needs it), all that have one (and what it
needs), all that lack two as far as the bound goes, the nearest to the crash first, and a seeded
sample. On each set, each file that may be otherwise takes each of its forms while the others are
whole, and while they are lost; all pairs of files take all pairs of forms (of some kinds only pairs
of one kind, see :func:`.forms.paired`); and all files that have forms of one kind (all torn, all
cut, ...) take them together, the others whole or lost. Where that comes to more than ``8 * bound``
states of one place, the full set and the prefixes keep theirs, every set keeps *all whole*, *all
lost*, one kind for all and one file at a time, as far as that goes, and the rest is sampled.
:class:`PlaceCount` says for each place what was taken, and whether it was a sample.

States are given once each, by identity. The order is that of the places, and the same for the same
seed. Consecutive places share nearly all their states: a set that was done is not looked at again
before the world has seen more, or a file that the set shows has changed.
"""

import itertools
import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from fault_injection.crash_states.forms import Form
from fault_injection.crash_states.models import Context, each_bit
from fault_injection.crash_states.space import (
    HotFile,
    Space,
    closed_with,
    closed_without,
    space_of,
)
from fault_injection.crash_states.state import State
from fault_injection.crash_states.tree import MODULUS_MASK
from fault_injection.crash_states.view import View
from fault_injection.trace import Trace

DEFAULT_BOUND = 4096
_DATA_FACTOR = 8  # states a place: at most this times the bound before they are sampled
_SAMPLE = 256  # random sets at a place with more than the bound


@dataclass(frozen=True, slots=True)
class PlaceCount:
    """What was done at one crash place.

    ``sets`` taken, of ``allowed`` (-1: more than the bound, not counted); ``states`` combinations
    of sets and forms that were looked at, of ``possible`` by the rules above; ``new`` the distinct
    states first found here; ``sampled`` when something was left out, a form of one file that has
    too many operations among them.
    """

    place: int
    sets: int
    allowed: int
    states: int
    possible: int
    new: int
    sampled: bool


def enumerate_states(
    trace: Trace,
    *,
    model: str,
    seed: int = 0,
    bound: int = DEFAULT_BOUND,
    outputs: Collection[int] | None = None,
    counts: list[PlaceCount] | None = None,
) -> Iterator[State]:
    """The distinct crash states of ``trace`` under ``model``, in a fixed order.

    ``outputs``: indices of the operations that the world sees (default: all output). ``counts``
    is filled with a :class:`PlaceCount` a place as the iterator goes on.
    """
    if bound < 1:
        raise ValueError(f"bound {bound}: at least one set a place is needed")
    space = space_of(trace, model, outputs)
    sets = _Sets(space, bound, seed)
    seen: set[tuple[int, int]] = set()
    done = _Done(space)
    for context in space.contexts:
        chosen, allowed = sets.at(context)
        fresh = done.fresh(context, chosen)
        plan = _plan(space, context, fresh, bound, random.Random(f"{seed}/data/{context.place}"))
        looked_at = new = 0
        for durable, total, data in plan.combinations():
            looked_at += 1
            identity = (total & MODULUS_MASK, context.outputs)
            if identity in seen:
                continue
            seen.add(identity)
            new += 1
            yield State(
                space=space,
                place=context.place,
                durable=durable,
                data=data,
                digest=f"{identity[0]:064x}",
                outputs=context.outputs,
            )
        if counts is not None:
            counts.append(
                PlaceCount(
                    place=context.place,
                    sets=len(chosen),
                    allowed=allowed,
                    states=looked_at,
                    possible=plan.possible,
                    new=new,
                    sampled=allowed < 0 or looked_at < plan.possible or plan.leaves_out,
                )
            )


class _Done:
    """The sets that were looked at, and at which place; and where each file's content changed."""

    def __init__(self, space: Space) -> None:
        self._views = space.views
        self._done: dict[int, int] = {}
        self._changed: dict[int, int] = {}
        self._last_change = -1
        self._previous: Context | None = None

    def fresh(self, context: Context, chosen: list[int]) -> list[int]:
        """Those of ``chosen`` that may show something new, which are looked at now."""
        before, self._previous = self._previous, context
        if before is None or before.outputs != context.outputs:
            self._done.clear()
        else:
            self._note_changes(before, context)
        fresh = [durable for durable in chosen if not self._is_done(durable)]
        self._done.update(dict.fromkeys(fresh, context.place))
        return fresh

    def _note_changes(self, before: Context, after: Context) -> None:
        pairs = ((before.pending, after.pending), (before.covered, after.covered))
        for old, new in pairs:
            if old is new:
                continue
            for inode in old.keys() | new.keys():
                if old.get(inode) != new.get(inode):
                    self._changed[inode] = self._last_change = after.place

    def _is_done(self, durable: int) -> bool:
        at = self._done.get(durable)
        if at is None:
            return False
        if at >= self._last_change:
            return True
        changed = self._changed
        return all(changed.get(inode, -1) <= at for _, inode in self._views.of(durable).hot)


class _Sets:
    """The allowed sets at each place, carried from one place to the next while they are few."""

    def __init__(self, space: Space, bound: int, seed: int) -> None:
        self.space, self.bound, self.seed = space, bound, seed
        self.live: list[int] | None = [0]
        self.applied = self.guaranteed = 0
        self.fewest_refused = 1 << 62  # pending operations at the smallest place above the bound

    def at(self, context: Context) -> tuple[list[int], int]:
        """Sets to look at, and how many are allowed (-1: more than the bound)."""
        new_bits = context.applied & ~self.applied
        grown = context.guaranteed & ~self.guaranteed
        self.applied, self.guaranteed = context.applied, context.guaranteed
        if self.live is None:
            self.live = self._try_again(context)
        else:
            self.live = self._with(self.live, new_bits, context)
            if self.live is not None and grown:
                self.live = list(dict.fromkeys(s | context.guaranteed for s in self.live))
        if self.live is None:
            return self._some(context), -1
        return self.live, len(self.live)

    def _with(self, sets: list[int], bits: int, context: Context) -> list[int] | None:
        """``sets``, and those of them that allow it with each of ``bits``; None: too many."""
        for bit in each_bit(bits):
            needs = self.space.orders[bit] & ~(1 << bit) & ~context.guaranteed
            sets = sets + [s | 1 << bit for s in sets if not needs & ~s]
            if len(sets) > self.bound:
                return None
        return sets

    def _try_again(self, context: Context) -> list[int] | None:
        """All sets from nothing; not tried where as many operations are pending as were refused."""
        pending = context.applied & ~context.guaranteed
        if pending.bit_count() >= self.fewest_refused:
            return None
        found = self._with([context.guaranteed], pending, context)
        self.fewest_refused = pending.bit_count() if found is None else 1 << 62
        return found

    def _some(self, context: Context) -> list[int]:
        space = self.space
        pending = list(each_bit(context.applied & ~context.guaranteed))
        taken = dict.fromkeys(_prefixes(context))
        for bit in reversed(pending):
            taken.setdefault(closed_without(space, context, 1 << bit))
        for bit in reversed(pending):
            taken.setdefault(closed_with(space, context, 1 << bit))
        for first, second in itertools.combinations(reversed(pending), 2):
            if len(taken) >= self.bound - _SAMPLE:
                break
            taken.setdefault(closed_without(space, context, 1 << first | 1 << second))
        rng = random.Random(f"{self.seed}/sets/{context.place}")
        for _ in range(_SAMPLE):
            if len(taken) >= self.bound:
                break
            lost = 0
            likely = rng.random()
            for bit in pending:
                lost |= (rng.random() < likely) << bit
            taken.setdefault(closed_without(space, context, lost))
        return list(taken)


def _prefixes(context: Context) -> Iterator[int]:
    """Guaranteed operations and the first few of the pending ones; the longest first."""
    durable = context.applied
    yield durable
    for bit in sorted(each_bit(context.applied & ~context.guaranteed), reverse=True):
        durable &= ~(1 << bit)
        yield durable


_Data = tuple[tuple[int, Form], ...]
_Choice = tuple[tuple[int, int], ...]  # (position in files, position in forms)


def _pairs(one: HotFile, other: HotFile) -> Iterator[tuple[int, int]]:
    """Forms that two files take at once: those that are paired, and others of one kind."""
    yield from itertools.product(one.paired, other.paired)
    for kind, positions in one.unpaired.items():
        yield from zip(positions, other.unpaired.get(kind, ()), strict=False)


def _pair_count(one: HotFile, other: HotFile) -> int:
    alike = sum(min(len(p), len(other.unpaired.get(k, ()))) for k, p in one.unpaired.items())
    return len(one.paired) * len(other.paired) + alike


@dataclass(frozen=True, slots=True)
class _ViewPlan:
    """One visible view at a place: a set that shows it, its sum, and the files that may vary."""

    durable: int
    total: int
    files: tuple[HotFile, ...]
    main: bool
    together: tuple[_Choice, ...]

    def count(self) -> int:
        """Combinations by the rules of the module."""
        singles = sum(len(file.forms) - 1 for file in self.files)
        if len(self.files) <= 1:
            return 1 + singles
        pairs = sum(_pair_count(a, b) for a, b in itertools.combinations(self.files, 2))
        all_lost = 1 if len(self.files) > 2 else 0
        beside_lost = sum(len(self._beside_lost(file)) for file in self.files)
        return 1 + singles + pairs + all_lost + beside_lost + len(self.together)

    def choices(self) -> Iterator[_Choice]:
        """All of them, the plain ones first."""
        files = range(len(self.files))
        yield ()
        if len(self.files) > 2:
            yield tuple((f, 1) for f in files)
        yield from self.singles()
        yield from self.together
        for a, b in itertools.combinations(files, 2):
            for x, y in _pairs(self.files[a], self.files[b]):
                yield ((a, x), (b, y))
        for a in files:
            for x in self._beside_lost(self.files[a]):
                yield tuple((f, x if f == a else 1) for f in files)

    def _beside_lost(self, file: HotFile) -> Sequence[int]:
        """The forms of ``file`` that no pair shows with all other files lost."""
        if len(self.files) > 2:
            return (0, *range(2, len(file.forms)))
        alone = len(self.files) < 2
        return () if alone else [x for places in file.unpaired.values() for x in places]

    def singles(self) -> Iterator[_Choice]:
        """One file not whole."""
        for a, file in enumerate(self.files):
            for x in range(1, len(file.forms)):
                yield ((a, x),)

    def made(self, choice: _Choice) -> tuple[int, int, _Data]:
        """A choice as (set, sum, forms by inode)."""
        total = self.total
        data: list[tuple[int, Form]] = []
        for a, x in choice:
            if x:
                file = self.files[a]
                total += file.deltas[x]
                data.append((file.inode, file.forms[x]))
        data.sort(key=lambda pair: pair[0])
        return self.durable, total, tuple(data)


@dataclass(frozen=True, slots=True)
class _Plan:
    views: tuple[_ViewPlan, ...]
    possible: int
    budget: int
    rng: random.Random
    leaves_out: bool

    def combinations(self) -> Iterator[tuple[int, int, _Data]]:
        if self.possible <= self.budget:
            for view in self.views:
                for choice in view.choices():
                    yield view.made(choice)
            return
        left = self.budget
        for view in self.views:  # the plainest of each set first: these are never left out
            yield view.made(())
            if view.files:
                yield view.made(tuple((f, 1) for f in range(len(view.files))))
                left -= 1
            left -= 1
        for main in (True, False):
            for view in self.views:
                if view.main is main:
                    plain = itertools.chain(view.together, view.singles())
                    for choice in itertools.islice(plain, max(0, left)):
                        left -= 1
                        yield view.made(choice)
        several = [view for view in self.views if len(view.files) > 1]
        for _ in range(left if several else 0):
            view = self.rng.choice(several)
            a, b = sorted(self.rng.sample(range(len(view.files)), 2))
            x = self.rng.randrange(1, len(view.files[a].forms))
            y = self.rng.randrange(1, len(view.files[b].forms))
            yield view.made(((a, x), (b, y)))


def _plan(space: Space, context: Context, sets: list[int], bound: int, rng: random.Random) -> _Plan:
    """The distinct views of ``sets``, and what each may vary."""
    prefixes = set(_prefixes(context))
    plans: list[_ViewPlan] = []
    known: dict[int, View] = {}  # by id; kept, so that an id stays its own
    for durable in sets:
        view = space.views.of(durable)
        if id(view) in known:
            continue
        known[id(view)] = view
        total, files = space.base_sum(context, durable, view)
        together = _together(files)
        plans.append(_ViewPlan(durable, total, tuple(files), durable in prefixes, together))
    possible = sum(plan.count() for plan in plans)
    leaves_out = any(file.sampled for plan in plans for file in plan.files)
    return _Plan(tuple(plans), possible, _DATA_FACTOR * bound, rng, leaves_out)


def _together(files: list[HotFile]) -> tuple[_Choice, ...]:
    """All files that have forms of one kind in such a form; the others whole, and lost.

    Where a file has several of the kind, it takes its first, a middle and its last one. What pairs
    of files and single files give is not repeated.
    """
    if len(files) < 3:
        return ()
    found: dict[_Choice, None] = {}
    for kind in dict.fromkeys(kind for file in files for kind in file.kinds):
        if kind == "lost":
            continue
        having = {f: file.kinds[kind] for f, file in enumerate(files) if kind in file.kinds}
        most = max(len(positions) for positions in having.values())
        for nth in (0, most // 2, most - 1):
            chosen = {f: positions[min(nth, len(positions) - 1)] for f, positions in having.items()}
            if len(chosen) > 2:
                found[tuple(chosen.items())] = None
            if 1 < len(chosen) < len(files):
                found[tuple((f, chosen.get(f, 1)) for f in range(len(files)))] = None
    return tuple(found)
