"""The forms in which content that was not synced may come back.

For one file: ``covered`` operations are there, ``pending`` ones need not be. Always possible are
*whole* (all of them) and *lost* (none). Between them, by model:

sizes      every change of length (truncate, fallocate) is there, no write is
after      the first few operations whole, the later ones lost
cut        within an operation, at a page: what lies before is there, the rest is not
tail       an append that begins inside a page: the old bytes, then zeros to that page's end
torn       (tears) within an operation, at any byte of an append, at a sector of an overwrite
hole       (tears) the second half of an operation is there, the first half is not
without    (tears) one operation lost, the later ones there (not where they share a sector)
grown      (grows_empty) the length of the end, the bytes of the beginning, zeros between

A file with many pending operations takes the ``after`` and ``without`` forms of a few of them, and
the forms within an operation of its last and of its largest one: the constraint check
(:mod:`fault_injection.crash_states.containment`) knows them all, the enumeration tries these. An
overwrite inside one aligned sector is atomic.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from fault_injection.crash_states.content import (
    Content,
    cut,
    joined,
    of_blob,
    overwritten,
    resized,
)
from fault_injection.crash_states.history import History
from fault_injection.crash_states.models import Model
from fault_injection.trace import Kind, Operation

PAGE_BYTES = 4096
SECTOR_BYTES = 512
_MOST_STEPS = 4  # ``after`` and ``without`` forms of one file


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


_Candidate = tuple[str, Content, str]


def _candidates(
    history: History,
    model: Model,
    inode: int,
    covered: tuple[int, ...],
    pending: tuple[int, ...],
) -> Iterator[_Candidate]:
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
    steps = _a_few(pending[:-1])
    for index in steps:
        kept = history.content(inode, (*covered, *(i for i in pending if i <= index)))
        yield f"after#{index}", kept, f"{kept.size} bytes, as after #{index}"
    for index in sorted({pending[-1], max(pending, key=lambda i: (operations[i].size, i))}):
        before = history.content(inode, (*covered, *(i for i in pending if i < index)))
        yield from _within(model, operations[index], before, lost.size)
    if model.grows_empty and whole.size > lost.size and (model.tears or lost.size):
        grown = resized(lost, whole.size)
        yield "grown", grown, f"{whole.size} bytes long, zeros from {lost.size} on"
        for index in steps:
            kept = history.content(inode, (*covered, *(i for i in pending if i <= index)))
            if kept.size < whole.size:
                grown = resized(kept, whole.size)
                yield f"grown#{index}", grown, f"{whole.size} bytes, zeros from {kept.size} on"
    if model.tears and len(pending) > 1:
        for index in steps:
            if _shares_a_sector(operations[index], [operations[i] for i in pending]):
                continue  # the page cache writes what both left there, or nothing
            kept = history.content(inode, (*covered, *(i for i in pending if i != index)))
            yield f"without#{index}", kept, f"whole but for #{index}, which is lost"


def _within(
    model: Model, op: Operation, before: Content, durable_size: int
) -> Iterator[_Candidate]:
    """The forms inside one write on top of ``before``."""
    if op.kind is not Kind.WRITE or op.size == 0:
        return
    start, end, i = op.offset, op.offset + op.size, op.index
    new = overwritten(before, start, of_blob(op.blob, op.size))
    in_file = end <= before.size
    for page in _pages(start, end):
        kept = _left_of(before, new, page)
        yield f"cut#{i}@{page}", kept, f"#{i} cut at the page at {page} of {end}"
    page_end = -(-before.size // PAGE_BYTES) * PAGE_BYTES
    if before.size % PAGE_BYTES and end > before.size and durable_size:
        tail = resized(before, min(page_end, end))
        yield f"tail#{i}@{tail.size}", tail, f"zeros from {before.size} to {tail.size}"
    if not model.tears:
        return
    middle = (start + end) // 2
    if in_file or start < before.size:
        middle = middle // SECTOR_BYTES * SECTOR_BYTES
    if start < middle < end:
        torn = _left_of(before, new, middle)
        yield f"torn#{i}@{middle}", torn, f"#{i} torn at byte {middle} of {end}"
        hole = joined((*cut(before, 0, middle), *cut(new, middle, new.size)))
        yield f"hole#{i}@{middle}", hole, f"#{i} without its bytes before {middle}"


def _left_of(before: Content, new: Content, at: int) -> Content:
    """``new`` up to ``at``; after it ``before``, where that goes on."""
    rest = cut(before, at, before.size) if before.size > at else ()
    return joined((*cut(new, 0, at), *rest))


def _pages(start: int, end: int) -> list[int]:
    """The first, a middle and the last page boundary inside a write."""
    first = start // PAGE_BYTES + 1
    last = -(-end // PAGE_BYTES) - 1
    if first > last:
        return []
    return [page * PAGE_BYTES for page in sorted({first, (first + last) // 2, last})]


def _shares_a_sector(op: Operation, others: list[Operation]) -> bool:
    """Whether another write touches a sector that ``op`` touches."""
    if op.kind is not Kind.WRITE:
        return False
    first, last = op.offset // SECTOR_BYTES, (op.offset + op.size - 1) // SECTOR_BYTES
    return any(
        other.index != op.index
        and other.kind is Kind.WRITE
        and other.offset // SECTOR_BYTES <= last
        and (other.offset + other.size - 1) // SECTOR_BYTES >= first
        for other in others
    )


def _a_few(indices: tuple[int, ...]) -> tuple[int, ...]:
    """At most :data:`_MOST_STEPS`, the first and the last among them."""
    if len(indices) <= _MOST_STEPS:
        return indices
    last = len(indices) - 1
    return tuple(indices[last * n // (_MOST_STEPS - 1)] for n in range(_MOST_STEPS))
