"""When ext4 writes a file's bytes at the rename that gives it another file's name.

With ``auto_da_alloc`` such a rename starts the writing of the renamed file, but only when some of
its bytes have no place on the disk yet (delayed allocation). Bytes written into blocks that the
file already has are left in the page cache: an append within the last block of what was synced, a
file that is used again and written over, one that was preallocated.

What the file system may have written of its own accord is not taken for written.
"""

from collections.abc import Sequence

from fault_injection.crash_states.history import (
    SYNC_KINDS,
    History,
    covers_data,
    happened_before,
)
from fault_injection.trace import Kind, Operation

BLOCK_BYTES = 4096

Extent = tuple[int, int]  # the first block, and the first one after it


def waits_for_place(history: History, rename: Operation) -> bool:
    """Whether, at ``rename``, the renamed file has bytes that have no place on the disk."""
    operations = history.trace.operations
    inode = rename.inode
    syncs = [
        op for op in operations[: rename.index] if _syncs(op, inode) and happened_before(op, rename)
    ]
    node = history.trace.start.get(inode)
    placed: list[Extent] = [] if node is None else [_extent(0, node.size)]
    waiting: list[Extent] = []
    for op in history.data.get(inode, ()):
        if op.index > rename.index or not happened_before(op, rename):
            continue
        if op.kind is Kind.WRITE and not any(covers_data(sync, op) for sync in syncs):
            waiting += _without(_extent(op.offset, op.size), placed)
        elif op.kind in (Kind.WRITE, Kind.ALLOCATE):
            placed.append(_extent(op.offset, op.size))
        elif op.kind is Kind.TRUNCATE:
            kept = _extent(0, op.size)
            placed, waiting = _cut(placed, kept[1]), _cut(waiting, kept[1])
        else:
            return False  # blocks move: nothing is promised
    return bool(waiting)


def _syncs(op: Operation, inode: int) -> bool:
    if op.kind is Kind.SYNC:
        return True
    return op.inode == inode and (op.kind in SYNC_KINDS or bool(op.synced))


def _extent(offset: int, size: int) -> Extent:
    """The blocks in which these bytes are."""
    return offset // BLOCK_BYTES, -(-(offset + size) // BLOCK_BYTES)


def _cut(extents: Sequence[Extent], end: int) -> list[Extent]:
    """What of the extents lies before ``end``."""
    return [(first, min(last, end)) for first, last in extents if first < end]


def _without(extent: Extent, others: Sequence[Extent]) -> list[Extent]:
    """What of ``extent`` is in none of the others."""
    left = [extent]
    for first, last in others:
        left = [
            part
            for a, b in left
            for part in ((a, min(b, first)), (max(a, last), b))
            if part[0] < part[1]
        ]
    return left
