"""Whether a real outcome is one that a model allows: a check of constraints, not of membership.

The enumeration tries some sets and some forms; a real file system may show any that the model
allows. This check therefore asks whether there is *any* allowed set of durable operations under
which each name holds what the real tree has there, and whether each file's bytes are ones that the
model allows: a length that the file had or passed through, and in each page (posix: each sector,
and each byte where the file had grown) bytes of one of the versions since its last sync.

Two things that real file systems do are allowed here and not enumerated. On btrfs (and posix) only
one half of an exchange, or of a rename across directories, may be there when one end was synced. On
ext4 a file that was renamed over another has its length, but a commit right after the rename may
overtake the writing of its bytes, which then are zeros (seen in one of twenty such cuts).

The search goes from the root down, a name at a time, and decides operations in or out; what is
hidden is left undecided. It is bounded, and says when it gave up. Modes, owners and times are not
compared: chmod is not in the models.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from fault_injection.crash_states.content import Content, ContentStore, cut
from fault_injection.crash_states.models import BTRFS, Context, each_bit
from fault_injection.crash_states.space import Space, space_of
from fault_injection.crash_states.tree import Entry, VisibleTree, show
from fault_injection.crash_states.within import PAGE_BYTES, SECTOR_BYTES
from fault_injection.trace import ROOT_INODE, FileType, Kind, Trace

_MOST_STEPS = 200_000
_WINDOW_BYTES = 64 << 10


def contains(
    trace: Trace,
    model: str,
    place: int,
    tree: VisibleTree,
    *,
    outputs: Collection[int] | None = None,
) -> str | None:
    """None when ``tree`` may be what a crash after ``place`` operations leaves under ``model``.

    Otherwise the nearest difference, in words. ValueError when the trace has no such place.
    """
    space = space_of(trace, model, outputs)
    if not 0 <= place < len(space.contexts):
        raise ValueError(f"crash place {place}: the trace has 0 to {len(space.contexts) - 1}")
    return _Search(space, space.contexts[place], tree).run()


class _Goal(NamedTuple):
    """A name that must hold what the real tree has at ``path``."""

    path: bytes
    directory: int
    name: bytes


_Goals = tuple[_Goal, "_Goals"] | None  # a linked list, shared between branches


@dataclass(slots=True)
class _Branch:
    goals: "_Goals"
    inside: int
    outside: int
    files: tuple[tuple[bytes, int], ...]
    met: int


@dataclass(slots=True)
class _Search:
    """One question. ``best`` is the difference at the branch that met the most goals."""

    space: Space
    context: Context
    tree: VisibleTree
    best: tuple[int, str] = (-1, "")
    listings: dict[bytes, list[bytes]] = field(default_factory=dict)
    ups: dict[int, int] = field(default_factory=dict)
    matched: dict[tuple[object, ...], str | None] = field(default_factory=dict)
    orders: dict[int, int] = field(default_factory=dict)

    def run(self) -> str | None:
        for path in self.tree.entries:
            above, _, name = path.rpartition(b"/")
            self.listings.setdefault(above, []).append(name)
        self.orders = _orders(self.space, self.context)
        # What is guaranteed is there whatever the order says of it.
        for bit in each_bit(self.context.applied & ~self.context.guaranteed):
            for need in each_bit(self.orders[bit]):
                self.ups[need] = self.ups.get(need, 0) | 1 << bit
        goals = self._goals_of(b"", ROOT_INODE, None)
        start = _Branch(goals, self.context.guaranteed, 0, (), 0)
        branches = [start]
        for _ in range(_MOST_STEPS):
            if not branches:
                return self.best[1]
            branch = branches.pop()
            if branch.goals is None:
                if self._holds(branch):
                    return None
                continue
            # The last one pushed is tried first: prefer more being durable.
            branches.extend(self._steps(branch))
        return f"undecided: more than {_MOST_STEPS} steps of search"

    def _goals_of(self, path: bytes, directory: int, rest: _Goals) -> _Goals:
        """The goals of one directory, before ``rest``."""
        node = self.space.history.trace.start.get(directory)
        names = set(node.entries) if node is not None else set()
        names.update(name for parent, name in self.space.history.chains if parent == directory)
        names.update(self.listings.get(path, ()))
        for name in sorted(names, reverse=True):
            below = path + b"/" + name if path else name
            rest = (_Goal(below, directory, name), rest)
        return rest

    def _steps(self, branch: _Branch) -> Iterator[_Branch]:
        """The branches in which the first goal is met."""
        assert branch.goals is not None
        goal, rest = branch.goals
        real = self.tree.entries.get(goal.path)
        why: list[str] = []
        reached = False
        for inode, inside, outside in self._options(goal, branch):
            problem = self._differs(real, inode, inside)
            if problem is not None:
                why.append(problem)
                continue
            goals, files = rest, branch.files
            if real is not None and real.type is FileType.DIRECTORY:
                goals = self._goals_of(goal.path, inode, rest)
            elif real is not None and real.type is FileType.FILE:
                files = (*files, (goal.path, inode))
            reached = True
            yield _Branch(goals, inside, outside, files, branch.met + 1)
        if not reached and branch.met > self.best[0]:
            reasons = "; or ".join(dict.fromkeys(why)) or "fits no set that explains the others"
            self.best = (branch.met, f"{show(goal.path)}: {reasons}")

    def _options(self, goal: _Goal, branch: _Branch) -> Iterator[tuple[int, int, int]]:
        """What the slot may hold, with the decisions that this takes: (inode or -1, in, out)."""
        history = self.space.history
        node = history.trace.start.get(goal.directory)
        value = node.entries.get(goal.name, -1) if node is not None else -1
        slot = (goal.directory, goal.name)
        chain = [b for b in history.chains.get(slot, ()) if self.context.applied >> b & 1]
        for count in range(len(chain) + 1):
            inside, outside = branch.inside, branch.outside
            if count:
                bit = chain[count - 1]
                if not self.context.guaranteed >> bit & 1:
                    inside |= self.orders[bit]
                value = dict(history.names[bit].sets)[slot]
            if count < len(chain):
                outside |= self.ups.get(chain[count], 0) | 1 << chain[count]
            if not inside & outside:
                yield value, inside, outside
            left = next((n for n in range(count, len(chain)) if self._may_leave(chain[n])), -1)
            if left >= 0:
                # The name stayed as it was although the rename happened; later ones did not.
                outside = branch.outside
                outside |= self.ups.get(chain[left + 1], 0) if left + 1 < len(chain) else 0
                if not inside & outside:
                    yield value, inside, outside

    def _may_leave(self, bit: int) -> bool:
        """Whether only half of this may have happened: an exchange, a rename across directories."""
        name_op = self.space.history.names[bit]
        kind = self.space.history.trace.operations[name_op.index].kind
        across = kind is Kind.RENAME and len(name_op.directories) > 1
        return self.space.model.leaves_old_name and (across or kind is Kind.EXCHANGE)

    def _differs(self, real: Entry | None, inode: int, inside: int) -> str | None:
        """Why the real entry cannot be this inode; None when it can."""
        if real is None or inode < 0:
            if real is None and inode < 0:
                return None
            return "is there, and must not be" if real is not None else "is missing"
        kind = self.space.history.types.get(inode, FileType.OTHER)
        if real.type is not kind:
            return f"is a {real.type}, and must be a {kind}"
        if kind is FileType.SYMLINK and real.target != self.space.history.targets.get(inode):
            return f"points to {show(real.target)}"
        if kind is FileType.FILE:
            return self._bytes_differ(real, inode, inside)
        return None

    def _bytes_differ(self, real: Entry, inode: int, durable: int) -> str | None:
        assert real.content is not None
        covered, pending = self.space.split(self.context, durable, inode)
        key = (inode, covered, pending, real.digest)
        if key not in self.matched:
            problem = self._ask(real.content, real.digest, inode, covered, pending)
            at_least = self.context.covered.get(inode, ())
            if problem is not None and covered != at_least:
                problem = problem if self._unexplained(real, inode, covered) else None
            self.matched[key] = problem
        return self.matched[key]

    def _ask(
        self,
        content: Content,
        digest: str,
        inode: int,
        covered: tuple[int, ...],
        pending: tuple[int, ...],
    ) -> str | None:
        return bytes_differ(
            self.space,
            inode,
            covered=covered,
            pending=pending,
            real=content,
            digest=digest,
            store=self.tree.store,
        )

    def _unexplained(self, real: Entry, inode: int, covered: tuple[int, ...]) -> bool:
        """Whether not even this explains a file that was renamed over another: its length is
        there, and some of its pages are zero because a commit overtook their writing.
        """
        assert real.content is not None
        shortest = self.space.history.content(inode, covered).size
        at_least = self.context.covered.get(inode, ())
        maybe = self.context.pending.get(inode, ())
        return real.content.size < shortest or (
            self._ask(real.content, real.digest, inode, at_least, maybe) is not None
        )

    def _holds(self, branch: _Branch) -> bool:
        """Whether the operations decided to be in, and no others, explain the whole tree.

        They are an allowed set as they are: each came in with all that it needs.
        """
        for path, inode in branch.files:
            problem = self._bytes_differ(self.tree.entries[path], inode, branch.inside)
            if problem is not None:
                if branch.met > self.best[0]:
                    self.best = (branch.met, f"{show(path)}: {problem}")
                return False
        return True


def _orders(space: Space, context: Context) -> dict[int, int]:
    """By bit, what must be durable with it at this place.

    btrfs logs all names of an inode when it logs one: those may be there without what came before.
    The enumeration, which needs one order for all places, does not try that.
    """
    history = space.history
    inode_of = {op.bit: history.trace.operations[op.index].inode for op in history.names}
    logged: set[int] = set()
    if space.model is BTRFS:
        logged = {inode_of[bit] for bit in each_bit(context.guaranteed)}
    return {
        bit: (history.names[bit].down_name if inode_of[bit] in logged else space.orders[bit])
        & context.applied
        for bit in each_bit(context.applied)
    }


def bytes_differ(
    space: Space,
    inode: int,
    *,
    covered: tuple[int, ...],
    pending: tuple[int, ...],
    real: Content,
    digest: str,
    store: ContentStore,
) -> str | None:
    """Why ``real`` (read from ``store``) cannot be what came back of a file; None when it can."""
    if any(form.digest == digest for form in space.forms_of(inode, covered, pending)):
        return None
    history = space.history
    versions = [
        history.content(inode, tuple(sorted((*covered, *pending[:count]))))
        for count in range(len(pending) + 1)
    ]
    sizes = sorted({version.size for version in versions})
    problem = _length_differs(real.size, sizes, tears=space.model.tears)
    if problem is not None:
        return problem
    # A change of length by itself (truncate, fallocate) is metadata: it needs no bytes. The models
    # that never show a length without its bytes allow zeros up to there.
    operations = history.trace.operations
    empty = real.size if space.model.grows_empty else 0
    for index, version in zip(pending, versions[1:], strict=True):
        if operations[index].kind is not Kind.WRITE:
            empty = max(empty, version.size)
    for start in range(0, real.size, _WINDOW_BYTES):
        end = min(start + _WINDOW_BYTES, real.size)
        at = _window_differs(space, versions, start, store.read(real, start, end), empty)
        if at >= 0:
            return f"byte {at} of {real.size} is of no version since the last sync"
    return None


def _length_differs(size: int, sizes: list[int], *, tears: bool) -> str | None:
    between = sizes[0] <= size <= sizes[-1]
    if size in sizes or (between and (tears or size % PAGE_BYTES == 0)):
        return None
    if len(sizes) == 1:
        return f"is {size} bytes long, and must be {sizes[0]}"
    return f"is {size} bytes long, and may be {', '.join(map(str, sizes))} or pages between"


def _window_differs(
    space: Space, versions: list[Content], start: int, real: bytes, empty: int
) -> int:
    """The first offset in this window whose bytes no version explains; -1: all are explained.

    A version explains bytes beyond its end, as zeros, only below ``empty``.
    """
    model = space.model
    unit = SECTOR_BYTES if model.tears else PAGE_BYTES
    smallest = min(version.size for version in versions)
    # The newest first: it nearly always explains everything. Read only as far as needed.
    texts: list[bytes] = []
    left = list(range(0, len(real), unit))
    for version in reversed(versions):
        pieces = cut(version, start, start + len(real))
        text = space.history.store.read(Content(pieces, len(real)))
        texts.append(text)
        left = [
            at
            for at in left
            if real[at : at + unit] != text[at : at + unit]
            or start + at >= max(version.size, empty)
        ]
        if not left:
            return -1
    for at in left:
        # Below the smallest length a sector is written as a whole; above, bytes may mix.
        if not model.tears or start + at + unit <= smallest:
            return start + at
        for i in range(at, min(at + unit, len(real))):
            if all(text[i] != real[i] for text in texts):
                return start + i
    return -1
