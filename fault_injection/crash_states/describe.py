"""Operations and crash states in words for people.

Paths are those that the program saw, whether durable or not: a name is given from the root, and
the new name of a rename inside one directory without its directory.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum

from fault_injection.crash_states.history import DATA_KINDS, SYNC_KINDS, History, slots_set
from fault_injection.crash_states.state import State
from fault_injection.crash_states.tree import show
from fault_injection.trace import ROOT_INODE, FileType, Kind, Operation


class Status(StrEnum):
    """What became of an operation in a crash state."""

    DURABLE = "durable"
    LOST = "lost"
    PARTLY = "partly"
    SEEN = "seen"  # output: the world has it
    SYNC = "sync"
    AFTER = "after the crash"
    NO_EFFECT = "no effect"


@dataclass(frozen=True, slots=True)
class Line:
    """One operation of a state's timeline. ``detail`` says more where it came back in part."""

    index: int
    words: str
    status: Status
    detail: str = ""
    site: str = ""


def operation_words(history: History) -> list[str]:
    """What each operation of the trace did, by index."""
    if not history._words:
        history._words.extend(_all_words(history))
    return history._words


def _all_words(history: History) -> list[str]:
    names: dict[int, tuple[int, bytes]] = {}  # the name that each inode has, or had last
    for node in history.trace.start.values():
        for name, inode in sorted(node.entries.items()):
            names.setdefault(inode, (node.inode, name))
    words: list[str] = []
    for op in history.trace.operations:
        words.append(_words(history, op, names))
        for slot, inode in slots_set(op):
            if inode >= 0:
                names[inode] = slot
    return words


def unnamed(types: Mapping[int, FileType], inode: int) -> str:
    """What to call an inode that never had a name under the root.

    A directory has one where it lies; it is met when something is moved in from there.
    """
    is_directory = types.get(inode) is FileType.DIRECTORY
    return "(outside the root)" if is_directory else "(nameless file)"


def _path(history: History, names: dict[int, tuple[int, bytes]], inode: int) -> str:
    parts: list[bytes] = []
    while inode != ROOT_INODE and len(parts) < 256:
        unknown = (ROOT_INODE, unnamed(history.types, inode).encode())
        parent, name = names.get(inode, unknown)
        parts.append(name)
        inode = parent
    return show(b"/".join(reversed(parts))) or "the root"


def _words(history: History, op: Operation, names: dict[int, tuple[int, bytes]]) -> str:
    def at(parent: int, name: bytes) -> str:
        above = "" if parent == ROOT_INODE else _path(history, names, parent) + "/"
        return above + show(name)

    match op.kind:
        case Kind.CREATE | Kind.MKDIR | Kind.UNLINK | Kind.RMDIR:
            return f"{op.kind} {at(op.parent, op.name) if op.name else '(nameless file)'}"
        case Kind.SYMLINK:
            return f"symlink {at(op.parent, op.name)} to {show(op.target)}"
        case Kind.LINK:
            return f"link {_path(history, names, op.inode)} as {at(op.parent, op.name)}"
        case Kind.RENAME | Kind.EXCHANGE:
            same = op.parent == op.new_parent
            new = show(op.new_name) if same else at(op.new_parent, op.new_name)
            arrow = "->" if op.kind is Kind.RENAME else "<->"
            return f"{op.kind} {at(op.parent, op.name)} {arrow} {new}"
        case Kind.WRITE:
            sync = {"all": ", O_SYNC", "data": ", O_DSYNC"}.get(op.synced, "")
            return f"write {_path(history, names, op.inode)} ({op.size} bytes at {op.offset}{sync})"
        case Kind.TRUNCATE:
            return f"truncate {_path(history, names, op.inode)} to {op.size} bytes"
        case Kind.ALLOCATE | Kind.PUNCH | Kind.COLLAPSE | Kind.INSERT:
            return f"{op.kind} {_path(history, names, op.inode)} ({op.size} bytes at {op.offset})"
        case Kind.FSYNC | Kind.FDATASYNC:
            kind = history.types.get(op.inode)
            named = op.inode != ROOT_INODE and op.inode in names
            slash = "/" if kind is FileType.DIRECTORY and named else ""
            return f"{op.kind} {_path(history, names, op.inode)}{slash}"
        case Kind.OUTPUT:
            text = history.trace.blobs.read(op.blob, 0, min(op.size, 60)) if op.size else b""
            return f"output to {op.stream}: {show(text.rstrip())}"
        case _:
            return op.call or str(op.kind)


def timeline(state: State) -> tuple[Line, ...]:
    """Every operation of the trace with what became of it in this state."""
    history = state.space.history
    words = operation_words(history)
    return tuple(
        Line(op.index, words[op.index], *_status(state, op), site=op.site)
        for op in history.trace.operations
    )


def _status(state: State, op: Operation) -> tuple[Status, str]:
    history = state.space.history
    if op.index >= state.place:
        return Status.AFTER, ""
    if op.index in history.bit_of:
        durable = state.durable >> history.bit_of[op.index] & 1
        return (Status.DURABLE if durable else Status.LOST), ""
    if op.kind in DATA_KINDS:
        return _data_status(state, op)
    if op.kind in SYNC_KINDS:
        return Status.SYNC, ""
    return (Status.SEEN if op.kind is Kind.OUTPUT else Status.NO_EFFECT), ""


def _data_status(state: State, op: Operation) -> tuple[Status, str]:
    form = dict(state.data).get(op.inode)
    _, pending = state.space.split(state.context, state.durable, op.inode)
    if form is None or op.index not in pending:
        return Status.DURABLE, ""
    status = status_in(form.name, op)
    return status, form.words if status is Status.PARTLY else ""


def status_in(form: str, op: Operation) -> Status:
    """What became of a content operation that was not synced, in a file of this form."""
    kind, _, rest = form.partition("#")
    index = int(rest.partition("@")[0]) if rest else -1
    if kind == "sizes":
        return Status.LOST if op.kind is Kind.WRITE else Status.DURABLE
    if kind == "without":
        return Status.LOST if op.index == index else Status.DURABLE
    if index >= 0 and op.index < index:
        return Status.DURABLE
    if kind == "after":
        return Status.DURABLE if op.index == index else Status.LOST
    if kind == "grown" and op.index == index:
        return Status.DURABLE
    if kind == "lost" or (index >= 0 and op.index > index and kind != "grown"):
        return Status.LOST
    return Status.PARTLY


def describe(state: State, only: Collection[int] | None = None) -> tuple[str, ...]:
    """What was lost, a line an operation; empty when everything before the crash is durable.

    ``only`` these operations, where it is given.
    """
    lines: list[str] = []
    for line in timeline(state):
        if only is not None and line.index not in only:
            continue
        if line.status is Status.LOST:
            lines.append(f"#{line.index} {line.words}   not durable at the crash")
        elif line.status is Status.PARTLY:
            lines.append(f"#{line.index} {line.words}   came back in part: {line.detail}")
    return tuple(lines)
