"""What one waiting call asks for, before it runs, in the terms of a trace."""

import os
from dataclasses import dataclass

from fault_injection.procfs import Location
from fault_injection.trace import Kind


@dataclass(slots=True)  # not frozen: one is made for every call, and freezing trebles its price
class Request:
    """One call that concerns the tree under the root, or that the outside world will see.

    ``verb`` and ``label`` make its place. ``inside`` is false only for output, and for what a
    recorder wants to know of the outside (an fsync of a file that may be moved in later).
    ``first`` is the path that the call names, ``second`` the new one of a rename or link; ``fd``
    the descriptor it works on, ``status`` what is there before the call (a rename's or link's
    source), ``text`` the path that /proc shows for it. ``vectors`` are (address, size) of the bytes
    of a write; a copy has none (``copies``): its bytes are read from the file afterwards.
    ``offset`` is -1 for the file's own position. ``untraceable`` says why the effect cannot be
    followed, beginning with the call's name.
    """

    tid: int
    name: str
    verb: str
    kind: Kind | None
    label: bytes = b""
    inside: bool = True
    first: Location | None = None
    second: Location | None = None
    fd: int = -1
    text: bytes = b""
    status: os.stat_result | None = None
    offset: int = 0
    size: int = 0
    flags: int = 0
    vectors: tuple[tuple[int, int], ...] = ()
    copies: bool = False
    target: bytes = b""
    output: str = ""
    untraceable: str = ""


def refused(tid: int, name: str, why: str) -> Request:
    """A call whose effect on the tree cannot be followed; ``why`` begins with its name."""
    return Request(tid, name, "", None, inside=False, untraceable=why)
