"""Equal reads, equal run: a state that answers all questions alike must run alike.

A subject is deterministic (its baseline proved it), so what a resumed attempt does is decided by
what it got to see of the tree. The supervisor reports the questions that an attempt asked (which
paths it opened, stat-ed, listed); a tree answers them. Attempts that were run for real are kept in
a trie over (question, answer) pairs; a state is looked up by answering one question after another.

Questions are asked of the tree as it was before the attempt. What the attempt itself made later is
decided by what it had seen until then.

What an attempt never looked at may still lie in the tree that it leaves, under its old name or, if
it or a directory above it was moved, under another. For that there are two questions more
(:func:`untouched`): ``subtree``, all that is in a directory, and ``final``, all that matches a
glob; but for the names that were asked about one by one (``-<path>``) or lie in a directory
(``-<path>/``).
"""

import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fault_injection.crash_states import Entry, VisibleTree
from fault_injection.overlay import Overlay
from fault_injection.reads import EMPTIED, REPLACED
from fault_injection.trace import FileType

T = TypeVar("T")

SUBTREE, FINAL = "subtree", "final"
_OF_INODE = frozenset({"stat", "content"})

Question = tuple[bytes, frozenset[str]]
Answer = tuple[object, ...]


def questions_of(reads: Mapping[bytes, frozenset[str]]) -> tuple[Question, ...]:
    """An attempt's reads as questions, in the order in which the paths were first asked about."""
    return tuple((path, frozenset(levels)) for path, levels in reads.items())


def answer(tree: VisibleTree, question: Question) -> Answer:
    """What ``tree`` answers: nothing more than the question asks for."""
    path, levels = question
    if FINAL in levels:
        return _matching(tree, path, but=levels)
    entry = tree.entries.get(path)
    overwritten = _overwritten(tree, path, entry, levels)
    if overwritten is not None:
        return overwritten
    is_root = path in (b"", b".")
    if entry is None and not is_root:
        return ("absent", _why_absent(tree, path))
    if entry is None or entry.type is FileType.DIRECTORY:
        mode = 0 if entry is None else entry.mode
        directory = b"" if is_root else path
        if SUBTREE in levels:
            return ("directory", mode, _below(tree, directory, but=levels))
        if "listing" in levels:
            return ("directory", mode, tree.listing(directory))
        if "stat" in levels:  # which counts the directories in it
            kinds = (kind for _, kind in tree.listing(directory))
            return ("directory", mode, sum(kind is FileType.DIRECTORY for kind in kinds))
        return ("directory", mode)
    found: list[object] = [str(entry.type), entry.mode]
    if entry.type is FileType.SYMLINK:
        found.append(entry.target)
    elif "content" in levels:
        found += [entry.digest, _size(tree, path)]
    elif "stat" in levels:
        found.append(_size(tree, path))
    if "stat" in levels:
        found.append(entry.written)  # which of two files is newer
    if entry.link >= 0 and levels & _OF_INODE:  # it counts the names, and tells which are the same
        found.append(tuple(p for p, e in tree.entries.items() if e.link == entry.link))
    return tuple(found)


def untouched(
    tree: VisibleTree,
    questions: Sequence[Question],
    *,
    overlay: Overlay,
    names: Iterable[str],
    globs: Iterable[str],
) -> list[Question]:
    """The questions for what an attempt on ``tree`` may have left as it was.

    ``overlay`` says where what is there came from. ``names`` are paths whose bytes count in the
    tree that it left, and so do those of all files that match ``globs`` (``*`` takes slashes too).
    """
    asked = dict(questions)
    more: dict[bytes, str] = {}
    for name in names:
        start = overlay.origin(name.encode("utf-8", "surrogateescape"))
        if start is not None and "content" not in asked.get(start, ()):
            more[start] = "content"
    wild = [glob for glob in globs if is_wild(glob)]
    for start in overlay.moved().values() if wild else ():
        entry = tree.entries.get(start)
        if entry is not None and entry.type is FileType.DIRECTORY:
            more[start] = SUBTREE
    one_by_one = frozenset(map(_but, asked))
    found = [
        (path, frozenset({word}) | (one_by_one if word == SUBTREE else frozenset()))
        for path, word in sorted(more.items())
    ]
    return found + [(glob.encode(), frozenset({FINAL}) | one_by_one) for glob in wild]


def is_wild(glob: str) -> bool:
    """Whether a glob names more than one path."""
    return any(sign in glob for sign in "*?[")


def matches(path: bytes, glob: str) -> bool:
    """Whether a glob may match a path: too much rather than too little."""
    return fnmatch.fnmatchcase(path.decode("utf-8", "surrogateescape"), glob.replace("**/", "*"))


def _matching(tree: VisibleTree, glob: bytes, *, but: frozenset[str]) -> Answer:
    pattern = glob.decode()
    inside = tuple(_path(word) for word in but if word.startswith("-") and word.endswith("/"))
    return tuple(
        (path, str(entry.type), entry.digest)
        for path, entry in tree.entries.items()
        if matches(path, pattern) and not path.startswith(inside) and _but(path) not in but
    )


def without(question: Question, directories: Iterable[bytes]) -> Question | None:
    """A question as far as it is not of what is in ``directories``; None when nothing is left.

    Trees that differ only there answer it alike.
    """
    path, levels = question
    below = tuple(directory + b"/" for directory in directories)
    beside = frozenset(w for w in levels if not (w[0] == "-" and _path(w).startswith(below)))
    if FINAL in levels:
        return path, beside | {_but(prefix) for prefix in below}
    return None if (path + b"/").startswith(below) else (path, beside)


def _but(path: bytes) -> str:
    return "-" + path.decode("utf-8", "surrogateescape")


def _path(word: str) -> bytes:
    return word[1:].encode("utf-8", "surrogateescape")


def _below(tree: VisibleTree, directory: bytes, *, but: frozenset[str]) -> Answer:
    prefix = directory + b"/" if directory else b""
    return tuple(
        (path, str(entry.type), entry.mode, entry.digest, entry.target, entry.link)
        for path, entry in tree.entries.items()
        if path.startswith(prefix) and _but(path) not in but
    )


def _overwritten(
    tree: VisibleTree, path: bytes, entry: Entry | None, levels: frozenset[str]
) -> Answer | None:
    """The answer where an attempt did no more than put a file in the place of one or of nothing.

    None: it asked more, or there is something else, or a file with further names, which would
    show what became of it.
    """
    if len(levels) != 1:
        return None
    [word] = levels
    if word != REPLACED and not word.startswith(EMPTIED):
        return None
    if entry is None:
        if _why_absent(tree, path) != "parent":
            return None
        mode = 0 if word == REPLACED else int(word.removeprefix(EMPTIED), 8)
    elif entry.type is FileType.FILE and entry.link < 0:
        mode = 0 if word == REPLACED else entry.mode  # an emptied file keeps its mode
    else:
        return None
    return ("overwritten", mode)


def _size(tree: VisibleTree, path: bytes) -> int:
    content = tree.entries[path].content
    return 0 if content is None else content.size


def _why_absent(tree: VisibleTree, path: bytes) -> str:
    """How far the path is there: its parent, nothing, or blocked by what is no directory."""
    parent = path.rpartition(b"/")[0]
    if not parent:
        return "parent"
    entry = tree.entries.get(parent)
    if entry is None:
        return "nothing" if _why_absent(tree, parent) != "blocked" else "blocked"
    return "parent" if entry.type is FileType.DIRECTORY else "blocked"


@dataclass(slots=True)
class _Node(Generic[T]):
    """What is known after some answers: further questions, or the attempt that asked no more."""

    branches: dict[Question, "dict[Answer, _Node[T]]"] = field(default_factory=dict)
    outcome: T | None = None


class Known(Generic[T]):
    """Outcomes of attempts that were run, found again by the answers that a tree gives."""

    def __init__(self) -> None:
        self._root: _Node[T] = _Node()

    def find(self, tree: VisibleTree) -> T | None:
        """The outcome of an attempt all of whose questions ``tree`` answers alike, or None."""
        return next(self.all(tree), None)

    def all(self, tree: VisibleTree) -> Iterator[T]:
        """Every such outcome."""
        waiting = [self._root]
        while waiting:
            node = waiting.pop()
            if node.outcome is not None:
                yield node.outcome
            for question, branches in node.branches.items():
                following = branches.get(answer(tree, question))
                if following is not None:
                    waiting.append(following)

    def add(self, tree: VisibleTree, questions: Sequence[Question], outcome: T) -> T:
        """Keep the outcome of an attempt that ran on ``tree`` and asked ``questions``.

        Returns the one that was kept before for the same answers, where there is one.
        """
        node = self._root
        for question in questions:
            branches = node.branches.setdefault(question, {})
            node = branches.setdefault(answer(tree, question), _Node())
        if node.outcome is None:
            node.outcome = outcome
        return node.outcome
