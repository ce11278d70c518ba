"""Lints: the classic mistakes of a save, told from the trace alone, before any state is explored.

Each lint is a function over a recorded trace that yields findings: what is wrong, at which
operation, on which file, and where in the source that call was made. A lint is advice; the crash
states decide the verdict. Silence is therefore preferred to guessing: a lint speaks where the
order of the calls cannot be meant.

==================== ===========================================================================
fsync-before-write   a file was fsynced before its last bytes were written: a buffer not flushed
rename-before-fsync  a file, or a directory with a file in it, was renamed with unsynced bytes
no-directory-fsync   a rename, or the creation of a synced file, was acknowledged (or is never
                     followed) without an fsync of its directory
unlink-before-rename the old one was removed before the new one was renamed to its name, or, the
                     only one of a numbered series, before the next one had its name
truncate-in-place    a file that a manifest names, or that the last acknowledged save consists of,
                     was emptied in place (not a scratch file: never synced, unlike a later copy)
pointer-before-data  a pointer or manifest was published before what it names was there or synced
==================== ===========================================================================

What the program promises is known from ``acknowledged``: the operations by which it says that a
checkpoint is safe. Without them only the end of the trace counts as a promise.

Not covered: data that was never synced at all and never renamed (a log may be so on purpose).
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass

from fault_injection.crash_states.describe import unnamed
from fault_injection.crash_states.history import (
    DATA_KINDS,
    SYNC_KINDS,
    History,
    prepare,
    slots_set,
)
from fault_injection.crash_states.models import POSIX, Context, contexts
from fault_injection.crash_states.tree import show
from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation, Trace

_POINTER_BYTES = 512  # a pointer is at most this long
_MANIFEST_BYTES = 64 << 10  # and a manifest this
_NUMBER = re.compile(rb"\d+")
_NAME_IN_TEXT = re.compile(rb"[A-Za-z0-9._+@=-]{2,255}")


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake. ``index``, ``place`` and ``site`` are those of the operation that made it."""

    name: str
    index: int
    place: str
    file: str
    site: str
    message: str


@dataclass(frozen=True, slots=True)
class _Look:
    """A trace with what the lints ask of it.

    ``before[i]`` is the posix context right before operation i; ``slots`` the slot that each inode
    had before operation i, as a list of changes; ``promises`` the places at which something was
    promised, ascending.
    """

    history: History
    before: tuple[Context, ...]
    moves: dict[int, list[tuple[int, tuple[int, bytes]]]]
    promises: tuple[int, ...]

    @property
    def operations(self) -> tuple[Operation, ...]:
        return self.history.trace.operations

    def slot(self, inode: int, index: int) -> tuple[int, bytes] | None:
        """The last name of ``inode`` before operation ``index``."""
        found = None
        for moved_at, slot in self.moves.get(inode, ()):
            if moved_at >= index:
                break
            found = slot
        return found

    def path(self, inode: int, index: int) -> str:
        """The path of ``inode`` before operation ``index``."""
        parts: list[bytes] = []
        while inode != ROOT_INODE and len(parts) < 256:
            slot = self.slot(inode, index)
            if slot is None:
                parts.append(unnamed(self.history.types, inode).encode())
                break
            inode = slot[0]
            parts.append(slot[1])
        return show(b"/".join(reversed(parts)))

    def entries(self, directory: int, index: int) -> dict[bytes, int]:
        """What ``directory`` held, for the running program, before operation ``index``."""
        return self.history.entries(directory, self.before[index].applied)

    def text(self, inode: int, index: int, most_bytes: int) -> bytes:
        """The content of a short file before operation ``index``; empty when it is longer."""
        content = self.history.content(inode, self.before[index].content_ops(inode))
        return self.history.store.read(content) if content.size <= most_bytes else b""

    def size(self, inode: int, index: int) -> int:
        """The length of a file before operation ``index``."""
        return self.history.content(inode, self.before[index].content_ops(inode)).size

    def finding(self, name: str, op: Operation, file: str, message: str) -> Finding:
        return Finding(name, op.index, op.place, file, op.site, message)


def lint(trace: Trace, *, acknowledged: Collection[int] = ()) -> tuple[Finding, ...]:
    """All findings of a trace, by operation and name.

    ``acknowledged``: indices of the operations by which the program promised durability.
    """
    look = _look(trace, acknowledged)
    found = {finding for check in LINTS.values() for finding in check(look)}
    return tuple(sorted(found, key=lambda f: (f.index, f.name, f.file, f.message)))


def _look(trace: Trace, acknowledged: Collection[int]) -> _Look:
    history = prepare(trace)
    moves: dict[int, list[tuple[int, tuple[int, bytes]]]] = {}
    for node in trace.start.values():
        for name, inode in sorted(node.entries.items()):
            moves.setdefault(inode, []).append((-1, (node.inode, name)))
    for op in trace.operations:
        for slot, inode in slots_set(op):
            if inode >= 0:
                moves.setdefault(inode, []).append((op.index, slot))
    ends = tuple(sorted(acknowledged)) or (len(trace.operations),)
    return _Look(history, tuple(contexts(history, POSIX, outputs=frozenset())), moves, ends)


def _fsync_before_write(look: _Look) -> Iterator[Finding]:
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


def _rename_before_fsync(look: _Look) -> Iterator[Finding]:
    for op in look.operations:
        if op.kind not in (Kind.RENAME, Kind.LINK):
            continue
        for inode in _files_below(look, op.inode, op.index):
            if inode in look.before[op.index].pending:
                path = look.path(inode, op.index)
                message = (
                    f"{path} has bytes that were not synced when #{op.index} gave it the name "
                    f"{show(op.new_name or op.name)}: fsync it before the {op.kind}"
                )
                yield look.finding("rename-before-fsync", op, path, message)


def _files_below(look: _Look, inode: int, index: int) -> Iterator[int]:
    todo = [inode]
    while todo:
        here = todo.pop()
        if look.history.types.get(here) is FileType.DIRECTORY:
            todo.extend(inode for _, inode in sorted(look.entries(here, index).items()))
        else:
            yield here


def _no_directory_fsync(look: _Look) -> Iterator[Finding]:
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


def _meant_to_last(look: _Look, op: Operation, place: int) -> bool:
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
        for inode in _files_below(look, op.inode, place)
    )


def _unlink_before_rename(look: _Look) -> Iterator[Finding]:
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
    look: _Look, rename: Operation, removed: Sequence[Operation]
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


def _named_at(look: _Look, old: Operation) -> int:
    """The operation that gave what ``old`` removes its last name; -1: it had it from the start."""
    return max((at for at, _ in look.moves.get(old.inode, ()) if at < old.index), default=-1)


def _begun_after(look: _Look, inode: int, old: Operation) -> bool:
    """Whether ``inode`` was made when ``old`` had its name: else it is no successor of it."""
    makes = (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK)
    made = (op.index for op in look.operations if op.kind in makes and op.inode == inode)
    return next(made, -1) > _named_at(look, old)


def _is_elsewhere(look: _Look, old: Operation) -> bool:
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


def _truncate_in_place(look: _Look) -> Iterator[Finding]:
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


def _in_last_save(look: _Look, op: Operation, promises: list[int]) -> bool:
    """Whether what is emptied was written for the last promise, and was there when it was made."""
    earlier = [p for p in promises if p < op.index]
    if not earlier or not look.size(op.inode, earlier[-1]):
        return False
    since = earlier[-2] if len(earlier) > 1 else -1
    written = [o for o in look.history.data.get(op.inode, ()) if since < o.index < earlier[-1]]
    return bool(written) and not _is_scratch(look, op.inode, written[-1].index, earlier[-1])


def _is_scratch(look: _Look, inode: int, written: int, promise: int) -> bool:
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


def _voucher(look: _Look, inode: int, slot: tuple[int, bytes], index: int) -> str:
    """A live file beside this one that names it; empty when there is none."""
    for _, other in sorted(look.entries(slot[0], index).items()):
        if other == inode or look.history.types.get(other) is not FileType.FILE:
            continue
        if slot[1] in _names_in(look.text(other, index, _MANIFEST_BYTES)):
            return look.path(other, index)
    return ""


def _names_in(text: bytes) -> set[bytes]:
    return set(_NAME_IN_TEXT.findall(text)) if b"\0" not in text else set()


def _pointer_before_data(look: _Look) -> Iterator[Finding]:
    ever: dict[int, set[bytes]] = {}  # names that a directory ever holds
    for slot in look.history.chains:
        ever.setdefault(slot[0], set()).add(slot[1])
    for op in look.operations:
        published = _published(look, op)
        if published is None:
            continue
        pointer, (directory, own_name), replaces = published
        after = op.index + 1
        limit = _POINTER_BYTES if replaces or op.kind is Kind.RENAME else _MANIFEST_BYTES
        text = look.history.targets.get(pointer) or look.text(pointer, after, limit)
        named = (_names_in(text) & ever.get(directory, set())) - {own_name}
        present = look.entries(directory, after)
        for name in sorted(named):
            problem = _not_ready(look, present.get(name, -1), directory, name, after)
            if not replaces and problem == _NAME_NOT_SYNCED:
                continue
            if not replaces and len(named) > 1 and problem == _NOT_THERE:
                continue
            if problem:
                path = look.path(pointer, after)
                message = f"{path} was published while {show(name)}, which it names, {problem}"
                yield look.finding("pointer-before-data", op, path, message)


_NOT_THERE = "was not there yet"
_BYTES_NOT_SYNCED = "had bytes that were not synced"
_NAME_NOT_SYNCED = "had a name that was not durable: fsync the directory first"


def _published(look: _Look, op: Operation) -> tuple[int, tuple[int, bytes], bool] | None:
    """The file that this operation publishes, its slot, and whether it takes another's place."""
    if op.kind is Kind.RENAME and look.history.types.get(op.inode) is FileType.FILE:
        return op.inode, (op.new_parent, op.new_name), op.replaced >= 0
    if op.kind is Kind.RENAME and look.history.types.get(op.inode) is FileType.SYMLINK:
        return op.inode, (op.new_parent, op.new_name), op.replaced >= 0
    if op.kind in (Kind.FSYNC, Kind.FDATASYNC):
        slot = look.slot(op.inode, op.index)
        is_file = look.history.types.get(op.inode) is FileType.FILE
        if slot is None or not is_file or _moves_later(look, op.inode, op.index):
            return None
        return op.inode, slot, False
    return None


def _moves_later(look: _Look, inode: int, index: int) -> bool:
    """Whether the file, or a directory that it is in, is renamed later: it is not published yet."""
    renamed = {
        o.inode for o in look.operations[index + 1 :] if o.kind in (Kind.RENAME, Kind.EXCHANGE)
    }
    for _ in range(256):
        if inode in renamed:
            return True
        slot = look.slot(inode, index)
        if slot is None or inode == ROOT_INODE:
            return False
        inode = slot[0]
    return False


def _not_ready(look: _Look, inode: int, directory: int, name: bytes, place: int) -> str:
    """Why what a pointer names is not there to be pointed to; empty when it is."""
    if inode < 0:
        chain = look.history.chains.get((directory, name), ())
        later = any(look.history.names[bit].index >= place for bit in chain)
        return _NOT_THERE if later else ""
    context = look.before[place]
    if any(below in context.pending for below in _files_below(look, inode, place)):
        return _BYTES_NOT_SYNCED
    for bit in look.history.chains.get((directory, name), ()):
        if context.applied >> bit & 1 and not context.guaranteed >> bit & 1:
            return _NAME_NOT_SYNCED
    return ""


LINTS: dict[str, Callable[[_Look], Iterator[Finding]]] = {
    "fsync-before-write": _fsync_before_write,
    "rename-before-fsync": _rename_before_fsync,
    "no-directory-fsync": _no_directory_fsync,
    "unlink-before-rename": _unlink_before_rename,
    "truncate-in-place": _truncate_in_place,
    "pointer-before-data": _pointer_before_data,
}
