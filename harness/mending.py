"""Which fsyncs mend a program, and which of its fsyncs nobody needs: searched on its trace. Pure.

Fsyncs are spoken of as lines of the program, not as calls: what is added is added after every
operation of its kind that the same source line makes, and what is taken away is taken away
everywhere (of one file, where a line syncs several: the same words, but for numbers and for names
that are made at random). So the answer is the same for three saves as for three hundred. Where no
source line is known the words stand for it.

*Mending*: at the first crash place where a state fails, ``crash_states.mend`` finds the smallest
set of fsyncs for the run up to there; the whole run is explored with these, and so on until no
state fails. Then each that turns out not to be needed is dropped, and all smaller sets are tried
where they are few. *Sparing*: each line's syncs are taken away and the run explored again.
"""

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from fault_injection.crash_states import (
    DEFAULT_BOUND,
    PlaceCount,
    State,
    enumerate_states,
    mend,
    with_fsync,
    without,
)
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.history import SYNC_KINDS, nameless_since
from fault_injection.crash_states.space import space_of
from fault_injection.pysite import callers
from fault_injection.trace import Kind, Operation, Trace
from harness.power.reasons import crash_words, few, named, paths_after, steady

MAX_ROUNDS = 24
MAX_SMALLER = 120
_OF_NAMES = (Kind.RENAME, Kind.CREATE, Kind.LINK, Kind.EXCHANGE)
_VARIES = re.compile(r"\d+")
_ROLES = ("inode", "new_parent", "parent", "replaced")


@dataclass(frozen=True, slots=True)
class Search:
    """A recorded run under a model, and who judges its states (remembering by identity).

    ``names`` are those that are the same in every run (None: all are). ``one_file``: a line that
    does the same to several files is a line for each.
    """

    trace: Trace
    model: str
    outputs: frozenset[int]
    is_good: Callable[[State], bool]
    seed: int = 0
    bound: int = DEFAULT_BOUND
    names: frozenset[bytes] | None = None
    one_file: bool = False

    def states(
        self, trace: Trace, outputs: frozenset[int], counts: list[PlaceCount] | None = None
    ) -> Iterator[State]:
        """The crash states of the run, or of one like it with syncs more or less."""
        return enumerate_states(
            trace,
            model=self.model,
            seed=self.seed,
            bound=self.bound,
            outputs=outputs,
            counts=counts,
        )

    def first_bad(self, trace: Trace, outputs: frozenset[int]) -> State | None:
        """The first failing state, at the earliest place."""
        return next((s for s in self.states(trace, outputs) if not self.is_good(s)), None)


@dataclass(frozen=True, slots=True)
class Sync:
    """An fsync of the program, or one to add: of what, after or as which line, how often.

    ``files`` are how many it is of in one save.
    """

    words: str
    site: str
    times: int
    files: int = 1


@dataclass(frozen=True, slots=True)
class Mending:
    """``add`` makes every explored state good when ``complete``.

    ``smallest``: no smaller set of lines does. ``beyond`` says, when nothing was found, what no
    fsync can mend.
    """

    add: tuple[Sync, ...] = ()
    complete: bool = False
    smallest: bool = False
    beyond: str = ""

    def times(self) -> int:
        """How many fsyncs are added in the run."""
        return sum(sync.times for sync in self.add)


@dataclass(frozen=True, slots=True)
class Sparing:
    """``spare`` are the syncs without which, each by itself, no explored state fails.

    ``needed`` are the others; ``all_spare`` says that no state fails without all of ``spare``.
    """

    spare: tuple[Sync, ...]
    needed: tuple[Sync, ...]
    all_spare: bool


# What it does, the line with its callers, which inode of the operation. A helper for syncs is one
# line, but each of its calls is there for a reason of its own.
_Line = tuple[str, str, str]


class _Lines:
    """The lines of a run's operations; ``words`` may be those of its beginning, mended."""

    def __init__(self, search: Search, words: Sequence[str] | None = None) -> None:
        self.words = words or _words(search.trace, search.model, search.outputs)
        self._search = search
        self._files = _files(search) if search.one_file else {}

    def of(self, op: Operation, role: str = "") -> _Line:
        search = self._search
        place = op.stack or op.site
        if place and not search.one_file:
            return op.kind, place, role
        said = steady(self.words[op.index], search.trace, search.names)
        return self._files.get(said) or _VARIES.sub("N", said), place, role


def _files(search: Search) -> dict[str, str]:
    """What is done to which file, by the words of each operation: alike in every save.

    Numbers that tell the files of one save apart (a shard's) stay; those that advance from save to
    save (a step's) and sizes do not. Where saves cannot be told apart there are none.
    """
    if not search.outputs:
        return {}
    texts: dict[str, dict[str, set[int]]] = {}  # by template: the words, and in which saves
    words = _words(search.trace, search.model, search.outputs)
    save = 0
    for op in search.trace.operations:
        save += op.index in search.outputs
        said = steady(words[op.index], search.trace, search.names)
        texts.setdefault(_VARIES.sub("N", said), {}).setdefault(said, set()).add(save)
    return {
        said: key
        for alike in texts.values()
        for said, key in zip(alike, _told_apart(alike, of_several=save > 2), strict=True)
    }


def _told_apart(alike: Mapping[str, set[int]], *, of_several: bool) -> list[str]:
    """``alike`` words, which differ in numbers only, without those that advance.

    ``of_several`` saves: what stays comes again in another one.
    """
    numbers = [_VARIES.findall(said.partition(" (")[0]) for said in alike]
    stays = []
    for position in range(len(numbers[0])):
        by_save: dict[int, set[str]] = {}
        for values, saves in zip(numbers, alike.values(), strict=True):
            for save in saves:
                by_save.setdefault(save, set()).add(values[position])
        times = Counter(value for values in by_save.values() for value in values)
        several = any(len(values) > 1 for values in by_save.values())
        stays.append(several and (max(times.values()) > 1 or not of_several))
    found = []
    for said in alike:
        kept = iter(stays)
        parts = re.split(f"({_VARIES.pattern})", said)  # every other one is a number
        parts[1::2] = [number if next(kept, False) else "N" for number in parts[1::2]]
        found.append("".join(parts))
    return found


def _role(op: Operation, inode: int) -> str:
    """Which of its inodes an fsync after ``op`` is of."""
    for name in _ROLES:
        if getattr(op, name) == inode:
            return name
    raise ValueError(f"operation #{op.index} has nothing to do with inode {inode}")


def _words(trace: Trace, model: str, outputs: frozenset[int]) -> list[str]:
    return operation_words(space_of(trace, model, outputs).history)


def _pairs(search: Search, lines: Iterable[_Line]) -> list[tuple[int, int]]:
    """Where an fsync stands that is added after ``lines``, and of what. What is gone needs none."""
    wanted = frozenset(lines)
    every = _Lines(search)
    gone = nameless_since(search.trace)
    end = len(search.trace.operations)
    found = {
        (op.index, inode)
        for op in search.trace.operations
        for role in _ROLES
        if (inode := getattr(op, role)) >= 0
        and every.of(op, role) in wanted
        and op.index < gone.get(inode, end)
    }
    return sorted(found)


def _with_lines(search: Search, lines: Iterable[_Line]) -> tuple[Trace, frozenset[int], int]:
    """The run with an fsync after each operation that is like one of ``lines``; how many."""
    trace, outputs = search.trace, search.outputs
    pairs = _pairs(search, lines)
    for after, inode in reversed(pairs):
        trace = with_fsync(trace, after, inode)
        outputs = frozenset(i + (i > after) for i in outputs)
    return trace, outputs, len(pairs)


def _shown(search: Search, line: _Line) -> Sync:
    """A line to add, by its first occurrence, with all that it syncs in that save."""
    words = _words(search.trace, search.model, search.outputs)
    types = space_of(search.trace, search.model, search.outputs).history.types
    pairs = _pairs(search, [line])
    files: dict[str, str] = {}  # by what differs in more than a name made at random
    times: Counter[str] = Counter()
    of_one_save = _of_one_save(search, pairs)
    for pair in pairs:
        said = f"fsync({named(paths_after(search.trace, pair[0]), pair[1], types)})"
        alike = steady(said, search.trace, search.names)
        times[alike] += 1
        if pair in of_one_save or times[alike] > 1:  # a name that comes again, in turn with others
            files.setdefault(alike, said)
    first = search.trace.operations[pairs[0][0]]
    said = f"{few(list(files.values()))} after #{first.index} {words[first.index]}"
    return Sync(said, first.site, len(pairs), len(files))


def _of_one_save(search: Search, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Those up to the first thing that the world saw after the first of them."""
    begin = pairs[0][0]
    end = min((i for i in search.outputs if i > begin), default=len(search.trace.operations))
    return [pair for pair in pairs if pair[0] <= end]


def mended(search: Search) -> Mending:
    """The smallest set of fsyncs after which no explored state of a failing run fails."""
    kept = enumerate_states(search.trace, model="kill", outputs=search.outputs)
    killed = next((state for state in kept if not search.is_good(state)), None)
    if killed is not None:
        return Mending(beyond=f"a kill does the same {crash_words(killed)}")
    found = _mended(search)
    if search.one_file or (found.complete and all(sync.files == 1 for sync in found.add)):
        return found
    # Of a line that does the same to several files, one may be all that it takes. An fsync can do
    # harm, too, where one model makes a name durable before an older one.
    narrow = _mended(replace(search, one_file=True))
    fewer = narrow.times() < found.times() or not found.complete
    return narrow if narrow.complete and fewer else found


def _mended(search: Search) -> Mending:
    lines: list[_Line] = []
    trace, outputs = search.trace, search.outputs
    for _ in range(MAX_ROUNDS):
        bad = search.first_bad(trace, outputs)
        if bad is None:
            return _smallest(search, lines)
        found = _lines_for(search, trace, outputs, bad.place)
        fresh = [line for line in found if line not in lines]
        if not fresh:
            return Mending(beyond=f"a state {crash_words(bad)} fails whatever is synced")
        lines += fresh
        trace, outputs, _ = _with_lines(search, lines)
    return Mending(beyond=f"more than {MAX_ROUNDS} rounds of adding fsyncs were not enough")


def _lines_for(search: Search, trace: Trace, outputs: frozenset[int], place: int) -> list[_Line]:
    """The lines to add so that no state up to a crash place fails."""
    cut = Trace(start=trace.start, operations=trace.operations[:place], blobs=trace.blobs)
    seen = frozenset(i for i in outputs if i < place)
    done = mend(
        cut, search.model, search.is_good, seed=search.seed, bound=search.bound, outputs=seen
    )
    every = _Lines(search, _words(cut, search.model, seen))
    found: list[_Line] = []
    for addition in done.additions if done.complete else ():
        op = cut.operations[addition.after]
        found.append(every.of(op, _role(op, addition.inode)))
    return list(dict.fromkeys(found))


def _smallest(search: Search, lines: list[_Line]) -> Mending:
    for line in list(lines):
        fewer = [other for other in lines if other != line]
        if search.first_bad(*_with_lines(search, fewer)[:2]) is None:
            lines = fewer
    proven = True
    everything = _all_lines(search)
    for size in range(1, len(lines)):
        for tried, some in enumerate(itertools.combinations(everything, size)):
            if tried >= MAX_SMALLER:
                proven = False
                break
            if search.first_bad(*_with_lines(search, some)[:2]) is None:
                return _settled(search, list(some), proven)
    return _settled(search, lines, proven)


def _settled(search: Search, lines: list[_Line], proven: bool) -> Mending:
    """Where an fsync of the directory does as well as one of the file for a name, that one.

    It is what every model understands: under posix only it makes a name durable.
    """
    for number, (does, place, role) in enumerate(lines):
        if role != "inode" or does.partition(" ")[0] not in _OF_NAMES:
            continue
        for other in ("new_parent", "parent"):
            instead = [*lines[:number], (does, place, other), *lines[number + 1 :]]
            trace, outputs, added = _with_lines(search, instead)
            if added and search.first_bad(trace, outputs) is None:
                lines = instead
                break
    add = tuple(_shown(search, line) for line in lines)
    return Mending(add, complete=True, smallest=proven)


def _all_lines(search: Search) -> list[_Line]:
    """Every line after which an fsync could be added."""
    every = _Lines(search)
    gone = nameless_since(search.trace)
    found: dict[_Line, None] = {}
    for op in search.trace.operations:
        if op.kind in SYNC_KINDS or op.kind in (Kind.OUTPUT, Kind.META):
            continue
        for role in ("inode", "new_parent", "parent"):
            inode = getattr(op, role)
            if inode >= 0 and op.index < gone.get(inode, len(search.trace.operations)):
                found.setdefault(every.of(op, role))
    return list(found)


def spared(search: Search) -> Sparing:
    """Which lines' syncs no explored state of a run without failing states needs."""
    search = replace(search, one_file=True)
    every = _Lines(search)
    lines: dict[_Line, list[Operation]] = {}
    for op in search.trace.operations:
        if op.kind in SYNC_KINDS or op.synced:
            lines.setdefault(every.of(op), []).append(op)
    spare: list[Sync] = []
    needed: list[Sync] = []
    gone: list[Operation] = []
    sites = _sites_of(lines)
    for line, operations in lines.items():
        first = operations[0]
        sync = Sync(f"#{first.index} {every.words[first.index]}", sites[line], len(operations))
        if search.first_bad(*_removed(search, operations)) is None:
            spare.append(sync)
            gone += operations
        else:
            needed.append(sync)
    together = len(spare) > 1 and search.first_bad(*_removed(search, gone)) is None
    return Sparing(tuple(spare), tuple(needed), together)


def _sites_of(lines: Mapping[_Line, Sequence[Operation]]) -> dict[_Line, str]:
    """The site of each line, with its caller where another line has the same."""
    times = Counter(operations[0].site for operations in lines.values())
    found = {}
    for line, operations in lines.items():
        first = operations[0]
        above = callers(first.stack)
        alike = times[first.site] > 1 and " from " not in first.site
        found[line] = f"{first.site} from {above[0]}" if alike and above else first.site
    return found


def _removed(search: Search, operations: Iterable[Operation]) -> tuple[Trace, frozenset[int]]:
    trace, outputs = search.trace, search.outputs
    for op in sorted(operations, key=lambda op: op.index, reverse=True):
        fewer = without(trace, op.index)
        if len(fewer.operations) < len(trace.operations):
            outputs = frozenset(i - (i > op.index) for i in outputs)
        trace = fewer
    return trace, outputs
