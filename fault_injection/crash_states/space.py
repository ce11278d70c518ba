"""The space of crash states of one trace under one model: what enumeration and checks share.

Everything that is computed once for a trace and a model lives here: its history, the contexts of
its crash places, its views, and the forms of its files. A space is made by :func:`space_of`, which
keeps the last few, so that callers pass a trace and the name of a model and pay once.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from fault_injection.crash_states.content import ContentStore
from fault_injection.crash_states.delayed import waits_for_place
from fault_injection.crash_states.forms import Form, forms, leaves_out, paired
from fault_injection.crash_states.history import History, happened_before, prepare
from fault_injection.crash_states.models import (
    Context,
    Model,
    contexts,
    each_bit,
    model_named,
    order_of,
)
from fault_injection.crash_states.tree import Entry, term
from fault_injection.crash_states.view import View, Views, groups
from fault_injection.trace import Blobs, FileType, Kind, Trace

_SPACES_KEPT = 8
_STORES_KEPT = 4


@dataclass(frozen=True, slots=True)
class HotFile:
    """A visible hot file in one view at one place: its names, forms, and each form's summand
    relative to that of ``whole``.

    ``kinds``: the positions of its forms, by kind; ``paired``: of those that are tried with each
    of another file; ``unpaired``: of the others, by kind. ``sampled``: some forms are left out.
    """

    inode: int
    paths: tuple[bytes, ...]
    forms: tuple[Form, ...]
    deltas: tuple[int, ...]
    kinds: Mapping[str, tuple[int, ...]]
    paired: tuple[int, ...]
    unpaired: Mapping[str, tuple[int, ...]]
    sampled: bool


@dataclass(frozen=True, slots=True)
class Space:
    """See the module. ``orders`` holds, by bit, what must be durable with that operation;
    ``replacing``, by inode, the bits of the renames that flush its data; ``seen`` the operations
    that the world sees."""

    history: History
    model: Model
    seen: frozenset[int]
    views: Views
    contexts: tuple[Context, ...]
    orders: tuple[int, ...]
    replacing: Mapping[int, tuple[int, ...]]
    _forms: dict[tuple[int, tuple[int, ...], tuple[int, ...]], tuple[Form, ...]] = field(
        default_factory=dict
    )
    _hot_files: dict[object, tuple[int, HotFile | None]] = field(default_factory=dict)

    def forms_of(
        self, inode: int, covered: tuple[int, ...], pending: tuple[int, ...]
    ) -> tuple[Form, ...]:
        """The forms of one file, computed once."""
        key = (inode, covered, pending)
        found = self._forms.get(key)
        if found is None:
            found = self._forms[key] = forms(
                self.history, self.model, inode, covered=covered, pending=pending
            )
        return found

    def split(
        self, context: Context, durable: int, inode: int
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Covered and pending content operations of ``inode`` when ``durable`` is."""
        covered = context.covered.get(inode, ())
        pending = context.pending.get(inode, ())
        if not pending or inode not in self.replacing:
            return covered, pending
        operations = self.history.trace.operations
        flushes = [
            operations[self.history.names[bit].index]
            for bit in self.replacing[inode]
            if durable >> bit & 1
        ]
        done = {i for i in pending for r in flushes if happened_before(operations[i], r)}
        if not done:
            return covered, pending
        return tuple(sorted({*covered, *done})), tuple(i for i in pending if i not in done)

    def base_sum(self, context: Context, durable: int, view: View) -> tuple[int, list[HotFile]]:
        """The summand of ``view`` with every file whole, and its files that may be otherwise."""
        total = view.constant
        files: list[HotFile] = []
        if self.views.linked_any:
            pairs = list(groups(view.hot))
        else:
            pairs = [(inode, (path,)) for path, inode in view.hot]
        for inode, paths in pairs:
            covered, pending = self.split(context, durable, inode)
            key = (inode, paths, covered, pending)
            found = self._hot_files.get(key)
            if found is None:
                found = self._hot_files[key] = self._hot_file(inode, paths, covered, pending)
            total += found[0]
            if found[1] is not None:
                files.append(found[1])
        return total, files

    def _hot_file(
        self,
        inode: int,
        paths: tuple[bytes, ...],
        covered: tuple[int, ...],
        pending: tuple[int, ...],
    ) -> tuple[int, HotFile | None]:
        link = inode if len(paths) > 1 else -1
        if self.history.types.get(inode) is not FileType.FILE:
            return self._summand(paths, self.views.entry(inode, (), link)), None
        options = self.forms_of(inode, covered, pending)
        summands = [self._summand_in(inode, paths, form) for form in options]
        if len(options) == 1:
            return summands[0], None
        pairs = paired(options)
        file = HotFile(
            inode=inode,
            paths=paths,
            forms=options,
            deltas=tuple(summand - summands[0] for summand in summands),
            kinds=_by_kind(options, range(1, len(options))),
            paired=pairs,
            unpaired=_by_kind(options, sorted({*range(1, len(options))} - {*pairs})),
            sampled=leaves_out(pending),
        )
        return summands[0], file

    def delta(self, file: HotFile, form: Form) -> int:
        """The summand of a form relative to that of ``whole``; it need not be an enumerated one."""
        if form in file.forms:
            return file.deltas[file.forms.index(form)]
        whole = self._summand_in(file.inode, file.paths, file.forms[0])
        return self._summand_in(file.inode, file.paths, form) - whole

    def _summand_in(self, inode: int, paths: tuple[bytes, ...], form: Form) -> int:
        mode = self.history.modes.get(inode, 0) & 0o7777
        link = inode if len(paths) > 1 else -1
        entry = Entry(FileType.FILE, mode, form.content, form.digest, link=link)
        return self._summand(paths, entry)

    def _summand(self, paths: tuple[bytes, ...], entry: Entry) -> int:
        first = paths[0] if entry.link >= 0 else b""
        return sum(term(path, entry, first) for path in paths)


def _by_kind(options: tuple[Form, ...], positions: Iterable[int]) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for position in positions:
        kind = options[position].kind
        found[kind] = (*found.get(kind, ()), position)
    return found


_stores: OrderedDict[int, ContentStore] = OrderedDict()


def _store_of(blobs: Blobs) -> ContentStore:
    """The store over ``blobs``: one for all models and all edits of a trace."""
    store = _stores.get(id(blobs))
    if store is None:
        store = _stores[id(blobs)] = ContentStore(blobs)  # which keeps the blobs, and so the id
        while len(_stores) > _STORES_KEPT:
            _stores.popitem(last=False)
    return store


_spaces: "OrderedDict[tuple[int, str, frozenset[int]], tuple[Trace, Space]]" = OrderedDict()


def world_sees(trace: Trace) -> frozenset[int]:
    """The operations that the world sees unless a caller says otherwise: all output."""
    return frozenset(op.index for op in trace.operations if op.kind is Kind.OUTPUT)


def space_of(trace: Trace, model: str, outputs: Collection[int] | None = None) -> Space:
    """The space of ``trace`` under the model of that name.

    ``outputs`` are the indices of the operations that the world sees (default: all output); two
    states with the same tree are different when the world had seen a different number of them.
    """
    seen = world_sees(trace) if outputs is None else frozenset(outputs)
    key = (id(trace), model, seen)
    known = _spaces.get(key)
    if known is not None:
        _spaces.move_to_end(key)
        return known[1]
    space = _open(trace, model_named(model), seen)
    # The trace is kept with its space, so that its id stays its own.
    _spaces[key] = (trace, space)
    while len(_spaces) > _SPACES_KEPT:
        _spaces.popitem(last=False)
    return space


def _open(trace: Trace, model: Model, outputs: frozenset[int]) -> Space:
    history = prepare(trace, _store_of(trace.blobs))
    replacing: dict[int, list[int]] = {}
    if model.flushes_replacing_rename:
        for name_op in history.names:
            op = trace.operations[name_op.index]
            if op.kind is Kind.RENAME and op.replaced >= 0 and waits_for_place(history, op):
                replacing.setdefault(op.inode, []).append(name_op.bit)
    return Space(
        history=history,
        model=model,
        seen=outputs,
        views=Views(history),
        contexts=tuple(contexts(history, model, outputs=outputs)),
        orders=tuple(order_of(history, model, op.bit) for op in history.names),
        replacing={inode: tuple(bits) for inode, bits in replacing.items()},
    )


def closed_with(space: Space, context: Context, durable: int) -> int:
    """``durable``, what is guaranteed, and all that these need to be durable."""
    grown = context.guaranteed
    for bit in each_bit(durable & context.applied & ~context.guaranteed):
        grown |= 1 << bit | space.orders[bit] & context.applied
    return grown


def closed_without(space: Space, context: Context, lost: int) -> int:
    """The largest allowed set in which none of ``lost`` is durable (guaranteed ones always are)."""
    kept = context.guaranteed
    for bit in each_bit(context.applied & ~context.guaranteed):
        needs = space.orders[bit] & ~context.guaranteed & ~(1 << bit)
        if not lost >> bit & 1 and not needs & ~kept:
            kept |= 1 << bit
    return kept


def is_allowed(space: Space, context: Context, durable: int) -> bool:
    """Whether the model allows exactly ``durable`` at this place."""
    if durable & ~context.applied or context.guaranteed & ~durable:
        return False
    return closed_with(space, context, durable) == durable
