"""Lints of fsyncs that come too early, too late, or not at all."""

from collections.abc import Iterator

from fault_injection.crash_states.history import SYNC_KINDS
from fault_injection.crash_states.tree import show
from fault_injection.trace import FileType, Kind, Operation
from harness.lints.look import Finding, Look, files_below


def fsync_before_write(look: Look) -> Iterator[Finding]:
    """Files synced before their last bytes: a buffer that was not flushed."""
    syncs = [op for op in look.operations if op.kind in (Kind.FSYNC, Kind.FDATASYNC)]
    for sync in syncs:
        if look.history.types.get(sync.inode) is not FileType.FILE:
            continue
        later = [op for op in look.history.data.get(sync.inode, ()) if op.index > sync.index]
        if not later or later[0].index not in look.before[-1].pending.get(sync.inode, ()):
            continue
        own = [o for o in look.operations[sync.index + 1 :] if o.thread == sync.thread]
        flushed_at_close = bool(own) and own[0].index == later[0].index
        nothing_written = not look.before[sync.index].content_ops(sync.inode)
        if flushed_at_close or nothing_written:
            path = look.path(sync.inode, sync.index)
            message = (
                f"fsync of {path} came before its last bytes were written (#{later[0].index}, "
                f"{later[0].size} bytes): flush the buffer first, then fsync"
            )
            yield look.finding("fsync-before-write", sync, path, message)


def rename_before_fsync(look: Look) -> Iterator[Finding]:
    """Files with unsynced bytes that got their final name."""
    for op in look.operations:
        if op.kind not in (Kind.RENAME, Kind.LINK, Kind.EXCHANGE):
            continue
        for inode in files_below(look, op.inode, op.index):
            if inode in look.before[op.index].pending:
                path = look.path(inode, op.index)
                message = (
                    f"{path} has bytes that were not synced when #{op.index} gave it the name "
                    f"{show(op.new_name or op.name)}: fsync it before the {op.kind}"
                )
                yield look.finding("rename-before-fsync", op, path, message)


def no_directory_fsync(look: Look) -> Iterator[Finding]:
    """Names that were promised and are not durable."""
    gone = {op.inode for op in look.operations if op.kind in (Kind.UNLINK, Kind.RMDIR)}
    told: set[int] = set()
    for promise in look.promises:
        context = look.before[min(promise, len(look.before) - 1)]
        for name_op in look.history.names:
            bit = 1 << name_op.bit
            if not context.applied & bit or context.guaranteed & bit or name_op.index in told:
                continue
            op = look.operations[name_op.index]
            if op.inode in gone or not _meant_to_last(look, op, context.place):
                continue
            told.add(op.index)
            directory = op.new_parent if op.kind is Kind.RENAME else op.parent
            path = look.path(op.inode, op.index + 1)
            where = look.path(directory, op.index + 1) or "the root directory"
            when = f"the promise at #{promise}" if promise < len(look.operations) else "the end"
            message = f"the name {path} is not durable at {when}: fsync {where} after #{op.index}"
            yield look.finding("no-directory-fsync", op, path, message)


def _meant_to_last(look: Look, op: Operation, place: int) -> bool:
    """A rename or link; or a creation of something that the program then took care to sync."""
    if op.kind in (Kind.RENAME, Kind.LINK, Kind.EXCHANGE):
        return True
    moved = look.slot(op.inode, place) != (op.parent, op.name)
    if op.kind not in (Kind.CREATE, Kind.MKDIR) or moved:
        return False
    context = look.before[place]
    synced = {o.inode for o in look.operations[:place] if o.kind in SYNC_KINDS or o.synced}
    return any(
        inode in synced and inode not in context.pending
        for inode in files_below(look, op.inode, place)
    )
