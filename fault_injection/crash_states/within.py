"""What may come back of one write whose file was not synced: cut, torn, or without a part of it.

Each page of a file reaches the disk at its own time; with ``tears`` each sector of a page does. An
overwrite inside one aligned sector is atomic, an append is not: its length may end at any byte.
Where a model lets a file grow without its bytes, zeros stand for what did not arrive. A write of
many pages is tried at a few places: its first, a middle and its last page boundary.
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
from fault_injection.crash_states.models import Model
from fault_injection.trace import Kind, Operation

PAGE_BYTES = 4096
SECTOR_BYTES = 512

Candidate = tuple[str, Content, str]  # a form's name, its bytes, and words for people


@dataclass(frozen=True, slots=True)
class Rules:
    """What a model allows within an operation on one file.

    ``unit``: what is written at its own time. ``grows``: its length may come without the bytes;
    under ext4 that was only seen of a file that was durable with some.
    """

    tears: bool
    unit: int
    grows: bool
    has_durable_bytes: bool

    @classmethod
    def of(cls, model: Model, durable_size: int) -> "Rules":
        """The rules of ``model`` for a file that had ``durable_size`` bytes at its last sync."""
        return cls(
            tears=model.tears,
            unit=SECTOR_BYTES if model.tears else PAGE_BYTES,
            grows=model.grows_empty and (model.tears or durable_size > 0),
            has_durable_bytes=durable_size > 0,
        )

    def may_lack(self, before: Content, stop: int) -> bool:
        """Whether the pages up to ``stop`` (a boundary) may be as in ``before``, the later ones
        new: the last of them was in the file, or the file may grow without its bytes."""
        return self.grows or stop - PAGE_BYTES < before.size


def within(op: Operation, before: Content, rules: Rules) -> Iterator[Candidate]:
    """The forms inside one write on top of ``before``."""
    if op.kind is not Kind.WRITE or op.size == 0:
        return
    start, end, i = op.offset, op.offset + op.size, op.index
    new = overwritten(before, start, of_blob(op.blob, op.size))
    pages = _boundaries(start, end, PAGE_BYTES)
    half = (len(pages) - 1) // 2
    some = sorted({pages[0], pages[half], pages[-1]}) if pages else []
    for page in some:
        kept = _left_of(before, new, page)
        yield f"cut#{i}@{page}", kept, f"#{i} cut at the page at {page} of {end}"
    page_end = -(-before.size // PAGE_BYTES) * PAGE_BYTES
    if before.size % PAGE_BYTES and end > before.size and rules.has_durable_bytes:
        tail = resized(before, min(page_end, end))
        yield f"tail#{i}@{tail.size}", tail, f"zeros from {before.size} to {tail.size}"
    if rules.tears:
        middle = _tear(start, end, before.size)
        if middle > 0:
            torn = _left_of(before, new, middle)
            yield f"torn#{i}@{middle}", torn, f"#{i} torn at byte {middle} of {end}"
    else:
        early = [page for page in some if page <= pages[half] and rules.may_lack(before, page)]
        middle = early[-1] if early else 0
    if middle > 0 and not _only_longer(start, middle, before.size):
        hole = _mixed(before, new, (middle, new.size))
        yield f"hole#{i}@{middle}", hole, f"#{i} without its bytes before {middle}"
    yield from _inner(op, before, new, rules)
    if rules.grows and end > before.size:
        places = {*some[:1], middle}
        for at in sorted(places):
            if at > 0 and not _only_longer(start, at, before.size):
                padded = resized(_left_of(before, new, at), new.size)
                yield f"padded#{i}@{at}", padded, f"#{i} with zeros from {at} to {new.size}"


def _inner(op: Operation, before: Content, new: Content, rules: Rules) -> Iterator[Candidate]:
    """The forms in which both ends of a write fare otherwise than what lies between."""
    start, end, i = op.offset, op.offset + op.size, op.index
    for unit in (PAGE_BYTES, rules.unit):
        inner = _boundaries(start, end, unit)
        if len(inner) > 1:
            break
    else:
        return
    one = inner[(len(inner) - 1) // 2]
    for first, stop in ((inner[0], inner[-1]), (one, one + unit)):
        if rules.may_lack(before, stop):
            gap = _mixed(before, new, (0, first), (stop, new.size))
            yield f"gap#{i}@{first}-{stop}", gap, f"#{i} without its bytes {first} to {stop}"
    if end <= before.size:
        island = _mixed(before, new, (inner[0], inner[-1]))
        words = f"#{i} only with its bytes {inner[0]} to {inner[-1]}"
        yield f"island#{i}@{inner[0]}", island, words


def _mixed(before: Content, new: Content, *taken: tuple[int, int]) -> Content:
    """``before``, with these ranges of ``new``; as long as ``new``."""
    content, at = [], 0
    for first, stop in taken:
        content += [*cut(before, at, first), *cut(new, first, stop)]
        at = stop
    return joined((*content, *cut(before, at, new.size)))


def _left_of(before: Content, new: Content, at: int) -> Content:
    """``new`` up to ``at``; after it ``before``, where that goes on."""
    rest = cut(before, at, before.size) if before.size > at else ()
    return joined((*cut(new, 0, at), *rest))


def _boundaries(start: int, end: int, unit: int) -> range:
    """The multiples of ``unit`` strictly inside a write."""
    return range((start // unit + 1) * unit, end, unit)


def _tear(start: int, end: int, size: int) -> int:
    """Where a write on a file of ``size`` bytes is torn, near its middle; 0: nowhere.

    An append may end at any byte, an overwrite only between two sectors.
    """
    middle = (start + end) // 2
    if start >= size:
        return middle if middle > start else 0
    below = middle // SECTOR_BYTES * SECTOR_BYTES
    for at in (below, below + SECTOR_BYTES, size):
        if start < at < end:
            return at
    return 0


def _only_longer(start: int, at: int, size: int) -> bool:
    """Whether the part of a write before ``at`` lies over the file's last bytes, and that after it
    beyond them in the same sector: the length may be missing then, the bytes come together."""
    return start < at == size and at % SECTOR_BYTES > 0
