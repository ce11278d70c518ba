"""What may be deleted, and how: the spec's step 6.

Only two kinds of names are ever deleted: those that our own protocol makes for things in passing
(``step-<nnnnnn>.tmp`` and the like), and step directories that verify and are no longer wanted:
beyond the ``keep`` newest of this line, or on a line that was abandoned by an explicit rewind.
What does not verify is somebody else's, or evidence: it is reported once and left alone, and does
not count, so that a corrupt newer one never pushes out a good older one.

A directory is deleted by renaming it to a temporary name, making that durable, and only then
unlinking what is in it: half a directory is never seen under a step's name.
"""

import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fault_injection.points import point
from tinyllm.durable import Directory, doing, rename, sync_directory
from tinyllm.errors import StorageFailed, storage_failed
from tinyllm.paths import aside_name, classify, step_name
from tinyllm.reader import NOT_DAMAGE, Found
from tinyllm.verification import verify_directory

# Errors that mean "not now" or "not yours": reported, and left to the next save.
_LEAVE_IT = frozenset({errno.ENOTEMPTY, errno.EBUSY, errno.EACCES, errno.EPERM, errno.ETXTBSY})
_MAX_DEPTH = 8


def _say_nothing(name: str, reason: str) -> None:
    """The default report."""


@dataclass(slots=True)
class Line:
    """What one process knows about its ckpt/ directory from one save to the next.

    ``base`` names the directory it went on from, ``pointer`` the one that LATEST names ("" for
    none). ``good`` are steps that it wrote or verified, ``bad`` those found not to verify.
    ``abandoned`` are the steps after an explicit rewind, deleted once this line is durable.
    ``tell`` gets each (name, reason) once.
    """

    base: str = ""
    pointer: str = ""
    good: set[int] = field(default_factory=set)
    bad: set[int] = field(default_factory=set)
    abandoned: frozenset[int] = frozenset()
    tell: Callable[[str, str], None] = _say_nothing
    told: set[tuple[str, str]] = field(default_factory=set)

    def report(self, name: str, reason: str) -> None:
        """Tell it, unless it was told before."""
        if (name, reason) not in self.told:
            self.told.add((name, reason))
            self.tell(name, reason)

    def saved(self, step: int) -> None:
        """``step`` is durable, and this process wrote it."""
        self.good.add(step)
        self.bad.discard(step)
        self.abandoned -= {step}


def line_from(found: Found, *, tell: Callable[[str, str], None]) -> Line:
    """The line that goes on from what was found (or begins, when nothing was)."""
    checkpoint = found.checkpoint
    return Line(
        base=step_name(checkpoint.step) if checkpoint else "",
        pointer=found.pointer,
        good={checkpoint.step} if checkpoint else set(),
        abandoned=frozenset(found.newer) if found.rewound else frozenset(),
        tell=tell,
    )


def doomed_steps(
    steps: Iterable[int],
    *,
    newest: int,
    keep: int | None,
    abandoned: frozenset[int],
    verifies: Callable[[int], bool],
) -> list[int]:
    """The steps to delete, ascending, when ``newest`` was just saved.

    Steps after ``newest`` neither count nor go, unless they are ``abandoned``.
    """
    descending = sorted(steps, reverse=True)
    doomed = [s for s in descending if s > newest and s in abandoned and verifies(s)]
    kept = 0
    for step in descending:
        if step > newest or keep is None or not (step == newest or verifies(step)):
            continue
        kept += 1
        if kept > keep:
            doomed.append(step)
    return sorted(doomed)


def retire(ckpt: Directory, names: set[str], *, newest: int, keep: int | None, line: Line) -> None:
    """Delete what is no longer wanted. ``names`` are the entries of ``ckpt``, kept up to date."""
    listing = classify(names)
    for stray in listing.strays:
        line.report(stray, "is not ours: it is left alone")
    doomed = doomed_steps(
        listing.steps,
        newest=newest,
        keep=keep,
        abandoned=line.abandoned,
        verifies=lambda step: _verifies(ckpt, step, line),
    )
    renamed = [step for step in doomed if _rename_away(ckpt, step_name(step), names, line)]
    if renamed:
        sync_directory(ckpt, unsupported=line.report)
        point("retention.renames-durable")
    for name in classify(names).temporary:
        try:
            remove_tree(ckpt, name)
        except StorageFailed as error:
            _tolerate(error, name, line)
            continue
        names.discard(name)
        point("retention.leftover-removed")


def _verifies(ckpt: Directory, step: int, line: Line) -> bool:
    if step in line.good or step in line.bad:
        return step in line.good
    verdict = verify_directory(step_name(step), parent=ckpt)
    if verdict.verifies:
        line.good.add(step)
        return True
    if not any(problem.errno in NOT_DAMAGE for problem in verdict.problems):
        line.bad.add(step)
    line.report(step_name(step), f"does not verify and is left alone: {verdict.why()}")
    return False


def _rename_away(ckpt: Directory, name: str, names: set[str], line: Line) -> bool:
    aside = aside_name(name, names)
    try:
        rename(ckpt, name, aside)
    except StorageFailed as error:
        _tolerate(error, name, line)
        return False
    names.discard(name)
    names.add(aside)
    point("retention.step-renamed-away")
    return True


def _tolerate(error: StorageFailed, name: str, line: Line) -> None:
    """What is gone already is fine; what cannot go now is reported; the rest is a failed save."""
    if error.errno == errno.ENOENT:
        return
    if error.errno not in _LEAVE_IT:
        raise error
    line.report(name, f"could not be removed now: {error}")


def remove_tree(directory: Directory, name: str, *, depth: int = 0) -> None:
    """Remove ``name`` whatever it is; a symbolic link is unlinked, never followed."""
    path = directory.at(name)
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(name, flags, dir_fd=directory.fd)
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise storage_failed(path, "remove", error) from error
        with doing("remove", path):
            os.unlink(name, dir_fd=directory.fd)
        return
    try:
        _empty(Directory(fd, path), depth=depth)
    finally:
        os.close(fd)
    with doing("remove the directory", path):
        os.rmdir(name, dir_fd=directory.fd)


def _empty(directory: Directory, *, depth: int) -> None:
    if depth >= _MAX_DEPTH:
        raise StorageFailed(directory.path, "is nested too deeply to remove", errno=errno.ENOTEMPTY)
    with doing("list the directory", directory.path):
        names = sorted(os.listdir(directory.fd))
    for name in names:  # the manifest comes first: what is left no longer verifies
        try:
            os.unlink(name, dir_fd=directory.fd)
        except OSError as error:
            if error.errno not in (errno.EISDIR, errno.EPERM):
                raise storage_failed(directory.at(name), "remove", error) from error
            remove_tree(directory, name, depth=depth + 1)
        point("retention.file-unlinked")
