"""Where each path of a changing tree comes from in the tree that it began as. Pure."""

Path = bytes


class Overlay:
    """Paths relative to the root, ``b""`` being the root; None stands for outside the root.

    An entry says of a path, and of all below it that has no entry of its own, which path of the
    starting tree it was, or (None) that it is the program's own or gone.
    """

    def __init__(self) -> None:
        self._entries: dict[Path, Path | None] = {}

    def origin(self, path: Path) -> Path | None:
        """The path in the starting tree; None when it does not come from there."""
        above, below = path, b""
        while True:
            if above in self._entries:
                start = self._entries[above]
                return None if start is None else _join(start, below)
            if not above:
                return path
            above, _, name = above.rpartition(b"/")
            below = _join(name, below)

    def moved(self) -> dict[Path, Path]:
        """What has another path now than in the starting tree: that one, and this."""
        return {at: start for at, start in self._entries.items() if start is not None}

    def is_gone(self, start: Path) -> bool:
        """Whether nothing comes from ``start``, a path of the starting tree, any more."""
        candidates = [start]
        for at, source in self._entries.items():
            if source is not None and _is_within(start, source):
                candidates.append(_join(at, start[len(source) :].lstrip(b"/")))
        return all(self.origin(path) != start for path in candidates)

    def own(self, path: Path) -> None:
        """The program has made, emptied or removed what is here."""
        self._forget(path)
        self._entries[path] = None

    def copy(self, source: Path | None, target: Path) -> None:
        """``target`` is a further name of ``source``."""
        start = None if source is None else self.origin(source)
        self._forget(target)
        self._entries[target] = start

    def move(self, source: Path | None, target: Path | None) -> None:
        """What was at ``source``, with all below it, is at ``target`` now."""
        moved = self._take(source)
        if target is not None:
            self._put(target, moved)

    def exchange(self, first: Path | None, second: Path | None) -> None:
        """Two places have changed their contents."""
        one, other = self._take(first), self._take(second)
        if first is not None:
            self._put(first, other)
        if second is not None:
            self._put(second, one)

    def _take(self, path: Path | None) -> dict[Path, Path | None]:
        """Entries at and below a path, relative to it; what is there is gone then."""
        if path is None:
            return {b"": None}
        taken = {
            at[len(path) :].lstrip(b"/"): start
            for at, start in self._entries.items()
            if _is_within(at, path)
        }
        taken[b""] = self.origin(path)
        self.own(path)
        return taken

    def _put(self, path: Path, entries: dict[Path, Path | None]) -> None:
        self._forget(path)
        for below, start in entries.items():
            self._entries[_join(path, below)] = start

    def _forget(self, path: Path) -> None:
        for at in [at for at in self._entries if _is_within(at, path)]:
            del self._entries[at]


def _join(above: Path, below: Path) -> Path:
    return above + b"/" + below if above and below else above or below


def _is_within(path: Path, above: Path) -> bool:
    return path == above or not above or path.startswith(above + b"/")
