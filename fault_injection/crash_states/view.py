"""The names that are visible when a given set of namespace operations is durable.

A view is what a set looks like from the root: directories that cannot be reached hide what is in
them, so that many sets give one view. Files whose content may differ between states are *hot*: the
view lists them apart, and the digest of a state is the view's constant part plus a summand for
each hot file. Parts of views are cached by directory, version and path; neighbouring crash places
share nearly all of them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fault_injection.crash_states.history import History
from fault_injection.crash_states.tree import Entry, term
from fault_injection.trace import ROOT_INODE, FileType

_MOST_VIEWS = 50_000  # views kept for sets seen before


@dataclass(frozen=True, slots=True)
class View:
    """``constant`` is the summand of all that is not hot, ``hot`` the (path, inode) pairs of hot
    files in path order, ``parts`` what the entries are made from, ``reach`` the bits that set a
    slot in a reachable directory."""

    constant: int
    hot: tuple[tuple[bytes, int], ...]
    parts: "tuple[Part, ...]"
    reach: int


@dataclass(frozen=True, slots=True)
class Part:
    """One directory at one path in one version (a still directory brings its subtree along)."""

    constant: int
    fixed: dict[bytes, Entry]
    hot: tuple[tuple[bytes, int], ...]
    children: tuple[tuple[bytes, int], ...]


class Views:
    """Views of one history. Its caches are bounded; everything else is fixed."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.hot = frozenset(history.data) | history.linked
        self.linked_any = bool(history.linked)
        self._parts: dict[tuple[int, bytes, int], Part] = {}
        self._by_set: dict[int, View] = {}
        self._by_shape: dict[tuple[int, tuple[tuple[bytes, int], ...], int], View] = {}
        self._still: dict[int, bool] = {}
        self._entries: dict[tuple[int, tuple[int, ...], int], Entry] = {}

    def of(self, durable: int) -> View:
        """The view of a set; equal views are the same object."""
        found = self._by_set.get(durable)
        if found is None:
            if len(self._by_set) >= _MOST_VIEWS:
                self._by_set.clear()
            found = self._by_set[durable] = self._build(durable)
        return found

    def _build(self, durable: int) -> View:
        touch = self.history.touch
        parts: list[Part] = []
        hot: list[tuple[bytes, int]] = []
        constant = reach = 0
        stack = [(b"", ROOT_INODE)]
        while stack:
            path, directory = stack.pop()
            touching = touch.get(directory, 0)
            reach |= touching
            key = (directory, path, durable & touching)
            part = self._parts.get(key)
            if part is None:
                part = self._parts[key] = self._part(directory, path, durable)
            parts.append(part)
            constant += part.constant
            hot += part.hot
            stack += part.children
        hot.sort()
        shape = (constant, tuple(hot), durable & reach)
        view = self._by_shape.get(shape)
        if view is None:
            if len(self._by_shape) >= _MOST_VIEWS:
                self._by_shape.clear()
            view = self._by_shape[shape] = View(constant, shape[1], tuple(parts), reach)
        return view

    def _part(self, directory: int, path: bytes, durable: int) -> Part:
        history = self.history
        fixed: dict[bytes, Entry] = {}
        hot: list[tuple[bytes, int]] = []
        children: list[tuple[bytes, int]] = []
        prefix = path + b"/" if path else b""
        constant = 0
        for name, inode in sorted(history.entries(directory, durable).items()):
            here = prefix + name
            if inode in self.hot:
                hot.append((here, inode))
                continue
            entry = self.entry(inode, (), -1)
            fixed[here] = entry
            constant += term(here, entry)
            if entry.type is not FileType.DIRECTORY:
                continue
            if self._is_still(inode):
                below = self._part(inode, here, 0)
                fixed.update(below.fixed)
                constant += below.constant
            else:
                children.append((here, inode))
        return Part(constant, fixed, tuple(hot), tuple(children))

    def _is_still(self, directory: int) -> bool:
        """Whether nothing at or below a directory ever changes in this trace."""
        known = self._still.get(directory)
        if known is None:
            node = self.history.trace.start.get(directory)
            known = node is not None and not self.history.touch.get(directory)
            if known and node is not None:
                for inode in node.entries.values():
                    below = self.history.types.get(inode) is FileType.DIRECTORY
                    if inode in self.hot or (below and not self._is_still(inode)):
                        known = False
                        break
            self._still[directory] = known
        return known

    def entry(self, inode: int, indices: tuple[int, ...], link: int) -> Entry:
        """The entry of an inode whose content is that after ``indices``."""
        key = (inode, indices, link)
        found = self._entries.get(key)
        if found is None:
            found = self._entries[key] = self._entry(*key)
        return found

    def _entry(self, inode: int, indices: tuple[int, ...], link: int) -> Entry:
        history = self.history
        kind = history.types.get(inode, FileType.OTHER)
        mode = history.modes.get(inode, 0) & 0o7777
        if kind is FileType.SYMLINK:
            return Entry(kind, 0o777, target=history.targets.get(inode, b""), link=link)
        if kind is not FileType.FILE:
            return Entry(kind, mode, link=link)
        content = history.content(inode, indices)
        digest = history.store.digest(content)
        return Entry(kind, mode, content, digest, link=link, written=written(indices))


def written(indices: Iterable[int]) -> int:
    """:attr:`Entry.written` of a file after these operations on its content."""
    return 1 + max(indices, default=-1)


def groups(hot: tuple[tuple[bytes, int], ...]) -> Iterator[tuple[int, tuple[bytes, ...]]]:
    """Hot inodes with all their visible paths, in the order of the first path."""
    paths: dict[int, list[bytes]] = {}
    for path, inode in hot:
        paths.setdefault(inode, []).append(path)
    for inode, names in paths.items():
        yield inode, tuple(names)
