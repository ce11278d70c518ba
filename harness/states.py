"""Crash states in bundles: packed so that they survive being sent about, unpacked safely.

A tree of plain files and directories is kept as a tree, which people can look into. What a copy
through an archive, a checkout or another system would lose makes it a tar instead: names that are
not plain text, symlinks, hard links, FIFOs, empty directories, unusual modes.

Unpacking trusts nothing: names that leave the destination, files below a symlink, devices, sparse
members and links to what is not there are refused by name; symlinks are made last, so that nothing
is ever written through one. The destination must be empty.

Not covered: owners, times, extended attributes; a resume does not depend on them.
"""

import os
import re
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from harness.errors import UsageError

MAX_MEMBERS = 1_000_000

_PLAIN = re.compile(r"[A-Za-z0-9_.,+=@~ -]{1,200}")
_COMMON_FILE_MODES = (0o600, 0o640, 0o644, 0o660, 0o664, 0o700, 0o755, 0o775)
_COMMON_DIRECTORY_MODES = (0o700, 0o750, 0o755, 0o775)


def size_bytes(tree: Path) -> int:
    """The bytes of all regular files below ``tree`` (holes count)."""
    return sum(e.st_size for _, e in _walk(tree) if stat.S_ISREG(e.st_mode))


def pack(tree: Path, target: Path) -> Path:
    """Copy the tree to the directory ``target``, or to ``<target>.tar``; returns which."""
    if _is_plain(tree):
        shutil.copytree(tree, target, symlinks=True, copy_function=_copy_file)
        return target
    archive = target.with_name(f"{target.name}.tar")
    with tarfile.open(
        archive, "w", format=tarfile.GNU_FORMAT, encoding="utf-8", errors="surrogateescape"
    ) as tar:
        for path, status in _walk(tree):
            if stat.S_ISSOCK(status.st_mode):
                continue  # a socket of a program that is gone: a resume can only unlink it
            member = tar.gettarinfo(path, arcname=os.path.relpath(path, tree))
            member.uid = member.gid = member.mtime = 0
            member.uname = member.gname = ""
            if member.isreg():
                with open(path, "rb") as file:
                    tar.addfile(member, file)
            else:
                tar.addfile(member)
    return archive


def packed(target: Path) -> Path | None:
    """The packed state at ``target`` or ``<target>.tar``, or None."""
    archive = target.with_name(f"{target.name}.tar")
    for path, wanted in ((target, stat.S_ISDIR), (archive, stat.S_ISREG)):
        try:
            if wanted(os.lstat(path).st_mode):
                return path
        except FileNotFoundError:
            continue
    return None


def unpack(state: Path, destination: Path) -> None:
    """Lay a packed state out in ``destination``, an empty or missing directory.

    Raises UsageError for a hostile or damaged one; the destination is then to be thrown away.
    """
    destination.mkdir(parents=True, exist_ok=True)
    if any(destination.iterdir()):
        raise UsageError(
            f"{destination} is not empty: a crash state is laid out in a new directory"
        )
    if state.is_dir():
        for path, status in _walk(state):
            if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
                raise UsageError(f"{path} is neither file nor directory: not as we pack it")
        shutil.copytree(state, destination, dirs_exist_ok=True, copy_function=_copy_file)
        return
    try:
        with tarfile.open(state, "r:", encoding="utf-8", errors="surrogateescape") as tar:
            _extract(tar, state, destination)
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"{state} is damaged: {error}") from error


def _extract(tar: tarfile.TarFile, state: Path, destination: Path) -> None:
    symlinks: list[tuple[Path, str]] = []
    modes: list[tuple[Path, int]] = []
    made = {destination}  # directories: the only places that something may be put in
    taken = {destination}
    for number, member in enumerate(tar):
        if number >= MAX_MEMBERS:
            raise UsageError(f"{state} has more than {MAX_MEMBERS:,} members")
        place = _inside(member.name, state, destination)
        if place in taken or place.parent not in made:
            raise UsageError(f"{state}: {member.name!r} comes twice, or is not below a directory")
        taken.add(place)
        if member.isdir():
            place.mkdir()
            made.add(place)
            modes.append((place, member.mode))
        elif member.issym():
            symlinks.append((place, member.linkname))
        elif member.islnk():
            source = _inside(member.linkname, state, destination)
            if not source.is_file():
                raise UsageError(
                    f"{state}: {member.name!r} links to {member.linkname!r}, not there"
                )
            os.link(source, place, follow_symlinks=False)
        elif member.isfifo():
            os.mkfifo(place, member.mode & 0o777)
        elif member.isreg() and not member.issparse():
            _write_member(tar, member, place)
            modes.append((place, member.mode))
        else:
            raise UsageError(f"{state}: {member.name!r} is of a kind that a state does not have")
    for place, target in symlinks:
        os.symlink(target, place)
    for place, mode in reversed(modes):  # directories after what is in them
        os.chmod(place, mode & 0o777)


def _inside(name: str, state: Path, destination: Path) -> Path:
    pure = PurePosixPath(name)
    if not name or pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("."):
        raise UsageError(f"{state}: the name {name!r} leads out of the state")
    return destination.joinpath(*pure.parts)


def _write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    source = tar.extractfile(member)
    assert source is not None  # it is a regular file
    with source, open(place, "xb") as target:
        shutil.copyfileobj(source, target)
        if target.tell() != member.size:
            raise UsageError(f"{place.name}: {member.name!r} is shorter than it says")


def _copy_file(source: str, target: str) -> str:
    """Content and mode, never through a symlink."""
    shutil.copyfile(source, target, follow_symlinks=False)
    shutil.copymode(source, target, follow_symlinks=False)
    return target


def _walk(tree: Path) -> Iterator[tuple[str, os.stat_result]]:
    """Everything below ``tree``, directories before what is in them, sorted by name."""
    pending = [os.fspath(tree)]
    while pending:
        with os.scandir(pending.pop()) as entries:
            found = sorted((e.path for e in entries), key=os.fsencode)
        for path in found:
            status = os.lstat(path)
            yield path, status
            if stat.S_ISDIR(status.st_mode):
                pending.append(path)


def _is_plain(tree: Path) -> bool:
    if not os.listdir(tree):
        return False  # an empty directory is what a checkout loses
    for path, status in _walk(tree):
        mode = stat.S_IMODE(status.st_mode)
        if not _PLAIN.fullmatch(os.path.basename(path)):
            return False
        if stat.S_ISREG(status.st_mode):
            if status.st_nlink > 1 or mode not in _COMMON_FILE_MODES:
                return False
        elif stat.S_ISDIR(status.st_mode):
            if mode not in _COMMON_DIRECTORY_MODES or not os.listdir(path):
                return False
        else:
            return False
    return True
