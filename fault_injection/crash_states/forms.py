"""The forms in which content that was not synced may come back.

For one file: ``covered`` operations are there, ``pending`` ones need not be. Always possible are
*whole* (all of them) and *lost* (none). Between them, by model:

sizes      every change of length (truncate, fallocate) is there, no write is
after      the first few operations whole, the later ones lost
without    one operation lost, the later ones there (not where they share a page with it)
cut        within an operation, at a page: what lies before is there, the rest is not
tail       an append that begins inside a page: the old bytes, then zeros to that page's end
hole       the first part of an operation is not there, the rest is
gap        both ends of an operation are there, what lies between is not, or one page of it
island     (overwrites) what lies between is there, both ends are not
torn       (tears) within an operation, at any byte of an append, at a sector of an overwrite
grown      (grows_empty) the length of the end, the bytes of the beginning, zeros between
padded     (grows_empty) the same, and the first bytes of the operation before the zeros

*without*, *hole*, *gap* and *island* go by pages: each page of a file is written at its own time.
A page that lies beyond what the file had comes back as zeros only under a model with
``grows_empty``. With ``tears`` they go by sectors. An overwrite inside one aligned sector is
atomic.

A file with up to :data:`MOST_STEPS` operations before its last one takes the ``after`` and
``without`` forms of each, with more those of a few (:func:`leaves_out`); ``grown`` is tried after a
few. The forms within an operation (:mod:`fault_injection.crash_states.within`) are those of the
last and of the largest one, at a few places: the constraint check
(:mod:`fault_injection.crash_states.containment`) knows them all, the enumeration tries these.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fault_injection.crash_states.content import Content, resized
from fault_injection.crash_states.history import History
from fault_injection.crash_states.models import Model
from fault_injection.crash_states.within import PAGE_BYTES, SECTOR_BYTES, Candidate, Rules, within
from fault_injection.trace import Kind, Operation

MOST_STEPS = 32  # operations of one file that are each cut after, and left out
_A_FEW = 4
_STEP_KINDS = ("after", "without")
_VARIANTS = ("gap", "island", "padded")


@dataclass(frozen=True, slots=True)
class Form:
    """One way in which a file's content comes back. ``name`` is stable, ``words`` are for people.

    ``whole`` and ``lost`` are names by themselves; the others are ``<form>#<operation index>``,
    and ``@<length or offset>`` where a place inside the operation was chosen.
    """

    name: str
    content: Content
    digest: str
    words: str

    @property
    def kind(self) -> str:
        """The name without the operation and the place in it."""
        return self.name.partition("#")[0]


def forms(
    history: History,
    model: Model,
    inode: int,
    *,
    covered: tuple[int, ...],
    pending: tuple[int, ...],
) -> tuple[Form, ...]:
    """All forms of one file, ``whole`` first and ``lost`` second, each content once."""
    result: list[Form] = []
    seen: set[str] = set()
    for name, content, words in _candidates(history, model, inode, covered, pending):
        digest = history.store.digest(content)
        if digest not in seen:
            seen.add(digest)
            result.append(Form(name, content, digest, words))
    return tuple(result)


def _candidates(
    history: History,
    model: Model,
    inode: int,
    covered: tuple[int, ...],
    pending: tuple[int, ...],
) -> Iterator[Candidate]:
    whole = history.content(inode, tuple(sorted((*covered, *pending))))
    yield "whole", whole, "whole"
    if not pending:
        return
    lost = history.content(inode, covered)
    yield "lost", lost, f"lost: {lost.size} bytes, as of the last sync"
    operations = history.trace.operations
    lengths = tuple(i for i in pending if operations[i].kind is not Kind.WRITE)
    if lengths:
        sized = history.content(inode, (*covered, *lengths))
        yield "sizes", sized, f"{sized.size} bytes long, without the bytes that were written"
    rules = Rules.of(model, lost.size)
    steps = _steps(pending)
    for index in steps:
        kept = history.content(inode, (*covered, *(i for i in pending if i <= index)))
        yield f"after#{index}", kept, f"{kept.size} bytes, as after #{index}"
    for index in sorted({pending[-1], max(pending, key=lambda i: (operations[i].size, i))}):
        before = history.content(inode, (*covered, *(i for i in pending if i < index)))
        yield from within(operations[index], before, rules)
    if rules.grows and whole.size > lost.size:
        grown = resized(lost, whole.size)
        yield "grown", grown, f"{whole.size} bytes long, zeros from {lost.size} on"
        for index in _a_few(steps):
            kept = history.content(inode, (*covered, *(i for i in pending if i <= index)))
            if kept.size < whole.size:
                grown = resized(kept, whole.size)
                yield f"grown#{index}", grown, f"{whole.size} bytes, zeros from {kept.size} on"
    for index in steps:
        if _may_be_missing(history, model, inode, index, covered=covered, pending=pending):
            kept = history.content(inode, (*covered, *(i for i in pending if i != index)))
            yield f"without#{index}", kept, f"whole but for #{index}, which is lost"


def _may_be_missing(
    history: History,
    model: Model,
    inode: int,
    index: int,
    *,
    covered: tuple[int, ...],
    pending: tuple[int, ...],
) -> bool:
    """Whether operation ``index`` may be lost alone, although later ones are there.

    Not where they share a page: the page cache writes what both left there, or nothing.
    """
    operations = history.trace.operations
    op = operations[index]
    others = [operations[i] for i in pending if i != index]
    if model.tears:
        return not _share(op, others, SECTOR_BYTES)
    plain = all(o.kind is Kind.WRITE for o in (op, *others))
    if not plain or _share(op, others, PAGE_BYTES):
        return False
    before = history.content(inode, (*covered, *(i for i in pending if i < index)))
    rules = Rules.of(model, history.content(inode, covered).size)
    stop = -(-(op.offset + op.size) // PAGE_BYTES) * PAGE_BYTES
    ends = max(before.size, *(o.offset + o.size for o in others))
    return rules.may_lack(before, stop) and op.offset + op.size <= ends


def _share(op: Operation, others: list[Operation], unit: int) -> bool:
    """Whether another write touches a sector or page that ``op`` touches."""
    if op.kind is not Kind.WRITE:
        return False
    first, last = op.offset // unit, (op.offset + op.size - 1) // unit
    return any(
        other.kind is Kind.WRITE
        and other.offset // unit <= last
        and (other.offset + other.size - 1) // unit >= first
        for other in others
    )


def paired(options: tuple[Form, ...]) -> tuple[int, ...]:
    """Positions of the forms that are tried with each form of another file; all but ``whole``.

    Of ``after`` and ``without`` a few, and none of those that are variants within an operation
    of what others show: their number would be multiplied.
    """
    steps = {kind: [n for n, o in enumerate(options) if o.kind == kind] for kind in _STEP_KINDS}
    few = {n for positions in steps.values() for n in _a_few(tuple(positions))}
    return tuple(
        n
        for n, option in enumerate(options)
        if n > 0 and (n in few if option.kind in _STEP_KINDS else option.kind not in _VARIANTS)
    )


def leaves_out(pending: tuple[int, ...]) -> bool:
    """Whether a file has too many pending operations for a form after, and without, each."""
    return len(pending) - 1 > MOST_STEPS


def _steps(pending: tuple[int, ...]) -> tuple[int, ...]:
    """The operations that are cut after and left out: all but the last, or a few of them."""
    return _a_few(pending[:-1]) if leaves_out(pending) else pending[:-1]


def _a_few(indices: tuple[int, ...]) -> tuple[int, ...]:
    """At most :data:`_A_FEW`, the first and the last among them."""
    if len(indices) <= _A_FEW:
        return indices
    last = len(indices) - 1
    return tuple(indices[last * n // (_A_FEW - 1)] for n in range(_A_FEW))
