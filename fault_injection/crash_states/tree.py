"""A visible tree: what a program finds under its root, as data.

A tree maps paths (bytes, relative, no leading slash; the root itself is not an entry) to entries.
Names of one inode carry the same link group, so that hard links stay hard links. The digest is the
sum, modulo 2**256, of one sha256 for each entry over path, type, mode, content and links: changing
one file changes one summand, which is what makes comparing tens of thousands of states cheap. It
is meant against accident, not against an adversary who chooses entries to collide.

Not covered: owners, extended attributes, times but for the order of the last writes.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from fault_injection.crash_states.content import Content, ContentStore
from fault_injection.trace import FileType

MODULUS_MASK = (1 << 256) - 1


@dataclass(frozen=True, slots=True)
class Entry:
    """One name. ``digest`` and ``content`` for files, ``target`` for symlinks.

    ``link`` is the inode where it has further names in this tree, else -1. ``written`` orders the
    files by when they were last written: 1 and the index of the operation, 0 before all of them.
    """

    type: FileType
    mode: int
    content: Content | None = None
    digest: str = ""
    target: bytes = b""
    link: int = -1
    written: int = field(default=0, compare=False)


def term(path: bytes, entry: Entry, first_name: bytes = b"") -> int:
    """The entry's summand. ``first_name`` is the lowest path of its link group, if it has one."""
    parts = (
        path,
        str(entry.type).encode(),
        b"%o" % entry.mode,
        entry.digest.encode(),
        entry.target,
        first_name,
    )
    head = b"".join(b"%d:" % len(part) + part for part in parts)
    return int.from_bytes(hashlib.sha256(head).digest(), "big")


def tree_digest(entries: Mapping[bytes, Entry]) -> str:
    """The digest of a whole tree, computed from nothing."""
    first: dict[int, bytes] = {}
    for path in sorted(entries):
        if entries[path].link >= 0:
            first.setdefault(entries[path].link, path)
    total = sum(term(p, e, first.get(e.link, b"")) for p, e in entries.items())
    return f"{total & MODULUS_MASK:064x}"


@dataclass(frozen=True, slots=True)
class VisibleTree:
    """Entries by path, their digest, and the store that their contents are read from."""

    entries: Mapping[bytes, Entry]
    digest: str
    store: ContentStore = field(compare=False, repr=False)

    def read(self, path: bytes) -> bytes:
        """The bytes of the file at ``path``; KeyError when there is no file there."""
        entry = self.entries[path]
        if entry.content is None:
            raise KeyError(f"{path!r} is a {entry.type}, not a file")
        return self.store.read(entry.content)

    def listing(self, directory: bytes = b"") -> tuple[tuple[bytes, FileType], ...]:
        """Names and types in ``directory`` (``b""``: the root), sorted by name."""
        prefix = directory + b"/" if directory else b""
        return tuple(
            sorted(
                (path[len(prefix) :], entry.type)
                for path, entry in self.entries.items()
                if path.startswith(prefix) and b"/" not in path[len(prefix) :]
            )
        )


def make_tree(entries: Mapping[bytes, Entry], store: ContentStore) -> VisibleTree:
    """A tree of ``entries``, with its digest."""
    return VisibleTree(entries=dict(entries), digest=tree_digest(entries), store=store)


def show(path: bytes) -> str:
    """A path for people: printable, and never ambiguous."""
    text = path.decode("utf-8", "backslashreplace")
    return text if text.isprintable() else text.encode("unicode_escape").decode("ascii")


def differences(left: VisibleTree, right: VisibleTree) -> tuple[str, ...]:
    """What ``right`` has otherwise than ``left``, a line a path, sorted; empty when equal."""
    lines: list[str] = []
    for path in sorted({*left.entries, *right.entries}):
        a, b = left.entries.get(path), right.entries.get(path)
        if _shape(a) != _shape(b):
            lines.append(f"{show(path)}: {_what(a)} against {_what(b)}")
    if not lines and left.digest != right.digest:
        lines.append("the same entries, but other hard links between them")
    return tuple(lines)


def _shape(entry: Entry | None) -> tuple[object, ...]:
    return () if entry is None else (entry.type, entry.digest, entry.target, entry.mode)


def _what(entry: Entry | None) -> str:
    if entry is None:
        return "nothing"
    if entry.content is not None:
        return f"file of {entry.content.size} bytes ({entry.digest[:12]}, mode {entry.mode:o})"
    if entry.type is FileType.SYMLINK:
        return f"symlink to {show(entry.target)}"
    return f"{entry.type} (mode {entry.mode:o})"


def total_size_bytes(entries: Iterable[Entry]) -> int:
    """Bytes of content under all names together."""
    return sum(entry.content.size for entry in entries if entry.content is not None)
