"""Why a crash state is bad: the order that was needed.

What was lost is put back, one operation at a time: the smallest set whose return makes the state
good had to be durable. Then the crash is moved back with the same things lost, to find the
operation after which their loss does harm: that one was too early.

``judge(state)`` says whether a state is good; it is asked about the same state again and again, so
its answers must be remembered by the caller (by ``state.identity``). What is asked is bounded, and
the answer says when a bound was met.

Not covered: a state that is bad with everything put back. No order mends it.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fault_injection.crash_states.content import Content
from fault_injection.crash_states.describe import Status, operation_words, status_in
from fault_injection.crash_states.forms import Form
from fault_injection.crash_states.models import each_bit
from fault_injection.crash_states.space import closed_with, closed_without, is_allowed
from fault_injection.crash_states.state import State, make_state

Judge = Callable[[State], bool]

_MOST_PAIRS = 400
_MOST_BACK = 16


@dataclass(frozen=True, slots=True)
class Cause:
    """The order that was needed.

    ``needed`` are the operations whose return makes the state good; ``before`` the operation that
    was durable, or seen by the world, without them. An fsync between those of them that are older
    and it helps; but not where it is ``too_late``: then those that are younger had to be durable at
    once with it (-1: all of them with each other). ``good`` is the state with them put back.
    ``smallest`` is false when the search was cut short.
    """

    needed: tuple[int, ...]
    before: int
    good: State
    words: str
    smallest: bool
    too_late: bool


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
    before, too_late = -1, True
    if needed:
        only = _without_only(state, needed)
        pair = (state, good) if judge(only) else (only, everything)
        before = _too_early(*pair, needed, judge)
        too_late = before in needed
    if too_late:
        before = _already_there(everything, needed, judge)
    words = _cause_words(state, needed, -1 if before in needed else before)
    return Cause(needed, before, good, words, smallest, too_late)


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


def _without_only(state: State, needed: tuple[int, ...]) -> State:
    """``state`` with all put back that can be without the needed ones: what is lost besides may
    do harm of its own, at other places."""
    space, lost = state.space, 0
    for index in needed:
        if index in space.history.bit_of:
            lost |= 1 << space.history.bit_of[index]
    data = {i: form for i, form in state.data if set(needed) & set(_gone(state, i, form))}
    return _state_with(state, closed_without(space, state.context, lost), data)


def _too_early(state: State, good: State, needed: tuple[int, ...], judge: Judge) -> int:
    """The operation without which the loss would have done no harm; a needed one: no other.

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
        return begins_after(first, last + 1)
    for bit in sorted(each_bit(state.durable & ~context.guaranteed), reverse=True):
        if space.history.names[bit].index < last:
            break
        lost = context.applied & ~state.durable | 1 << bit
        if judge(_state_with(state, closed_without(space, context, lost), dict(state.data))):
            return space.history.names[bit].index
    return begins_after(last + 1, state.place)


def _already_there(everything: State, needed: tuple[int, ...], judge: Judge) -> int:
    """What made a state bad, with nothing lost, that the last needed operation makes good again;
    -1: it was good before that."""
    last = needed[-1] if needed else 0
    for place in range(last, max(-1, last - _MOST_BACK), -1):
        earlier = _moved_back(everything, place)
        if earlier is not None and judge(earlier):
            return place if place < last else -1
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
