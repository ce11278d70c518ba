"""Editing a trace: with a sync more, or one less. The trace itself is never changed.

Ticks are spread out, so that an added sync begins when the operation before it has returned and
ends before anything else begins. Indices after the edit shift by one; labels of places stay.
"""

from collections.abc import Iterable
from dataclasses import replace

from fault_injection.crash_states.history import SYNC_KINDS
from fault_injection.trace import Kind, Operation, Trace

_SPREAD = 4  # old ticks are multiples of this, which leaves room for one more operation


def with_fsync(trace: Trace, after_index: int, inode: int) -> Trace:
    """``trace`` with an fsync of ``inode`` right after operation ``after_index`` (-1: first)."""
    if not -1 <= after_index < len(trace.operations):
        raise ValueError(f"operation {after_index}: the trace has {len(trace.operations)}")
    before = trace.operations[after_index] if after_index >= 0 else None
    ended = before.ended * _SPREAD if before is not None else -_SPREAD
    added = Operation(
        index=after_index + 1,
        kind=Kind.FSYNC,
        began=ended + 1,
        ended=ended + 2,
        thread=before.thread if before is not None else 0,
        inode=inode,
        place=f"added-fsync-{inode}#{after_index + 1}",
        call="fsync",
        site=before.site if before is not None else "",
        stack=before.stack if before is not None else "",
    )
    spread = [
        replace(op, began=op.began * _SPREAD, ended=op.ended * _SPREAD) for op in trace.operations
    ]
    cut = after_index + 1
    return _renumbered(trace, (*spread[:cut], added, *spread[cut:]))


def without(trace: Trace, index: int) -> Trace:
    """``trace`` without the sync ``index``; of an O_SYNC write, only its sync goes.

    ValueError when the operation is no sync.
    """
    op = trace.operations[index]
    if op.synced:
        kept = replace(op, synced="")
        return _renumbered(trace, (*trace.operations[:index], kept, *trace.operations[index + 1 :]))
    if op.kind not in SYNC_KINDS:
        raise ValueError(f"operation #{index} is a {op.kind}, not a sync")
    return _renumbered(trace, (*trace.operations[:index], *trace.operations[index + 1 :]))


def _renumbered(trace: Trace, operations: Iterable[Operation]) -> Trace:
    numbered = tuple(
        op if op.index == number else replace(op, index=number)
        for number, op in enumerate(operations)
    )
    return Trace(start=trace.start, operations=numbered, blobs=trace.blobs)
