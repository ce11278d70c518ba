"""Why a crash state is bad: the order that was needed, and the syncs that would give it.

Three questions, each answered by asking a judge about states. ``judge(state)`` says whether a
state is good; it is asked about the same state again and again, so its answers must be remembered
by the caller (by ``state.identity``).

* :func:`cause_of`: put back what was lost, one operation at a time; the smallest set whose return
  makes the state good names the order that was needed.
* :func:`mend`: the smallest set of fsyncs after which no explored state fails. Each candidate is
  asked which of the failing states it excludes, a smallest cover is chosen (exactly up to
  :data:`EXACT_SIZE` fsyncs while they are few, greedily above), and the trace with these fsyncs is
  explored again: states that were missed, or that only an fsync makes possible (btrfs makes one
  name durable before older ones), join the failing ones.
* :func:`unneeded_syncs`: the other way round, for a program without failing states.

All are bounded, and say when a bound was met.
"""

import itertools
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fault_injection.crash_states.content import Content
from fault_injection.crash_states.describe import Status, operation_words, status_in
from fault_injection.crash_states.edits import with_fsync, without
from fault_injection.crash_states.enumeration import (
    DEFAULT_BOUND,
    PlaceCount,
    enumerate_states,
)
from fault_injection.crash_states.forms import Form
from fault_injection.crash_states.history import DATA_KINDS, SYNC_KINDS, nameless_since
from fault_injection.crash_states.models import each_bit
from fault_injection.crash_states.space import (
    Space,
    closed_with,
    closed_without,
    is_allowed,
    space_of,
    world_sees,
)
from fault_injection.crash_states.state import State, make_state
from fault_injection.trace import FileType, Trace

Judge = Callable[[State], bool]

EXACT_SIZE = 3
_MOST_FAILING = 20_000
_MOST_COVERS = 50_000
_MOST_ROUNDS = 12
_MOST_PAIRS = 400
_MOST_BACK = 16


@dataclass(frozen=True, slots=True)
class Cause:
    """The order that was needed.

    ``needed`` are the operations whose return makes the state good; ``before`` the operation that
    was durable, or seen by the world, without them: an fsync between those of them that came
    earlier and it would have helped. Where all of them came later none would: they had to be
    durable at once with it; and -1: with each other. ``good`` is the state
    with them put back. ``smallest`` is false when the search was cut short.
    """

    needed: tuple[int, ...]
    before: int
    good: State
    words: str
    smallest: bool


@dataclass(frozen=True, slots=True)
class _Item:
    """Something that was lost: a namespace operation (``bit``), or content of ``inode``."""

    bit: int
    inode: int


def cause_of(state: State, judge: Judge) -> Cause | None:
    """Why ``state`` is bad; None when it is good, or bad even with everything put back."""
    if judge(state):
        return None
    lost = state.context.applied & ~state.durable
    items = [_Item(bit, -1) for bit in each_bit(lost)]
    items += [_Item(-1, inode) for inode, _ in state.data]
    everything = _returned(state, items)
    if not judge(everything):
        return None
    chosen, smallest = _smallest(state, items, judge)
    good = _returned(state, chosen)
    needed = _operations_returned(state, good)
    before = _too_early(state, good, needed, judge) if needed else -1
    return Cause(needed, before, good, _cause_words(state, needed, before), smallest)


def _smallest(state: State, items: list[_Item], judge: Judge) -> tuple[list[_Item], bool]:
    """The fewest items whose return makes the state good, and whether that is certain."""

    def size(some: Sequence[_Item]) -> tuple[int, int]:
        returned = _operations_returned(state, _returned(state, some))
        return len(returned), max(returned, default=0)

    single = [[item] for item in items if judge(_returned(state, [item]))]
    if single:
        return min(single, key=size), True
    pairs = itertools.islice(itertools.combinations(items, 2), _MOST_PAIRS)
    both = [list(pair) for pair in pairs if judge(_returned(state, pair))]
    if both:
        return min(both, key=size), len(items) * (len(items) - 1) // 2 <= _MOST_PAIRS
    kept = list(items)
    for item in reversed(items):
        fewer = [other for other in kept if other is not item]
        if judge(_returned(state, fewer)):
            kept = fewer
    return kept, len(kept) <= 3


def _returned(state: State, items: Sequence[_Item]) -> State:
    """``state`` with some of what was lost put back, and what that needs."""
    bits = 0
    for item in items:
        bits |= 1 << item.bit if item.bit >= 0 else 0
    back = {item.inode for item in items if item.bit < 0}
    data = {inode: form for inode, form in state.data if inode not in back}
    durable = closed_with(state.space, state.context, state.durable | bits)
    return _state_with(state, durable, data)


def _state_with(state: State, durable: int, data: dict[int, Form]) -> State:
    """Another state of the same place; a form that is no longer possible becomes whole."""
    kept: dict[int, Form] = {}
    for inode, form in data.items():
        covered, pending = state.space.split(state.context, durable, inode)
        if form in state.space.forms_of(inode, covered, pending):
            kept[inode] = form
    return make_state(state.space, state.place, durable, kept)


def _operations_returned(state: State, good: State) -> tuple[int, ...]:
    names = state.space.history.names
    found = {names[bit].index for bit in each_bit(good.durable & ~state.durable)}
    still = dict(good.data)
    for inode, form in state.data:
        if inode not in still:
            found.update(_gone(state, inode, form))
    return tuple(sorted(found))


def _gone(state: State, inode: int, form: Form) -> list[int]:
    """The content operations that a file in this form lacks, wholly or in part."""
    _, pending = state.space.split(state.context, state.durable, inode)
    operations = state.space.history.trace.operations
    return [i for i in pending if status_in(form.name, operations[i]) is not Status.DURABLE]


def _too_early(state: State, good: State, needed: tuple[int, ...], judge: Judge) -> int:
    """The operation without which the loss would have done no harm; -1: there is no other.

    The crash is moved back, with the same things lost. Where it does harm right after the last
    needed operation, nothing that comes later was too early.
    """
    space, context, first, last = state.space, state.context, needed[0], needed[-1]

    def does_harm(place: int) -> bool:
        if place == state.place:
            return True
        bad, back = _moved_back(state, place), _moved_back(good, place)
        return bad is not None and back is not None and not judge(bad) and judge(back)

    def begins_after(harmless: int, harmful: int) -> int:
        while harmful - harmless > 1:
            middle = (harmless + harmful) // 2
            if does_harm(middle):
                harmful = middle
            else:
                harmless = middle
        return harmful - 1

    if does_harm(last + 1):
        at = begins_after(first, last + 1)
        return _already_there(state, first, judge) if at in needed else at
    for bit in sorted(each_bit(state.durable & ~context.guaranteed), reverse=True):
        if space.history.names[bit].index < last:
            break
        lost = context.applied & ~state.durable | 1 << bit
        if judge(_state_with(state, closed_without(space, context, lost), dict(state.data))):
            return space.history.names[bit].index
    return begins_after(last + 1, state.place)


def _already_there(state: State, first: int, judge: Judge) -> int:
    """What came before all that was needed and made its loss harmful; -1: nothing did."""
    for place in range(first, max(-1, first - _MOST_BACK), -1):
        earlier = _moved_back(state, place)
        if earlier is not None and judge(earlier):
            return place if place < first else -1
    return -1


def _moved_back(state: State, place: int) -> State | None:
    """The crash at an earlier place, with the same things lost; None: not possible there."""
    space, context = state.space, state.space.contexts[place]
    durable = state.durable & context.applied
    if not is_allowed(space, context, durable):
        return None
    data: dict[int, Form] = {}
    for inode, form in state.data:
        covered, pending = space.split(context, durable, inode)
        options = space.forms_of(inode, covered, pending)
        content = _content_back(state, place, inode, form)
        if content is None:
            found = next((other for other in options if other.name == form.name), None)
        else:
            digest = space.history.store.digest(content)
            other = Form(form.name, content, digest, form.words)
            found = next((known for known in options if known.digest == digest), other)
        if found is None:
            return None
        data[inode] = found
    return make_state(space, place, durable, data)


def _content_back(state: State, place: int, inode: int, form: Form) -> Content | None:
    """What a file holds at an earlier place, with the same operations lost; None: not known."""
    history = state.space.history
    _, pending = state.space.split(state.context, state.durable, inode)
    became = {i: status_in(form.name, history.trace.operations[i]) for i in pending}
    if all(status is Status.LOST for i, status in became.items() if i >= place):
        return form.content
    if any(status is Status.PARTLY for i, status in became.items() if i < place):
        return None
    done = state.space.contexts[place].content_ops(inode)
    return history.content(
        inode, tuple(i for i in done if became.get(i, Status.DURABLE) is not Status.LOST)
    )


def _cause_words(state: State, needed: tuple[int, ...], before: int) -> str:
    words = operation_words(state.space.history)
    lost = " and ".join(f"`{words[i]}`" for i in needed[:3]) or "nothing"
    if len(needed) > 3:
        lost += f" and {len(needed) - 3} more"
    was = "was" if len(needed) == 1 else "were"
    if before < 0:
        return f"{lost} had to be durable by then, and {was} not"
    if before in state.space.seen:
        return f"the world saw `{words[before]}` while {lost} {was} not durable"
    return f"`{words[before]}` was durable while {lost} {was} not"


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
