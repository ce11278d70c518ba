"""What the outside world could see of an attempt, in order: its output, and its watched files.

Bytes count from the moment the call that wrote them was let run, also when the file is cut back
later. A watched file that is replaced by a rename shows, at that moment, what its new content has
beyond the old (all of it when it does not begin with the old).

Not covered: bytes copied into a watched file inside the kernel (sendfile, copy_file_range).
"""

import itertools
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fault_injection.filetree import read_regular
from fault_injection.output_bytes import copied_bytes
from fault_injection.pending import Pending
from fault_injection.requests import Request
from fault_injection.seccomp import read_memory
from fault_injection.trace import Kind

LIMIT_BYTES = 16 << 20  # of one call, and of what is compared when a watched file is replaced


@dataclass(slots=True)
class _Sighting:
    source: str
    data: bytes
    place: str
    pending: Pending | None = None
    index: int = -1


class Sightings:
    """Collects them. ``take`` before a call runs, ``happened`` once it was let run."""

    def __init__(self, root: bytes, watch: Sequence[str]) -> None:
        self._watched = {os.path.join(root, os.fsencode(path)): path for path in watch}
        self._taken: dict[int, _Sighting] = {}
        self._seen: list[_Sighting] = []

    def observes(self, request: Request) -> bool:
        """Whether the call shows the world something."""
        if request.output:
            return True
        if not self._watched:
            return False
        if request.kind is Kind.WRITE:
            return request.text in self._watched and not request.copies
        if request.kind in (Kind.RENAME, Kind.LINK, Kind.EXCHANGE):
            return request.second is not None and request.second.path in self._watched
        return False

    def take(self, pending: Pending) -> None:
        """Read the bytes while the thread waits."""
        request = pending.request
        try:
            if request.output:
                source = request.output
                data = copied_bytes(request) if request.copies else _memory(request)
            elif request.kind is Kind.WRITE:
                source, data = self._watched[request.text], _memory(request)
            else:
                assert request.second is not None
                source = self._watched[request.second.path]
                data = _news(request)
        except OSError:
            return
        self._taken[request.tid] = _Sighting(source, data, pending.place, pending)

    def happened(self, pending: Pending) -> None:
        """The call was let run, or answered in its place."""
        sighting = self._taken.pop(pending.request.tid, None)
        if sighting is None or sighting.pending is not pending:
            return
        if pending.wrote is not None:
            sighting.data = sighting.data[: pending.wrote]
        if sighting.data:
            self._seen.append(sighting)

    def told(self, source: str, data: bytes, place: str) -> None:
        """The program wrote ``data`` after the call of ``place``, by a call that was not seen."""
        self._seen.append(_Sighting(source, data, place))

    def number(self, done: Iterable[Pending]) -> None:
        """Give each sighting its operation's index, and take back what did not happen after all."""
        index: dict[int, int] = {}
        count = 0
        for pending in done:
            count += len(pending.drafts or ())
            index[id(pending)] = count - 1
        kept: list[_Sighting] = []
        for sighting in self._seen:
            drafts = sighting.pending.drafts if sighting.pending else None
            if not drafts:
                continue
            sighting.index = index[id(sighting.pending)]
            if drafts[-1].kind is Kind.WRITE:
                sighting.data = sighting.data[: drafts[-1].size]
            kept.append(sighting)
        self._seen = kept

    def listed(self) -> list[tuple[str, bytes, int, str]]:
        """Source, bytes, operation index and place of each, in order."""
        return [(s.source, s.data, s.index, s.place) for s in self._seen]


def _memory(request: Request) -> bytes:
    parts: list[bytes] = []
    left = LIMIT_BYTES
    for address, size in request.vectors:
        part = read_memory(request.tid, address, min(size, left))
        parts.append(part)
        left -= len(part)
        if left <= 0:
            break
    return b"".join(parts)


def _news(request: Request) -> bytes:
    """What a rename or link onto a watched path shows that was not there before."""
    assert request.second is not None
    source = request.text if request.kind is Kind.LINK else None
    if source is None and request.first is not None:
        source = request.first.path
    new, old = _content(source or b""), _content(request.second.path)
    return new[_beginning(new, old) :]


def _beginning(new: bytes, old: bytes) -> int:
    """How many bytes two contents begin with alike, in whole lines; all of them if one is the
    beginning of the other."""
    if new.startswith(old) or old.startswith(new):
        return min(len(new), len(old))
    lines = zip(new.split(b"\n"), old.split(b"\n"), strict=False)
    return sum(
        len(line) + 1 for line, _ in itertools.takewhile(lambda both: both[0] == both[1], lines)
    )


def _content(path: bytes) -> bytes:
    try:
        fd = read_regular(path)
    except OSError:
        return b""
    try:
        return os.pread(fd, LIMIT_BYTES, 0)
    finally:
        os.close(fd)
