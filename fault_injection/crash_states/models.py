"""Persistence models: what a sync guarantees, and which pending operations may be durable.

A model answers three questions about a crash place. Which namespace operations must be durable
(``Context.guaranteed``); in which order the pending ones reach the disk (``Model.order``); which of
the operations on a file's content must be there (``Context.covered``). How the rest of the content
may come back is :mod:`fault_injection.crash_states.forms`.

posix
    The adversary. fsync of a file: its content and size, not its name. fsync of a directory: the
    operations on the names in it; one that involves two directories needs both. Pending
    operations: any set that keeps the order on each name.
ext4, xfs
    One journal: an fsync makes durable all namespace operations up to the last one that changed
    that inode; the pending ones become durable in their order. A change is a namespace operation
    on the inode or in the directory, or a change of the file's size; an overwrite in place changes
    only times, and forces nothing here. fdatasync of a file counts its creation and changes of its
    size only. ext4 writes the data of a file that is renamed over another before that rename.
btrfs
    fsync of a file: its names, and the directories that they need. fsync of a directory: the names
    in it, for a rename from elsewhere too. Otherwise pending operations in their order (the last
    full commit); what was fsynced is there whatever came before it. So a further fsync may make a
    state possible here, which under the other models it never does.
kill
    Everything is durable: the page cache survives.

A sync of something clean forces nothing, under every model. sync and syncfs cover everything. An
O_SYNC or O_DSYNC write syncs its own bytes and not earlier ones of the file; of names it says what
a sync of the file says. A sync counts from the place at which it has returned, and covers what had
returned when it began.

A rename is atomic, with one exception that real btrfs shows: after an fsync of only one end of an
exchange, or one directory of a rename across two, the other names may be as they were
(``leaves_old_name``). The containment check knows this; the enumeration does not try it.

Not covered: journal modes, nodelalloc, noauto_da_alloc; bytes that hit the disk without any sync
are pending for ever.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fault_injection.crash_states.history import (
    DATA_KINDS,
    SYNC_KINDS,
    History,
    NameOp,
    Slot,
    covers_data,
    happened_before,
)
from fault_injection.trace import FileType, Kind, Operation


class Order(StrEnum):
    """In which order pending namespace operations become durable."""

    NAME = "name"  # only operations on the same name are ordered
    TIME = "time"  # all are
    ALL = "all"  # nothing is ever pending


@dataclass(frozen=True, slots=True)
class Model:
    """One persistence model. The flags say which forms unsynced content may take.

    ``tears``: within an operation, at any place. ``grows_empty``: a length that grew without its
    bytes. ``flushes_replacing_rename``: the data of a renamed file is durable with a rename that
    replaced another, where it waited for a place on the disk (:mod:`.delayed`).
    ``leaves_old_name``: half of a rename across directories may be missing.
    """

    name: str
    order: Order
    tears: bool
    grows_empty: bool
    flushes_replacing_rename: bool
    leaves_old_name: bool


def _model(
    name: str,
    order: Order,
    *,
    tears: bool = False,
    grows_empty: bool = False,
    flushes_replacing_rename: bool = False,
    leaves_old_name: bool = False,
) -> Model:
    return Model(name, order, tears, grows_empty, flushes_replacing_rename, leaves_old_name)


KILL = _model("kill", Order.ALL)
POSIX = _model("posix", Order.NAME, tears=True, grows_empty=True, leaves_old_name=True)
EXT4 = _model("ext4", Order.TIME, grows_empty=True, flushes_replacing_rename=True)
XFS = _model("xfs", Order.TIME)
BTRFS = _model("btrfs", Order.TIME, leaves_old_name=True)
MODELS: Mapping[str, Model] = {m.name: m for m in (KILL, POSIX, EXT4, XFS, BTRFS)}


def model_named(name: str) -> Model:
    """The model of that name; ValueError that lists the names there are."""
    if name not in MODELS:
        raise ValueError(f"no persistence model {name!r}; there are: {', '.join(MODELS)}")
    return MODELS[name]


@dataclass(frozen=True, slots=True)
class Context:
    """What a model says about one crash place.

    ``place`` operations came before the crash. ``applied`` and ``guaranteed`` are sets of
    namespace operations. ``covered`` and ``pending`` hold, by inode, the indices of the content
    operations that must be there and of those that need not; inodes without pending ones are left
    out of ``pending``. ``outputs`` is how much the world had seen.
    """

    place: int
    applied: int
    guaranteed: int
    covered: Mapping[int, tuple[int, ...]]
    pending: Mapping[int, tuple[int, ...]]
    outputs: int

    def content_ops(self, inode: int) -> tuple[int, ...]:
        """All content operations of ``inode`` before the crash, in order."""
        return tuple(sorted((*self.covered.get(inode, ()), *self.pending.get(inode, ()))))


def order_of(history: History, model: Model, bit: int) -> int:
    """What must be durable when namespace operation ``bit`` is (itself included)."""
    op = history.names[bit]
    return op.down_name if model.order is Order.NAME else op.down_time


def contexts(history: History, model: Model, *, outputs: frozenset[int]) -> Iterator[Context]:
    """The contexts of all crash places: before the first operation, and after each.

    ``outputs`` are the indices of the operations that the world sees.
    """
    operations = history.trace.operations
    in_force = _in_force_from(operations)
    applied = guaranteed = seen = 0
    covered: Mapping[int, tuple[int, ...]] = {}
    pending: Mapping[int, tuple[int, ...]] = {}
    waiting: list[Operation] = []  # syncs that have not returned yet
    synced_in: dict[int, int] = {}  # by directory: what its syncs covered
    yield Context(0, 0, 0, covered, pending, 0)
    for op in operations:
        seen += op.index in outputs
        if op.index in history.bit_of:
            applied |= 1 << history.bit_of[op.index]
            if model.order is Order.ALL:
                guaranteed = applied
        if op.kind in DATA_KINDS and model.order is Order.ALL:
            covered = {**covered, op.inode: (*covered.get(op.inode, ()), op.index)}
        elif op.kind in DATA_KINDS:
            pending = {**pending, op.inode: (*pending.get(op.inode, ()), op.index)}
        if op.kind in SYNC_KINDS or op.synced:
            waiting.append(op)
        for sync in [s for s in waiting if in_force[s.index] <= op.index]:
            waiting.remove(sync)
            if model.order is Order.ALL:
                continue
            guaranteed |= _names_covered(history, model, sync, synced_in)
            covered, pending = _data_covered(history, sync, covered, pending)
        yield Context(op.index + 1, applied, guaranteed, covered, pending, seen)


def _in_force_from(operations: tuple[Operation, ...]) -> dict[int, int]:
    """By sync: the operation from whose place on it counts as returned.

    That is its own, unless a later one in the trace had ended before the sync did: what that one
    said or did came while the sync was still running.
    """
    soonest = [0] * len(operations) + [1 << 62]  # the earliest end at or after an index
    for op in reversed(operations):
        soonest[op.index] = min(op.ended, soonest[op.index + 1])
    found: dict[int, int] = {}
    for op in operations:
        if op.kind in SYNC_KINDS or op.synced:
            at = op.index
            for later in range(op.index + 1, len(operations)):
                if soonest[later] >= op.ended:
                    break
                if operations[later].ended < op.ended:
                    at = later + 1
            found[op.index] = at
    return found


def _covers(sync: Operation, op: Operation) -> bool:
    """Whether ``op`` had returned when ``sync`` began; an O_SYNC write covers itself."""
    return op.index == sync.index or happened_before(op, sync)


def _data_covered(
    history: History,
    sync: Operation,
    covered: Mapping[int, tuple[int, ...]],
    pending: Mapping[int, tuple[int, ...]],
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]:
    """``covered`` and ``pending`` after ``sync``."""
    now_covered, still_pending = dict(covered), dict(pending)
    operations = history.trace.operations
    for inode in sorted(pending) if sync.kind is Kind.SYNC else (sync.inode,):
        if inode not in pending:
            continue
        done = tuple(i for i in pending[inode] if covers_data(sync, operations[i]))
        if not done:
            continue
        now_covered[inode] = tuple(sorted((*covered.get(inode, ()), *done)))
        left = tuple(i for i in pending[inode] if i not in done)
        if left:
            still_pending[inode] = left
        else:
            del still_pending[inode]
    return now_covered, still_pending


def _names_covered(
    history: History, model: Model, sync: Operation, synced_in: dict[int, int]
) -> int:
    """The namespace operations that ``sync`` makes durable, with all that they need."""
    before = 0
    for name_op in history.names:
        if name_op.index < sync.index and happened_before(
            history.trace.operations[name_op.index], sync
        ):
            before |= 1 << name_op.bit
    if sync.kind is Kind.SYNC:
        return _closed(history, before)
    if history.types.get(sync.inode) is FileType.DIRECTORY:
        old = synced_in.get(sync.inode, 0)
        synced_in[sync.inode] = old | before & history.touch.get(sync.inode, 0)
    rule = _RULES[model.name]
    return rule(history, sync, before, synced_in)


def _closed(history: History, bits: int) -> int:
    closed = 0
    for bit in each_bit(bits):
        closed |= history.names[bit].down_name
    return closed


def each_bit(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set, ascending."""
    while bits:
        low = bits & -bits
        bits ^= low
        yield low.bit_length() - 1


def _posix(history: History, sync: Operation, before: int, synced_in: Mapping[int, int]) -> int:
    result = 0
    for bit in each_bit(before & history.touch.get(sync.inode, 0)):
        name_op = history.names[bit]
        if all(synced_in.get(d, 0) >> bit & 1 for d in name_op.directories):
            result |= name_op.down_name
    return result


def _journal(history: History, sync: Operation, before: int, synced_in: Mapping[int, int]) -> int:
    del synced_in
    operations = history.trace.operations
    datasync = sync.kind is Kind.FDATASYNC or sync.synced == "data"
    only_size = datasync and history.types.get(sync.inode) is not FileType.DIRECTORY
    result = 0
    for bit in each_bit(before):
        name_op = history.names[bit]
        op = operations[name_op.index]
        changed = {op.inode, op.replaced, *name_op.directories}
        if only_size:
            changed = {op.inode} if op.kind is Kind.CREATE else set()
        if sync.inode in changed:
            result |= name_op.down_time
    # A change of size dirties the inode as a namespace operation does.
    size_changes = [
        operations[i] for i in history.size_changes(sync.inode) if _covers(sync, operations[i])
    ]
    for bit in each_bit(before & ~result):
        op = operations[history.names[bit].index]
        if any(happened_before(op, change) for change in size_changes):
            result |= history.names[bit].down_time
    return result


def _btrfs(history: History, sync: Operation, before: int, synced_in: Mapping[int, int]) -> int:
    operations = history.trace.operations
    result = _posix(history, sync, before, synced_in)
    for bit in each_bit(before):
        name_op = history.names[bit]
        op = operations[name_op.index]
        its_names = sync.inode == op.inode or (
            op.kind is Kind.EXCHANGE and sync.inode == op.replaced
        )
        arrives = op.kind is Kind.RENAME and sync.inode == op.new_parent
        if its_names or arrives or name_op.directories == (sync.inode,):
            result |= name_op.down_name
    return _with_directories(history, sync, result, before)


def _with_directories(history: History, sync: Operation, bits: int, before: int) -> int:
    """``bits`` and the creation of the directories in which the synced inode has its names now.

    Names that it had earlier need theirs no more: one end of an exchange, or of a rename, may be in
    a directory that is not there.
    """
    operations = history.trace.operations
    holder: dict[Slot, int] = {}
    made: dict[int, NameOp] = {}
    for bit in each_bit(before):
        name_op = history.names[bit]
        holder.update(name_op.sets)
        if operations[name_op.index].kind is Kind.MKDIR:
            made[operations[name_op.index].inode] = name_op
    needed = [slot[0] for slot, inode in holder.items() if inode == sync.inode]
    if sync.inode in made:
        needed.append(sync.inode)
    while needed:
        maker = made.pop(needed.pop(), None)
        if maker is not None:
            bits |= maker.down_name
            needed.append(operations[maker.index].parent)
    return bits


_RULES: Mapping[str, Callable[[History, Operation, int, Mapping[int, int]], int]] = {
    "posix": _posix,
    "ext4": _journal,
    "xfs": _journal,
    "btrfs": _btrfs,
}
