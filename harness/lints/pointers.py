"""The lint of pointers and manifests that name what is not ready."""

from collections.abc import Iterator

from fault_injection.crash_states.tree import show
from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation
from harness.lints.look import MANIFEST_BYTES, Finding, Look, files_below, names_in

_POINTER_BYTES = 512  # a pointer is at most this long
_NOT_THERE = "was not there yet"
_BYTES_NOT_SYNCED = "had bytes that were not synced"
_NAME_NOT_SYNCED = "had a name that was not durable: fsync the directory first"


def pointer_before_data(look: Look) -> Iterator[Finding]:
    """Pointers and manifests published before what they name was there, or was synced."""
    ever: dict[int, set[bytes]] = {}  # names that a directory ever holds
    for slot in look.history.chains:
        ever.setdefault(slot[0], set()).add(slot[1])
    for op in look.operations:
        published = _published(look, op)
        if published is None:
            continue
        pointer, (directory, own_name), replaces = published
        after = op.index + 1
        limit = _POINTER_BYTES if replaces or op.kind is Kind.RENAME else MANIFEST_BYTES
        text = look.history.targets.get(pointer) or look.text(pointer, after, limit)
        named = (names_in(text) & ever.get(directory, set())) - {own_name}
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


def _published(look: Look, op: Operation) -> tuple[int, tuple[int, bytes], bool] | None:
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


def _moves_later(look: Look, inode: int, index: int) -> bool:
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


def _not_ready(look: Look, inode: int, directory: int, name: bytes, place: int) -> str:
    """Why what a pointer names is not there to be pointed to; empty when it is."""
    if inode < 0:
        chain = look.history.chains.get((directory, name), ())
        later = any(look.history.names[bit].index >= place for bit in chain)
        return _NOT_THERE if later else ""
    context = look.before[place]
    if any(below in context.pending for below in files_below(look, inode, place)):
        return _BYTES_NOT_SYNCED
    for bit in look.history.chains.get((directory, name), ()):
        if context.applied >> bit & 1 and not context.guaranteed >> bit & 1:
            return _NAME_NOT_SYNCED
    return ""
