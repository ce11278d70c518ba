"""Equal runs in spite of unequal leftovers: directories that an attempt only clears away.

A resume that finds a half-written directory lists it, unlinks what is in it and removes it. Of n
names that were never synced 2**n sets may be left, and each is another listing: by equal reads
alone each would have to be run. That what lies in such a directory does not matter cannot be seen
from one run (the program saw the names), but from several: two runs whose trees differed in a
single entry of it, and that came to the same, show that this entry is *immaterial*.

A state takes the outcome of a run that was asked, of everything else, the same, when every entry in
which their leftovers differ has been shown to be immaterial, and its leftovers lie strictly between
those seen with that outcome: the fullest are always run, since a program may adopt a directory that
is complete, and all but one and the emptiest once. A directory of which two runs came to different
ends, or that one of them did not clear away, is *material*: nothing is taken so any more, and what
was is judged again. States answered this way are among those of which a sample is run.

Of n entries that is some n**2 / 2 runs for 2**n states. What it cannot see is a program that looks
at another combination of names, and that no check meets: so it is for programs whose protocol is
known to remove leftovers as it finds them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fault_injection.crash_states import VisibleTree
from fault_injection.trace import FileType
from harness.power.equal_reads import FINAL, Known, Question, answer, without

T = TypeVar("T")

_Item = tuple[bytes, str, int, bytes]  # path in the directory, type, mode, target of a link
_Entry = tuple[bytes, _Item]  # of which directory
_Left = frozenset[_Entry]
_OF_A_DIRECTORY = frozenset({"exists", "listing", "stat"})
_OF_A_FILE = frozenset({"exists"})


@dataclass(slots=True)
class _Alike(Generic[T]):
    """Runs that removed the same directories and were answered alike in everything else.

    ``runs`` are what was in the directories, with the outcome and its ``essence``; ``most`` and
    ``least`` what is in any and in all of the trees seen.
    """

    runs: list[tuple[_Left, object, T | None]] = field(default_factory=list)
    most: _Left = frozenset()
    least: _Left | None = None

    def saw(self, left: _Left) -> None:
        self.most |= left
        self.least = left if self.least is None else self.least & left

    def is_inside(self, left: _Left, run: set[_Left]) -> bool:
        """Whether these are not the fullest that were seen, unless they were run here, nor the
        emptiest or all but one, unless they are among those that were ``run`` anywhere."""
        if any(of_run == left for of_run, _, _ in self.runs):
            return True
        if left >= self.most or self.least is None:
            return False
        telling = left <= self.least or len(self.most - left) == 1
        return not telling or left in run


_Groups = dict[frozenset[bytes], _Alike[T]]


class Removals(Generic[T]):
    """Outcomes of runs that cleared directories away, for states with others in their place."""

    def __init__(self) -> None:
        self._known: Known[_Groups[T]] = Known()
        self._immaterial: set[_Entry] = set()
        self.material: set[bytes] = set()  # directories of which something has mattered
        self._run: set[_Left] = set()
        self._trees: list[tuple[VisibleTree, frozenset[bytes]]] = []

    def find(self, tree: VisibleTree) -> tuple[T, frozenset[bytes]] | None:
        """The outcome that ``tree`` must come to, as far as runs have shown, and the directories
        whose content is taken not to matter; None: not known."""
        for groups in self._known.all(tree):
            for directories, alike in groups.items():
                if directories & self.material:
                    continue
                left = _left_in(tree, directories)
                if not alike.is_inside(left, self._run):
                    continue
                for of_run, _, outcome in alike.runs:
                    if outcome is not None and left ^ of_run <= self._immaterial:
                        alike.saw(left)
                        return outcome, directories
        return None

    def add(
        self,
        tree: VisibleTree,
        questions: Sequence[Question],
        removed: frozenset[bytes],
        *,
        essence: object,
        outcome: T | None,
    ) -> None:
        """Keep a run on ``tree``; ``essence`` is all that two equal runs share.

        ``outcome`` None: one that failed. No state takes that, but it shows what is material.
        """
        directories = frozenset(d for d in _outermost(removed) if _only_removed(tree, d, questions))
        # What others only cleared away, being asked the same, this run did something else with.
        for groups in self._known.all(tree):
            for others in groups:
                self.material |= others - directories
        self._trees.append((tree, directories))
        if not directories:
            return
        beside = [q for q in (without(q, directories) for q in questions) if q is not None]
        beside += [(d, frozenset({"exists"})) for d in sorted(directories)]
        for earlier, cleared in self._trees:
            kept = directories - cleared
            if kept and all(answer(earlier, q) == answer(tree, q) for q in beside):
                self.material |= kept
        left = _left_in(tree, directories)
        groups = self._known.add(tree, beside, {})
        alike = groups.setdefault(directories, _Alike())
        for of_run, other, _ in alike.runs:
            differing = left ^ of_run
            if other != essence:
                self.material |= {directory for directory, _ in differing}
            elif len(differing) == 1:
                self._immaterial |= differing
        alike.runs.append((left, essence, outcome))
        alike.saw(left)
        self._run.add(left)


def _only_removed(tree: VisibleTree, directory: bytes, questions: Sequence[Question]) -> bool:
    """Whether no more was asked of what is in ``directory`` than its removal needs."""
    for path, levels in questions:
        if FINAL in levels or not _is_within(path, directory):
            continue
        entry = tree.entries.get(path)
        if entry is None:
            return False  # a name was asked for that the listing did not have
        needed = _OF_A_DIRECTORY if entry.type is FileType.DIRECTORY else _OF_A_FILE
        if not levels <= needed:
            return False
    return True


def _left_in(tree: VisibleTree, directories: frozenset[bytes]) -> _Left:
    return frozenset(
        (directory, (path[len(directory) + 1 :], str(entry.type), entry.mode, entry.target))
        for directory in directories
        for path, entry in tree.entries.items()
        if path.startswith(directory + b"/")
    )


def _outermost(directories: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(
        d for d in directories if not any(d != o and _is_within(d, o) for o in directories)
    )


def _is_within(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory + b"/")
