"""Equal reads, equal run: a state that answers all questions alike must run alike.

A subject is deterministic (its baseline proved it), so what a resumed attempt does is decided by
what it got to see of the tree. The supervisor reports the questions that an attempt asked (which
paths it opened, stat-ed, listed); a tree answers them. Attempts that were run for real are kept in
a trie over (question, answer) pairs; a state is looked up by answering one question after another.

Questions are asked of the tree as it was before the attempt. What the attempt itself made later is
decided by what it had seen until then.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fault_injection.crash_states import Entry, VisibleTree
from fault_injection.reads import EMPTIED, REPLACED
from fault_injection.trace import FileType

T = TypeVar("T")

Question = tuple[bytes, frozenset[str]]
Answer = tuple[object, ...]


def questions_of(reads: Mapping[bytes, frozenset[str]]) -> tuple[Question, ...]:
    """An attempt's reads as questions, in the order in which the paths were first asked about."""
    return tuple((path, frozenset(levels)) for path, levels in reads.items())


def answer(tree: VisibleTree, question: Question) -> Answer:
    """What ``tree`` answers: nothing more than the question asks for."""
    path, levels = question
    entry = tree.entries.get(path)
    overwritten = _overwritten(tree, path, entry, levels)
    if overwritten is not None:
        return overwritten
    is_root = path in (b"", b".")
    if entry is None and not is_root:
        return ("absent", _why_absent(tree, path))
    if entry is None or entry.type is FileType.DIRECTORY:
        mode = 0 if entry is None else entry.mode
        if "listing" in levels:
            return ("directory", mode, tree.listing(b"" if is_root else path))
        return ("directory", mode)
    found: list[object] = [str(entry.type), entry.mode]
    if entry.type is FileType.SYMLINK:
        found.append(entry.target)
    elif "content" in levels:
        found += [entry.digest, _size(tree, path)]
    elif "stat" in levels:
        found.append(_size(tree, path))
    return tuple(found)


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
