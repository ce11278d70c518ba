"""A trace as the lints look at it: names, contents and what was durable, before each operation."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from fault_injection.crash_states.describe import unnamed
from fault_injection.crash_states.history import History, prepare, slots_set
from fault_injection.crash_states.models import POSIX, Context, contexts
from fault_injection.crash_states.tree import show
from fault_injection.trace import ROOT_INODE, FileType, Operation, Trace

MANIFEST_BYTES = 64 << 10  # a manifest is at most this long
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
class Look:
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


def looked_at(trace: Trace, acknowledged: Collection[int]) -> Look:
    """Prepare a trace for the lints; ``acknowledged`` as for :func:`harness.lints.lint`."""
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
    return Look(history, tuple(contexts(history, POSIX, outputs=frozenset())), moves, ends)


def files_below(look: Look, inode: int, index: int) -> Iterator[int]:
    """The inode itself, or the files below a directory, as they were before ``index``."""
    todo = [inode]
    while todo:
        here = todo.pop()
        if look.history.types.get(here) is FileType.DIRECTORY:
            todo.extend(inode for _, inode in sorted(look.entries(here, index).items()))
        else:
            yield here


def names_in(text: bytes) -> set[bytes]:
    """What may be a file name in a short text; nothing in bytes that are no text."""
    return set(_NAME_IN_TEXT.findall(text)) if b"\0" not in text else set()
