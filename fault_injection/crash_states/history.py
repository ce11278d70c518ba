"""What a trace means: who holds which name after which operations, and what files contain.

A *slot* is a name in a directory (by inode). A namespace operation sets one or two slots at once;
each has a *bit*, its number among the namespace operations, and a set of durable operations is an
integer with those bits. Which slots hold what under a set follows from the start tree and the
set's operations in trace order; sets that do not keep the order of operations on one slot never
occur (``down_name``). ``down_time`` is the stronger order of happened-before.

Operations that begin before another has ended are concurrent and not ordered by time.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from fault_injection.crash_states.content import (
    EMPTY,
    Content,
    ContentStore,
    applied,
    of_blob,
)
from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation, Trace

DATA_KINDS = frozenset(
    {Kind.WRITE, Kind.TRUNCATE, Kind.ALLOCATE, Kind.PUNCH, Kind.COLLAPSE, Kind.INSERT}
)
SYNC_KINDS = frozenset({Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC})

Slot = tuple[int, bytes]  # directory inode, name


@dataclass(frozen=True, slots=True)
class NameOp:
    """A namespace operation: ``bit`` its number, ``sets`` the slots and what they hold after it."""

    bit: int
    index: int
    sets: tuple[tuple[Slot, int], ...]
    directories: tuple[int, ...]
    down_name: int
    down_time: int


@dataclass(frozen=True, slots=True)
class History:
    """A trace, prepared. Build it with :func:`prepare`; nothing in it changes but its caches.

    ``names`` by bit; ``bit_of`` by operation index; ``touch`` the bits that set a slot in a
    directory; ``chains`` the bits that set one slot, in order; ``data`` the content operations of
    an inode in order; ``linked`` the inodes that may have several names.
    """

    trace: Trace
    store: ContentStore
    names: tuple[NameOp, ...]
    bit_of: Mapping[int, int]
    touch: Mapping[int, int]
    chains: Mapping[Slot, tuple[int, ...]]
    data: Mapping[int, tuple[Operation, ...]]
    types: Mapping[int, FileType]
    modes: Mapping[int, int]
    targets: Mapping[int, bytes]
    linked: frozenset[int]
    _contents: dict[tuple[int, tuple[int, ...]], Content] = field(default_factory=dict)
    _entries: dict[tuple[int, int], dict[bytes, int]] = field(default_factory=dict)
    _size_changes: dict[int, tuple[int, ...]] = field(default_factory=dict)
    _words: list[str] = field(default_factory=list)  # filled by describe.operation_words

    def entries(self, directory: int, durable: int) -> dict[bytes, int]:
        """Name to inode in ``directory`` when ``durable`` is; not to be changed by the caller."""
        touching = self.touch.get(directory, 0)
        key = (directory, durable & touching)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._entries_of(*key)
        return found

    def _entries_of(self, directory: int, durable: int) -> dict[bytes, int]:
        node = self.trace.start.get(directory)
        result = dict(node.entries) if node is not None else {}
        while durable:
            low = durable & -durable
            durable ^= low
            for (parent, name), inode in self.names[low.bit_length() - 1].sets:
                if parent != directory:
                    continue
                if inode < 0:
                    result.pop(name, None)
                else:
                    result[name] = inode
        return result

    def content(self, inode: int, indices: tuple[int, ...]) -> Content:
        """The content of ``inode`` after the operations with these indices, in this order."""
        known = len(indices)
        while known and (inode, indices[:known]) not in self._contents:
            known -= 1
        content = self._contents[inode, indices[:known]] if known else self._start(inode)
        for count in range(known, len(indices)):
            content = applied(content, self.trace.operations[indices[count]])
            self._contents[inode, indices[: count + 1]] = content
        return content

    def size_changes(self, inode: int) -> tuple[int, ...]:
        """Indices of the content operations after which ``inode`` has another length."""
        known = self._size_changes.get(inode)
        if known is None:
            found: list[int] = []
            done: tuple[int, ...] = ()
            size = self._start(inode).size
            for op in self.data.get(inode, ()):
                done = (*done, op.index)
                new_size = self.content(inode, done).size
                if new_size != size:
                    found.append(op.index)
                size = new_size
            known = self._size_changes[inode] = tuple(found)
        return known

    def _start(self, inode: int) -> Content:
        node = self.trace.start.get(inode)
        return of_blob(node.blob, node.size) if node is not None else EMPTY


def prepare(trace: Trace, store: ContentStore | None = None) -> History:
    """Read a trace once, over a store of its blobs if there is one already.

    ValueError when the operations' indices are not their positions.
    """
    for position, op in enumerate(trace.operations):
        if op.index != position:
            raise ValueError(f"operation at position {position} of the trace says #{op.index}")
    names = _name_ops(trace)
    types = {n.inode: n.type for n in trace.start.values()}
    modes = {n.inode: n.mode for n in trace.start.values()}
    targets = {n.inode: n.target for n in trace.start.values()}
    data: dict[int, list[Operation]] = {}
    for op in trace.operations:
        if op.kind in _MAKES:
            types[op.inode], modes[op.inode] = _MAKES[op.kind], op.mode
            targets[op.inode] = op.target
        elif op.kind in DATA_KINDS:
            data.setdefault(op.inode, []).append(op)
    touch: dict[int, int] = {}
    chains: dict[Slot, list[int]] = {}
    for name_op in names:
        for directory in name_op.directories:
            touch[directory] = touch.get(directory, 0) | 1 << name_op.bit
        for slot, _ in name_op.sets:
            chains.setdefault(slot, []).append(name_op.bit)
    return History(
        trace=trace,
        store=store or ContentStore(trace.blobs),
        names=names,
        bit_of={op.index: op.bit for op in names},
        touch=touch,
        chains={slot: tuple(bits) for slot, bits in chains.items()},
        data={inode: tuple(ops) for inode, ops in data.items()},
        types=types,
        modes=modes,
        targets=targets,
        linked=_linked(trace),
    )


_MAKES = {
    Kind.CREATE: FileType.FILE,
    Kind.MKDIR: FileType.DIRECTORY,
    Kind.SYMLINK: FileType.SYMLINK,
}


def slots_set(op: Operation) -> tuple[tuple[Slot, int], ...]:
    """The slots that a namespace operation sets, and the inode (-1: none) that each then holds."""
    here, there = (op.parent, op.name), (op.new_parent, op.new_name)
    match op.kind:
        case Kind.CREATE | Kind.MKDIR | Kind.SYMLINK | Kind.LINK:
            return ((here, op.inode),) if op.name else ()
        case Kind.RENAME:
            # Renaming one name of a file to another name of the same file does nothing.
            if here == there or op.replaced == op.inode:
                return ()
            return ((here, -1), (there, op.inode))
        case Kind.EXCHANGE:
            return ((here, op.replaced), (there, op.inode)) if here != there else ()
        case Kind.UNLINK | Kind.RMDIR:
            return ((here, -1),)
        case _:
            return ()


def nameless_since(trace: Trace) -> dict[int, int]:
    """By inode, the operation after which it has no name and never gets one again."""
    holds = {
        (n.inode, name): inode for n in trace.start.values() for name, inode in n.entries.items()
    }
    counts = Counter(holds.values())
    gone: dict[int, int] = {}
    for op in trace.operations:
        if op.kind is Kind.CREATE and not op.name:
            gone[op.inode] = op.index
        touched = []
        for slot, inode in slots_set(op):
            touched += [holds.pop(slot, -1), inode]
            counts[touched[-2]] -= 1
            counts[inode] += 1
            holds[slot] = inode
        for inode in touched:
            if counts[inode] > 0:
                gone.pop(inode, None)
            else:
                gone[inode] = op.index
    gone.pop(-1, None)
    return gone


def _name_ops(trace: Trace) -> tuple[NameOp, ...]:
    names: list[NameOp] = []
    last_on: dict[Slot, int] = {}
    for op in trace.operations:
        sets = slots_set(op)
        if not sets:
            continue
        bit = len(names)
        down_name = 1 << bit
        for slot, _ in sets:
            if slot in last_on:
                down_name |= names[last_on[slot]].down_name
            last_on[slot] = bit
        down_time = down_name
        for earlier in reversed(names):
            if not down_time >> earlier.bit & 1 and happened_before(
                trace.operations[earlier.index], op
            ):
                down_time |= earlier.down_time
        directories = tuple(sorted({slot[0] for slot, _ in sets}))
        names.append(NameOp(bit, op.index, sets, directories, down_name, down_time))
    return tuple(names)


def happened_before(first: Operation, second: Operation) -> bool:
    """Whether ``first`` had returned when ``second`` began."""
    return first.ended < second.began


def covers_data(sync: Operation, op: Operation) -> bool:
    """Whether ``sync`` is for the content ``op``, which had returned when it began.

    The kernel syncs only the range that an O_SYNC write wrote.
    """
    return op.index == sync.index or (not sync.synced and happened_before(op, sync))


def _linked(trace: Trace) -> frozenset[int]:
    seen: dict[int, int] = {}
    for node in trace.start.values():
        for inode in node.entries.values():
            seen[inode] = seen.get(inode, 0) + 1
    several = {inode for inode, count in seen.items() if count > 1}
    several.update(op.inode for op in trace.operations if op.kind is Kind.LINK)
    return frozenset(several - {ROOT_INODE})
