"""What a tree holds, path by path, so that two looks at it can be compared.

:func:`fingerprint` says of each path what it is, :func:`destroyed` what an earlier look had and a
later one has not. A checker uses the two to prove that a program which met damage destroyed nothing
that was complete. Special files are named, never opened; links are read, never followed.

Not covered: modes, owners, times and extended attributes.
"""

import hashlib
import os
import stat
from collections.abc import Collection, Mapping

_CHUNK_BYTES = 1 << 20


def sha256_of(path: str) -> str:
    """The sha256 of a regular file in hex; OSError for what cannot be opened."""
    digest = hashlib.sha256()
    # Never waits at a FIFO that took the file's place, never follows a link.
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb", buffering=0) as file:
        while chunk := file.read(_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def fingerprint(root: str, *, without: Collection[str] = ()) -> dict[str, str]:
    """What each path below ``root`` is, by its relative path: type and, for files, sha256.

    ``without``: paths that are left out, with all that is below them.
    """
    found = {}
    for directory, names, entries in os.walk(root):
        for name in sorted(names + entries):
            full = os.path.join(directory, name)
            path = os.path.relpath(full, root)
            if any(path == left_out or path.startswith(left_out + "/") for left_out in without):
                continue
            found[path] = what_it_is(full)
    return dict(sorted(found.items()))


def what_it_is(path: str) -> str:
    """The type of one path and, for a readable file, its sha256, for a link its target."""
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        try:
            return f"file {sha256_of(path)}"
        except PermissionError:
            return f"file of {os.lstat(path).st_size} bytes, not readable"
    if stat.S_ISLNK(mode):
        return f"symlink to {os.readlink(path)}"
    return "directory" if stat.S_ISDIR(mode) else "special"


def destroyed(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """In words, what was in ``before`` and is gone or different; additions do not count."""
    return tuple(
        f"{path} is gone" if path not in after else f"{path} has changed"
        for path, was in sorted(before.items())
        if after.get(path) != was
    )
