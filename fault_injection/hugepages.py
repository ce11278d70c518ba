"""Huge pages for a process that is forked again and again.

A fork copies a table entry for each page of memory, and the child's end drops each again: with
torch loaded these are fifty thousand, which takes longer than a small program runs. Laid together
in huge pages they are a hundred. A child that writes to one gets a copy of the 4 KiB that it
touched, as ever.

Only a matter of speed: where the kernel cannot (before Linux 6.1), or will not, all stays as it is.
"""

import ctypes
from collections.abc import Iterable, Iterator

HUGE_BYTES = 2 << 20
_MADV_COLLAPSE = 25


def collapse() -> int:
    """Lay this process's private memory together; how many huge pages it consists of then."""
    libc = ctypes.CDLL(None)
    advise = getattr(libc, "madvise", None)
    if advise is None:
        return 0
    advise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    try:
        with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
            maps = list(file)
    except OSError:
        return 0
    # One by one: what cannot be moved now is not to keep the next from it.
    return sum(advise(start, HUGE_BYTES, _MADV_COLLAPSE) == 0 for start in ranges(maps))


def ranges(maps: Iterable[str]) -> Iterator[int]:
    """Where in the private, writable, anonymous mappings there is room for a whole huge page.

    ``maps`` are the lines of ``/proc/PID/maps``.
    """
    for line in maps:
        bounds, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions != "rw-p" or inode != "0" or (name and name[0].strip() != "[heap]"):
            continue
        start, end = (int(word, 16) for word in bounds.split("-"))
        first = -(-start // HUGE_BYTES) * HUGE_BYTES
        yield from range(first, end - HUGE_BYTES + 1, HUGE_BYTES)
