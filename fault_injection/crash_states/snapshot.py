"""A real directory as a visible tree.

Small files are read into memory; of larger ones the digest is computed and the bytes stay where
they are, so the directory must not change while the tree is in use. FIFOs, sockets and devices are
seen and not opened. Symlinks are not followed.
"""

import os
import stat
from collections.abc import Iterator

from fault_injection.crash_states.content import (
    CHUNK_BYTES,
    ContentStore,
    digest_of_chunks,
    of_blob,
)
from fault_injection.crash_states.tree import Entry, VisibleTree, make_tree
from fault_injection.trace import FileType

_KEPT_BYTES = 64 << 10  # files up to this size are kept in memory


class _FilesAsBlobs:
    """The files of a directory as blobs: the key is the file's path, escaped."""

    def __init__(self, directory: bytes) -> None:
        self.directory = directory
        self.kept: dict[str, bytes] = {}

    def read(self, key: str, offset: int = 0, size: int = -1) -> bytes:
        if key in self.kept:
            data = self.kept[key]
            return data[offset:] if size < 0 else data[offset : offset + size]
        with open(self.path(key), "rb") as file:
            file.seek(offset)
            return file.read(size if size >= 0 else None)

    def path(self, key: str) -> str:
        return os.fsdecode(os.path.join(self.directory, os.fsencode(key)))


def snapshot(directory: str | bytes) -> VisibleTree:
    """The tree under ``directory``, which is its root. OSError as the system says it."""
    root = os.fsencode(directory)
    blobs = _FilesAsBlobs(root)
    found = list(_walk(root, b""))
    names: dict[tuple[int, int], int] = {}
    for _, status in found:
        if not stat.S_ISDIR(status.st_mode):
            inode = (status.st_dev, status.st_ino)
            names[inode] = names.get(inode, 0) + 1
    groups = {inode: number for number, inode in enumerate(i for i, n in names.items() if n > 1)}
    entries: dict[bytes, Entry] = {}
    for path, status in found:
        link = groups.get((status.st_dev, status.st_ino), -1)
        entries[path] = _entry(blobs, root, path, status, link)
    return make_tree(entries, ContentStore(blobs))


def _walk(root: bytes, path: bytes) -> Iterator[tuple[bytes, os.stat_result]]:
    todo = [path]
    while todo:
        here = todo.pop()
        with os.scandir(os.path.join(root, here) if here else root) as listing:
            children = sorted(listing, key=lambda child: child.name)
        for child in children:
            below = here + b"/" + child.name if here else child.name
            yield below, child.stat(follow_symlinks=False)
            if child.is_dir(follow_symlinks=False):
                todo.append(below)


def _entry(
    blobs: _FilesAsBlobs, root: bytes, path: bytes, status: os.stat_result, link: int
) -> Entry:
    mode = stat.S_IMODE(status.st_mode)
    full = os.path.join(root, path)
    if stat.S_ISLNK(status.st_mode):
        return Entry(FileType.SYMLINK, 0o777, target=os.readlink(full), link=link)
    if stat.S_ISDIR(status.st_mode):
        return Entry(FileType.DIRECTORY, mode)
    if not stat.S_ISREG(status.st_mode):
        return Entry(FileType.OTHER, mode, link=link)
    key = os.fsdecode(path)
    with open(full, "rb") as file:
        if status.st_size <= _KEPT_BYTES:
            data = file.read()
            blobs.kept[key] = data
            size, digest = len(data), digest_of_chunks((data,), len(data))
        else:
            size = status.st_size
            chunks = (file.read(min(CHUNK_BYTES, size - at)) for at in range(0, size, CHUNK_BYTES))
            digest = digest_of_chunks(chunks, size)
    return Entry(FileType.FILE, mode, of_blob(key, size), digest, link=link)
