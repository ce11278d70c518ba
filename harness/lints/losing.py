"""Lints of an old copy that is given up before the new one is there."""

import re
from collections.abc import Iterator, Sequence

from fault_injection.crash_states.history import DATA_KINDS
from fault_injection.crash_states.tree import show
from fault_injection.trace import FileType, Kind, Operation
from harness.lints.look import MANIFEST_BYTES, Finding, Look, names_in

_NUMBER = re.compile(rb"\d+")


def unlink_before_rename(look: Look) -> Iterator[Finding]:
    """Old ones removed before the new one had the name, or the next of the series its own."""
    removed: dict[tuple[int, bytes], Operation] = {}
    by_series: dict[tuple[int, bytes], list[Operation]] = {}
    for op in look.operations:
        if op.kind in (Kind.UNLINK, Kind.RMDIR):
            removed[op.parent, op.name] = op
            by_series.setdefault((op.parent, _series(op.name)), []).append(op)
        elif op.kind is Kind.RENAME:
            old = removed.pop((op.new_parent, op.new_name), None)
            if old is None:
                earlier = by_series.get((op.new_parent, _series(op.new_name)), ())
                still = [o for o in earlier if removed.get((o.parent, o.name)) is o]
                old = _numbered_before(look, op, still)
            if old is None:
                continue
            path = look.path(old.inode, old.index)
            there = f"gave the new one the name {show(op.new_name)}: between the two there is none"
            does = "first rename the new one, then remove the old one"
            if old.name == op.new_name:
                there = "renamed the new one to its name: between the two there is none"
                does = "rename over it instead"
            message = f"{path} was removed before #{op.index} {there}; {does}"
            yield look.finding("unlink-before-rename", old, path, message)


def _numbered_before(
    look: Look, rename: Operation, removed: Sequence[Operation]
) -> Operation | None:
    """The only one of a numbered series, removed before a rename gave the next one its name.

    ``removed`` are those of the series in the directory, in order.
    """
    for old in reversed(removed):
        series = _series(old.name)
        if series == old.name or any(old.index < p < rename.index for p in look.promises):
            return None  # of the older ones it is true as well
        alike = [
            name
            for index in (old.index + 1, rename.index)
            for name in look.entries(old.parent, index)
            if _series(name) == series
        ]
        if not alike and _begun_after(look, rename.inode, old) and not _is_elsewhere(look, old):
            return old
    return None


def _series(name: bytes) -> bytes:
    return _NUMBER.sub(b"0", name)


def _named_at(look: Look, old: Operation) -> int:
    """The operation that gave what ``old`` removes its last name; -1: it had it from the start."""
    return max((at for at, _ in look.moves.get(old.inode, ()) if at < old.index), default=-1)


def _begun_after(look: Look, inode: int, old: Operation) -> bool:
    """Whether ``inode`` was made when ``old`` had its name: else it is no successor of it."""
    makes = (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK)
    made = (op.index for op in look.operations if op.kind in makes and op.inode == inode)
    return next(made, -1) > _named_at(look, old)


def _is_elsewhere(look: Look, old: Operation) -> bool:
    """Whether another file of the directory may hold what the removed one did: it was written or
    renamed later, and is synced."""
    context = look.before[old.index]
    return any(
        op.inode != old.inode
        and (op.kind is Kind.RENAME or op.kind in DATA_KINDS)
        and (look.slot(op.inode, old.index) or (-1, b""))[0] == old.parent
        and context.content_ops(op.inode)
        and op.inode not in context.pending
        for op in look.operations[_named_at(look, old) + 1 : old.index]
    )


def truncate_in_place(look: Look) -> Iterator[Finding]:
    """Files emptied in place that a manifest, or the last promise, needs."""
    promises = [p for p in look.promises if p < len(look.operations)]
    published: dict[int, int] = {}  # by directory: the file that was last written or renamed
    for op in look.operations:
        if op.kind is Kind.RENAME:
            published[op.new_parent] = op.inode
        elif op.kind is Kind.WRITE and (written := look.slot(op.inode, op.index)):
            published[written[0]] = op.inode
        if op.kind is not Kind.TRUNCATE or op.size or not look.size(op.inode, op.index):
            continue
        slot = look.slot(op.inode, op.index)
        if slot is None:
            continue
        # Without promises only an open that empties can be told from a journal being reset.
        by_open = op.call.startswith(("open", "creat"))
        last_alone = not promises and by_open and published.get(slot[0]) == op.inode
        voucher = _voucher(look, op.inode, slot, op.index)
        if voucher or last_alone or _in_last_save(look, op, promises):
            path = look.path(op.inode, op.index)
            why = f"{voucher} vouches for it" if voucher else "it is the newest complete one"
            message = (
                f"{path} was emptied in place while {why}: write a temporary file and rename it"
            )
            yield look.finding("truncate-in-place", op, path, message)


def _in_last_save(look: Look, op: Operation, promises: list[int]) -> bool:
    """Whether what is emptied was written for the last promise, and was there when it was made."""
    earlier = [p for p in promises if p < op.index]
    if not earlier or not look.size(op.inode, earlier[-1]):
        return False
    since = earlier[-2] if len(earlier) > 1 else -1
    written = [o for o in look.history.data.get(op.inode, ()) if since < o.index < earlier[-1]]
    return bool(written) and not _is_scratch(look, op.inode, written[-1].index, earlier[-1])


def _is_scratch(look: Look, inode: int, written: int, promise: int) -> bool:
    """Whether a file was only on the way to another: it was not synced for the promise, and one
    that was written after it and is as long was."""
    pending = look.before[promise].pending
    if inode not in pending:
        return False
    return any(
        other != inode
        and other not in pending
        and any(written < op.index < promise for op in operations)
        and look.size(other, promise) >= look.size(inode, promise)
        for other, operations in look.history.data.items()
    )


def _voucher(look: Look, inode: int, slot: tuple[int, bytes], index: int) -> str:
    """A live file beside this one that names it; empty when there is none."""
    for _, other in sorted(look.entries(slot[0], index).items()):
        if other == inode or look.history.types.get(other) is not FileType.FILE:
            continue
        if slot[1] in names_in(look.text(other, index, MANIFEST_BYTES)):
            return look.path(other, index)
    return ""
