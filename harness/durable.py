"""How our own results reach the disk: durably, and without losing those of an earlier run.

:func:`write_durably` is the one function by which the harness writes a result: a temporary
sibling, fsync, rename, fsync of the directory. What a crash leaves is the old file or the new
one, under every persistence model.

:func:`fresh_directory` prepares the directory that a run writes to. What an earlier run left
there moves to ``previous/<nnnn>/``, a bounded number of which is kept. It touches only what a run
of ours wrote, and holds a lock, so that two runs never write over each other.

Not covered: network file systems on which locks or fsync of a directory do nothing.
"""

import errno
import fcntl
import os
import re
import secrets
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path

from harness.errors import UsageError

MARKER = ".durability"
PREVIOUS = "previous"
RESULT_NAMES = (
    "cases.jsonl",
    "failures",
    "index.html",
    "junit.xml",
    "result.json",
    "summary.md",
)
KEEP_WHOLE = 10
KEEP_RESULTS = 1000

_TEMPORARY = re.compile(r"\.durable-[0-9a-f]{16}\.tmp")
_NUMBERED = re.compile(r"[0-9]{4,9}")
_MARKER_TEXT = b"durability writes its results here, and holds a lock on this file while it runs.\n"
_HEAD_BYTES = 4096


def write_durably(path: Path, data: bytes | str) -> None:
    """Write ``data`` (text as UTF-8) to ``path``, replacing what is there, and wait for the disk.

    Raises OSError when any step fails; the old file then stands and no temporary one is left.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = path.parent / f".durable-{secrets.token_hex(8)}.tmp"
    try:
        with open(temporary, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """fsync a directory. One that knows no fsync (EINVAL, on some file systems) is let pass."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
    finally:
        os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and those above it, each durable in the one that holds it."""
    missing: list[Path] = []
    place = path
    while not place.exists():
        missing.append(place)
        place = place.parent
    for directory in reversed(missing):
        directory.mkdir(exist_ok=True)
        sync_directory(directory.parent)
    if not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, "is not a directory", str(path))


@dataclass(frozen=True, slots=True)
class Fresh:
    """A directory ready to be written to, held by ``descriptor`` until :meth:`close`.

    ``moved_to`` is where the earlier results went (None: there were none). ``thinned`` are the old
    runs of which only ``result.json`` was kept, ``removed`` those that were removed altogether.
    """

    path: Path
    descriptor: int
    moved_to: Path | None = None
    thinned: tuple[Path, ...] = ()
    removed: tuple[Path, ...] = ()

    def close(self) -> None:
        """Let other runs have the directory; the end of the process does it too."""
        os.close(self.descriptor)  # which drops the lock

    def __enter__(self) -> "Fresh":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def notes(self) -> list[str]:
        """What was done with earlier results, in sentences for the new result."""
        said = []
        if self.moved_to is not None:
            said.append(f"the earlier results moved to {self.moved_to}")
        if self.thinned:
            names = ", ".join(p.name for p in self.thinned)
            said.append(f"of the older runs {names} only result.json is kept")
        if self.removed:
            said.append(f"removed the oldest runs: {', '.join(p.name for p in self.removed)}")
        return said


def fresh_directory(
    path: Path, *, keep_whole: int = KEEP_WHOLE, keep_results: int = KEEP_RESULTS
) -> Fresh:
    """Make ``path`` ready for a run's results, at once, and hold it until that is closed.

    Earlier results move to ``previous/<nnnn>/``. The newest ``keep_whole`` of those stay whole; of
    older ones ``result.json`` alone stays, for the history; beyond ``keep_results`` they go.

    Raises UsageError when another run holds the directory, when it holds files of our names that
    we did not write, or when it cannot be written to.
    """
    try:
        make_directory(path)
        ours = _is_ours(path)
        strangers = [] if ours else [n for n in RESULT_NAMES if os.path.lexists(path / n)]
        if strangers:
            raise UsageError(
                f"{path} holds {', '.join(strangers)}, which no run of durability wrote: "
                "choose another --out, or move them away"
            )
        descriptor = _lock(path)
        try:
            return _clear(path, descriptor, keep_whole=keep_whole, keep_results=keep_results)
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        raise UsageError(
            f"{path}: cannot hold results ({error.strerror}): choose another --out"
        ) from error


def _is_ours(path: Path) -> bool:
    """True when a run wrote here: by the marker or, where dotfiles got lost, by its result."""
    if (path / MARKER).is_file():
        return True
    result = path / "result.json"
    if not (result.is_file() and not result.is_symlink()):
        return False
    with open(result, "rb") as file:
        return b'"durability-result/' in file.read(_HEAD_BYTES)


def _lock(path: Path) -> int:
    """Lock the marker; the lock dies with this process and is not inherited by its children."""
    marker = path / MARKER
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    descriptor = os.open(marker, flags, 0o666)
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"{marker} is not a regular file: remove it, or choose another --out")
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if status.st_size == 0:
            os.write(descriptor, _MARKER_TEXT)
    except BaseException as error:
        os.close(descriptor)
        if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EAGAIN):
            raise UsageError(
                f"another run is writing to {path} now: wait for it, or choose another --out"
            ) from error
        raise
    return descriptor


def _clear(path: Path, descriptor: int, *, keep_whole: int, keep_results: int) -> Fresh:
    for entry in sorted(os.listdir(path)):
        if _TEMPORARY.fullmatch(entry):  # of a run that was killed while it wrote
            (path / entry).unlink()
    present = [name for name in RESULT_NAMES if os.path.lexists(path / name)]
    moved_to = None
    if present:
        numbers = [int(p.name) for p in _numbered(path / PREVIOUS)]
        moved_to = path / PREVIOUS / f"{max(numbers, default=0) + 1:04d}"
        make_directory(moved_to)
        for name in present:
            os.rename(path / name, moved_to / name)
        sync_directory(moved_to)
        sync_directory(path)
    thinned, removed = _thin(path / PREVIOUS, keep_whole=keep_whole, keep_results=keep_results)
    return Fresh(path, descriptor, moved_to, thinned, removed)


def _numbered(previous: Path) -> list[Path]:
    """The earlier runs, oldest first. Anything else below ``previous`` is not ours."""
    if not previous.is_dir():
        return []
    found = [p for p in previous.iterdir() if _NUMBERED.fullmatch(p.name) and p.is_dir()]
    return sorted(found, key=lambda p: int(p.name))


def _thin(
    previous: Path, *, keep_whole: int, keep_results: int
) -> tuple[tuple[Path, ...], tuple[Path, ...]]:
    runs = _numbered(previous)
    removed = runs[: max(0, len(runs) - max(keep_results, keep_whole))]
    for run in removed:
        shutil.rmtree(run)
    thinned = []
    for run in runs[len(removed) : max(0, len(runs) - keep_whole)]:
        extra = [n for n in RESULT_NAMES if n != "result.json" and os.path.lexists(run / n)]
        for name in extra:
            if (run / name).is_dir():
                shutil.rmtree(run / name)
            else:
                (run / name).unlink()
        if extra:
            thinned.append(run)
    return tuple(thinned), tuple(removed)
