"""Findings of the states of one crash place, shared by all that differ in nothing that matters.

At one place a model allows thousands of states whose names or bytes differ only where no attempt
has ever looked. What was asked is known from the attempts that were run (``equal_reads``); so each
part of a view (a directory in one version) is reduced to the names in it that an answer can depend
on, once, and a state's *sketch* is that of its parts. States of one place with the same sketch, in
which every file that the findings depend on has the same form, have the same findings; that they
have is known without laying out their trees.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from fault_injection.crash_states import State
from fault_injection.crash_states.view import Part
from fault_injection.reads import EMPTIED, REPLACED
from fault_injection.trace import FileType
from harness.evidence import Finding
from harness.power.equal_reads import FINAL, SUBTREE, Question

_Form = tuple[int, str]
_Sketch = tuple[int, ...]
_Known = tuple[list[Finding], frozenset[bytes]]
_Kept = tuple[frozenset[int], frozenset[_Form], _Known]


@dataclass(slots=True)
class Asked:
    """All that the attempts have asked so far, by path, with the directories above."""

    levels: dict[bytes, set[str]] = field(default_factory=dict)
    subtrees: tuple[bytes, ...] = ()

    def is_below(self, path: bytes) -> bool:
        """Whether all that is there was asked for."""
        return path.startswith(self.subtrees)

    def add(self, questions: Sequence[Question]) -> bool:
        """Take questions in; whether any of them is new."""
        new = False
        for path, levels in questions:
            if FINAL in levels:
                continue  # of what matches a glob: that is evidence
            if SUBTREE in levels and path + b"/" not in self.subtrees:
                self.subtrees += (path + b"/",)
                new = True
            known = self.levels.setdefault(path, set())
            new |= not levels <= known
            known |= levels
            while path:
                path = path.rpartition(b"/")[0]
                self.levels.setdefault(path, set())
        return new


@dataclass(slots=True)
class Verdicts:
    """See the module. ``is_evidence`` tells of the paths that the oracle looks at by itself: of a
    path, whether its presence matters, and whether its bytes do."""

    is_evidence: Callable[[bytes], tuple[bool, bool]]
    asked: Asked = field(default_factory=Asked)
    _at: tuple[str, int] = ("", -1)
    _by_sketch: dict[_Sketch, list[_Kept]] = field(default_factory=dict)
    _sketches: dict[int, tuple[Part, int]] = field(default_factory=dict)
    _numbers: dict[frozenset[object], int] = field(default_factory=dict)

    def find(self, state: State) -> _Known | None:
        """The findings of a state and what they presume (:meth:`add`), where they are known."""
        if (state.space.model.name, state.place) != self._at:
            return None
        for inodes, forms, known in self._by_sketch.get(self._sketch(state), ()):
            if _forms(state, inodes) == forms:
                return known
        return None

    def ask(self, questions: Sequence[Question]) -> None:
        """An attempt asked these."""
        if self.asked.add(questions):
            self._by_sketch.clear()
            self._sketches.clear()

    def forget(self) -> None:
        """What is known of verdicts is not to be relied on."""
        self._by_sketch.clear()

    def add(
        self,
        state: State,
        findings: list[Finding],
        *,
        looked_into: frozenset[bytes],
        presumed: frozenset[bytes],
    ) -> None:
        """Keep a state's findings. The attempt ``looked_into`` the bytes or the length of those
        paths; ``presumed`` are directories whose content is taken not to matter (``removals``)."""
        at = (state.space.model.name, state.place)
        if at != self._at:
            self._at = at
            self._by_sketch.clear()
        hot = state.space.views.of(state.durable).hot
        inodes = frozenset(
            inode
            for path, inode in hot
            if path in looked_into or self.is_evidence(path)[1] or self.asked.is_below(path)
        )
        known = self._by_sketch.setdefault(self._sketch(state), [])
        known.append((inodes, _forms(state, inodes), (findings, presumed)))

    def _sketch(self, state: State) -> _Sketch:
        sketches = self._sketches
        found = []
        for part in state.space.views.of(state.durable).parts:
            known = sketches.get(id(part))
            if known is None:
                # The part is kept with its sketch, so that its id stays its own.
                known = sketches[id(part)] = (part, self._sketch_of(part, state))
            found.append(known[1])
        return tuple(found)

    def _sketch_of(self, part: Part, state: State) -> int:
        history = state.space.history
        names: set[object] = set()
        for path, entry in part.fixed.items():
            self._note(names, path, entry.type, entry.mode, entry.link, id(entry))
        for path, inode in part.hot:
            kind = history.types.get(inode, FileType.OTHER)
            mode = history.modes.get(inode, 0) & 0o7777
            link = inode if inode in history.linked else -1
            self._note(names, path, kind, mode, link, inode)
        return self._numbers.setdefault(frozenset(names), len(self._numbers))

    def _note(
        self, names: set[object], path: bytes, kind: FileType, mode: int, link: int, what: int
    ) -> None:
        """Take down of a name what an answer can depend on."""
        levels = self.asked.levels.get(path)
        plain = kind is FileType.FILE and link < 0
        if self.is_evidence(path)[0] or self.asked.is_below(path) or link >= 0:
            names.add((path, what))  # a further name shows in what is asked of the others
        elif levels is not None:
            if not (plain and _overwritten(levels)):
                names.add((path, what))
            elif not _makes(levels, mode):
                names.add((path, mode))
        if "listing" in self.asked.levels.get(path.rpartition(b"/")[0], ()):
            names.add((path, str(kind)))


def _forms(state: State, inodes: frozenset[int]) -> frozenset[_Form]:
    return frozenset((inode, form.name) for inode, form in state.data if inode in inodes)


def _overwritten(levels: set[str]) -> bool:
    """Whether a path was only ever made anew, so that a file there is as good as nothing."""
    return bool(levels) and all(level == REPLACED or level.startswith(EMPTIED) for level in levels)


def _makes(levels: set[str], mode: int) -> bool:
    """Whether a file of this mode is what would be made in its place."""
    return all(level == REPLACED or int(level.removeprefix(EMPTIED), 8) == mode for level in levels)
