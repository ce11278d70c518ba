"""The syncs that would make every crash state good, and those that none needs.

Two questions, each answered by asking a judge about states. ``judge(state)`` says whether a state
is good; it is asked about the same state again and again, so its answers must be remembered by the
caller (by ``state.identity``).

* :func:`mend`: the smallest set of fsyncs after which no explored state fails. Each candidate is
  asked which of the failing states it excludes, a smallest cover is chosen (exactly up to
  :data:`EXACT_SIZE` fsyncs while they are few, greedily above), and the trace with these fsyncs is
  explored again: states that were missed, or that only an fsync makes possible (btrfs makes one
  name durable before older ones), join the failing ones.
* :func:`unneeded_syncs`: the other way round, for a program without failing states.

Both are bounded, and say when a bound was met.
"""

import itertools
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fault_injection.crash_states.cause import Judge
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.edits import with_fsync, without
from fault_injection.crash_states.enumeration import (
    DEFAULT_BOUND,
    PlaceCount,
    enumerate_states,
)
from fault_injection.crash_states.forms import Form
from fault_injection.crash_states.history import DATA_KINDS, SYNC_KINDS, nameless_since
from fault_injection.crash_states.space import (
    Space,
    is_allowed,
    space_of,
    world_sees,
)
from fault_injection.crash_states.state import State, make_state
from fault_injection.trace import FileType, Trace

EXACT_SIZE = 3
_MOST_FAILING = 20_000
_MOST_COVERS = 50_000
_MOST_ROUNDS = 12


@dataclass(frozen=True, slots=True)
class Addition:
    """An fsync to add: of ``inode``, right after operation ``after``."""

    after: int
    inode: int
    words: str


@dataclass(frozen=True, slots=True)
class Mend:
    """``additions`` make every explored state good when ``complete``.

    ``failing`` counts the states that fail without them. ``smallest`` says that no smaller set
    does; ``sampled`` that some place had more states than were explored.
    """

    additions: tuple[Addition, ...]
    complete: bool
    smallest: bool
    failing: int
    sampled: bool


def mend(
    trace: Trace,
    model: str,
    judge: Judge,
    *,
    seed: int = 0,
    bound: int = DEFAULT_BOUND,
    outputs: Collection[int] | None = None,
) -> Mend:
    """The smallest set of fsyncs after which no explored state of ``trace`` fails."""
    seen = world_sees(trace) if outputs is None else frozenset(outputs)
    failing, sampled = _failing(trace, model, judge, seed, bound, seen)
    first_count = len(failing)
    if not failing:
        return Mend((), True, True, 0, sampled)
    options = list(_candidates(trace, space_of(trace, model, seen)))
    chosen: tuple[tuple[int, int], ...] = ()
    smallest = first_count < _MOST_FAILING
    for _ in range(_MOST_ROUNDS):
        if failing:
            covers = {c: _excluded(trace, model, seen, c, failing) for c in options}
            cover, exact = _cover(covers, len(failing))
            smallest = smallest and exact
            if cover is None:
                return Mend((), False, smallest, first_count, sampled)
            chosen = tuple(sorted({pair for option in cover for pair in option}))
        edited, edited_seen = _edited(trace, seen, chosen)
        missed, more_sampled = _failing(edited, model, judge, seed, bound, edited_seen)
        sampled = sampled or more_sampled
        if not missed:
            additions = tuple(_addition(trace, model, seen, pair) for pair in chosen)
            return Mend(additions, True, smallest, first_count, sampled)
        failing = failing + [_in_original(trace, model, seen, s, chosen) for s in missed]
    return Mend((), False, False, first_count, sampled)


def _failing(
    trace: Trace, model: str, judge: Judge, seed: int, bound: int, seen: frozenset[int]
) -> tuple[list[State], bool]:
    counts: list[PlaceCount] = []
    states = enumerate_states(
        trace, model=model, seed=seed, bound=bound, outputs=seen, counts=counts
    )
    bad = list(itertools.islice((s for s in states if not judge(s)), _MOST_FAILING))
    return bad, any(count.sampled for count in counts)


_Option = tuple[tuple[int, int], ...]  # one (after, inode), or two for a rename across directories


def _candidates(trace: Trace, space: Space) -> Iterator[_Option]:
    """After each operation, an fsync of each inode that it changed: the earliest that covers it.

    Not of a file that has no name any more: its directory's fsync makes that durable.
    """
    gone = nameless_since(trace)
    for op in trace.operations:
        is_there = op.index < gone.get(op.inode, len(trace.operations))
        if op.kind in DATA_KINDS:
            if is_there:
                yield ((op.index, op.inode),)
        elif op.index in space.history.bit_of:
            name_op = space.history.names[space.history.bit_of[op.index]]
            if is_there and space.history.types.get(op.inode) is FileType.FILE:
                yield ((op.index, op.inode),)
            for directory in name_op.directories:
                yield ((op.index, directory),)
            if len(name_op.directories) > 1:
                yield tuple((op.index, directory) for directory in name_op.directories)


def _edited(trace: Trace, seen: frozenset[int], option: _Option) -> tuple[Trace, frozenset[int]]:
    """``trace`` with these fsyncs, and where the operations that the world sees are then."""
    for after, inode in sorted(option, reverse=True):
        trace = with_fsync(trace, after, inode)
        seen = frozenset(i + (i > after) for i in seen)
    return trace, seen


def _excluded(
    trace: Trace, model: str, seen: frozenset[int], option: _Option, failing: list[State]
) -> int:
    """Which of the failing states (a bit each) are no states of the edited trace."""
    space = space_of(*_named(_edited(trace, seen, option), model))
    excluded = 0
    for number, state in enumerate(failing):
        # The place right after the operation comes before the added fsync, and stays as it was.
        place = state.place + sum(state.place > after + 1 for after, _ in option)
        context = space.contexts[place]
        possible = is_allowed(space, context, state.durable)
        for inode, form in state.data if possible else ():
            covered, pending = space.split(context, state.durable, inode)
            forms = space.forms_of(inode, covered, pending)
            possible = possible and any(form.digest == other.digest for other in forms)
        excluded |= (not possible) << number
    return excluded


def _named(edited: tuple[Trace, frozenset[int]], model: str) -> tuple[Trace, str, frozenset[int]]:
    return edited[0], model, edited[1]


def _in_original(
    trace: Trace, model: str, seen: frozenset[int], state: State, chosen: _Option
) -> State:
    """A state of the edited trace as the state of the original that it also is."""
    added = sorted(after + 1 + n for n, (after, _) in enumerate(sorted(chosen)))
    place = state.place - sum(index < state.place for index in added)
    space = space_of(trace, model, seen)
    data: dict[int, Form] = {}
    for inode, form in state.data:
        covered, pending = space.split(space.contexts[place], state.durable, inode)
        for other in space.forms_of(inode, covered, pending):
            if other.digest == form.digest:
                data[inode] = other
    return make_state(space, place, state.durable, data)


def _cover(covers: dict[_Option, int], count: int) -> tuple[list[_Option] | None, bool]:
    """Options that together exclude all ``count`` states, and whether no fewer fsyncs do."""
    everything = (1 << count) - 1
    # Of options that exclude the same, the first; the widest first.
    useful: dict[int, _Option] = {}
    for option, bits in covers.items():
        if bits and (bits not in useful or len(option) < len(useful[bits])):
            useful[bits] = option
    ranked = sorted(useful.items(), key=lambda kv: (-kv[0].bit_count(), kv[1]))
    tried = 0
    for size in range(1, EXACT_SIZE + 1):
        best: list[_Option] | None = None
        for some in itertools.combinations(ranked, size):
            tried += 1
            if tried > _MOST_COVERS:
                break
            bits = 0
            for excluded, _ in some:
                bits |= excluded
            options = [option for _, option in some]
            if bits == everything and (best is None or _cost(options) < _cost(best)):
                best = options
        if best is not None:
            return best, tried <= _MOST_COVERS and _cost(best) <= size
    chosen: list[_Option] = []
    left = everything
    while left:
        bits, option = max(ranked, key=lambda kv: (kv[0] & left).bit_count(), default=(0, ()))
        if not bits & left:
            return None, True
        chosen.append(option)
        left &= ~bits
    return chosen, False


def _cost(options: list[_Option]) -> int:
    return len({pair for option in options for pair in option})


def _addition(trace: Trace, model: str, seen: frozenset[int], pair: tuple[int, int]) -> Addition:
    edited, edited_seen = _edited(trace, seen, (pair,))
    words = operation_words(space_of(edited, model, edited_seen).history)
    after = words[pair[0]] if pair[0] >= 0 else "the start"
    return Addition(pair[0], pair[1], f"{words[pair[0] + 1]} after #{pair[0]} {after}")


@dataclass(frozen=True, slots=True)
class Unneeded:
    """A sync of the program without which no explored state fails, under one model."""

    index: int
    words: str
    sampled: bool


def unneeded_syncs(
    trace: Trace,
    model: str,
    judge: Judge,
    *,
    seed: int = 0,
    bound: int = DEFAULT_BOUND,
    outputs: Collection[int] | None = None,
) -> tuple[Unneeded, ...]:
    """The syncs whose removal, each by itself, makes no explored state fail."""
    seen = world_sees(trace) if outputs is None else frozenset(outputs)
    words = operation_words(space_of(trace, model, seen).history)
    found: list[Unneeded] = []
    for op in trace.operations:
        if op.kind not in SYNC_KINDS and not op.synced:
            continue
        fewer = without(trace, op.index)
        gone = len(fewer.operations) < len(trace.operations)
        shifted = frozenset(i - (gone and i > op.index) for i in seen)
        counts: list[PlaceCount] = []
        states = enumerate_states(
            fewer, model=model, seed=seed, bound=bound, outputs=shifted, counts=counts
        )
        if all(judge(state) for state in states):
            found.append(
                Unneeded(op.index, words[op.index], any(count.sampled for count in counts))
            )
    return tuple(found)
