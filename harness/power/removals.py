"""Equal runs in spite of unequal leftovers: directories that an attempt only clears away.

A resume that finds a half-written directory lists it, unlinks what is in it and removes it. Of n
names that were never synced 2**n sets may be left, and each is another listing: by equal reads
alone each would have to be run. That what lies in such a directory does not matter cannot be seen
from one run (the program saw the names), but from several: two runs whose trees differed in a
single entry of it, and that came to the same, show that this entry is *immaterial*.

A state takes the outcome of a run that was asked, of everything else, the same, when every entry in
which their leftovers differ has been shown to be immaterial, and its leftovers lie strictly between
those seen with that outcome: the fullest of each directory is always run, since a program may adopt
a directory that is complete, and the emptiest once. A directory of which two runs came to different
ends, or that one of them did not clear away, is *material*: nothing is taken so any more, and what
was is judged again. States answered this way are among those of which a sample is run.

Of n entries that is some 2n runs for 2**n states. What it cannot see is a program that looks at a
combination of names which is neither the fullest nor the emptiest, and that no check meets.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from fault_injection.crash_states import VisibleTree
from fault_injection.trace import FileType
from harness.power.equal_reads import Known, Question, answer

T = TypeVar("T")

_Item = tuple[bytes, str, int, bytes]  # path in the directory, type, mode, target of a link
_Contents = frozenset[_Item]
_Entry = tuple[bytes, _Item]  # of which directory
_Left = tuple[bytes, _Contents]
_OF_A_DIRECTORY = frozenset({"exists", "listing", "stat"})
_OF_A_FILE = frozenset({"exists"})


@dataclass(slots=True)
class _Alike(Generic[T]):
    """Runs that removed the same directories and were answered alike in everything else.

    ``runs`` are what was in each directory, with the outcome and its ``essence``; ``most`` and
    ``least`` what is in any and in all of the trees seen, by directory.
    """

    runs: list[tuple[dict[bytes, _Contents], object, T | None]] = field(default_factory=list)
    most: dict[bytes, _Contents] = field(default_factory=dict)
    least: dict[bytes, _Contents] = field(default_factory=dict)

    def saw(self, contents: dict[bytes, _Contents]) -> None:
        for directory, inside in contents.items():
            self.most[directory] = self.most.get(directory, inside) | inside
            self.least[directory] = self.least.get(directory, inside) & inside

    def is_inside(self, contents: dict[bytes, _Contents], run: set[_Left]) -> bool:
        """Whether no directory is the fullest that was seen, unless it was run here, nor the
        emptiest, unless it is among those that were ``run`` anywhere."""
        return all(
            any(of_run[directory] == inside for of_run, _, _ in self.runs)
            or (
                not inside >= self.most[directory]
                and (not inside <= self.least[directory] or (directory, inside) in run)
            )
            for directory, inside in contents.items()
        )


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
                contents = {d: _inside(tree, d) for d in directories}
                if not alike.is_inside(contents, self._run):
                    continue
                for of_run, _, outcome in alike.runs:
                    if outcome is not None and _differing(contents, of_run) <= self._immaterial:
                        alike.saw(contents)
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
        beside = [q for q in questions if not any(_is_within(q[0], d) for d in directories)]
        beside += [(d, frozenset({"exists"})) for d in sorted(directories)]
        for earlier, cleared in self._trees:
            kept = directories - cleared
            if kept and all(answer(earlier, q) == answer(tree, q) for q in beside):
                self.material |= kept
        contents = {d: _inside(tree, d) for d in directories}
        groups = self._known.add(tree, beside, {})
        alike = groups.setdefault(directories, _Alike())
        for of_run, other, _ in alike.runs:
            differing = _differing(contents, of_run)
            if other != essence:
                self.material |= {directory for directory, _ in differing}
            elif len(differing) == 1:
                self._immaterial |= differing
        alike.runs.append((contents, essence, outcome))
        self._run |= set(contents.items())
        alike.saw(contents)


def _differing(one: dict[bytes, _Contents], other: dict[bytes, _Contents]) -> set[_Entry]:
    return {(d, item) for d, inside in one.items() for item in inside ^ other[d]}


def _only_removed(tree: VisibleTree, directory: bytes, questions: Sequence[Question]) -> bool:
    """Whether no more was asked of what is in ``directory`` than its removal needs."""
    for path, levels in questions:
        if not _is_within(path, directory):
            continue
        entry = tree.entries.get(path)
        if entry is None:
            return False  # a name was asked for that the listing did not have
        needed = _OF_A_DIRECTORY if entry.type is FileType.DIRECTORY else _OF_A_FILE
        if not levels <= needed:
            return False
    return True


def _inside(tree: VisibleTree, directory: bytes) -> _Contents:
    prefix = directory + b"/"
    return frozenset(
        (path[len(prefix) :], str(entry.type), entry.mode, entry.target)
        for path, entry in tree.entries.items()
        if path.startswith(prefix)
    )


def _outermost(directories: frozenset[bytes]) -> frozenset[bytes]:
    return frozenset(
        d for d in directories if not any(d != o and _is_within(d, o) for o in directories)
    )


def _is_within(path: bytes, directory: bytes) -> bool:
    return path == directory or path.startswith(directory + b"/")
