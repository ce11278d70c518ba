"""Laying a visible tree out as real files.

Every file is a file of its own: nothing is shared with blobs or other states, because the program
that resumes may write in place. Only names that are hard links in the tree are hard links on the
disk. Small files are written from memory, large ones copied by the kernel. When the disk fills, or
anything else fails, what was laid out is removed again.

Files have the times of a moment ago, in the order in which they were last written: programs take
the newest.
"""

import contextlib
import errno
import os
import shutil
import time

from fault_injection.crash_states.content import Content, ContentStore
from fault_injection.crash_states.tree import VisibleTree, total_size_bytes
from fault_injection.trace import FileType

_BY_KERNEL_BYTES = 256 << 10  # pieces from this size on are copied by the kernel (sendfile)
# Between two writes: more than any file system's timestamps are coarse, and none gets old by it.
_APART_NS = 10_000_000


class LayoutError(OSError):
    """A crash state could not be laid out; nothing of it is left."""


def materialize(tree: VisibleTree, directory: str | bytes) -> None:
    """Lay ``tree`` out in ``directory``, which must be empty or not exist.

    LayoutError, naming the directory and the room that is needed, when that fails.
    """
    root = os.fsencode(directory)
    made_root = False
    try:
        os.mkdir(root, 0o755)
        made_root = True
    except FileExistsError:
        if os.listdir(root):
            raise LayoutError(
                errno.ENOTEMPTY, "a crash state needs an empty directory", os.fsdecode(root)
            ) from None
    try:
        _lay_out(tree, root)
    except OSError as error:
        erase(root, keep_root=not made_root)
        needed = total_size_bytes(tree.entries.values())
        hint = "; make room there, or use another directory" if _is_full(error) else ""
        raise LayoutError(
            error.errno,
            f"laying out a crash state of {needed} bytes failed: {os.strerror(error.errno or 0)}"
            + hint,
            os.fsdecode(root),
        ) from error
    except BaseException:
        erase(root, keep_root=not made_root)
        raise


def _is_full(error: OSError) -> bool:
    return error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def _lay_out(tree: VisibleTree, root: bytes) -> None:
    links: dict[int, bytes] = {}
    modes: list[tuple[bytes, int]] = []  # of directories, set last: one may be read-only
    store = tree.store
    prefix = root + b"/"
    last = max((entry.written for entry in tree.entries.values()), default=0)
    began_ns = time.time_ns() - (last + 1) * _APART_NS
    for path, entry in sorted(tree.entries.items()):
        full = prefix + path
        if entry.link >= 0:
            first = links.setdefault(entry.link, full)
            if first is not full:
                os.link(first, full, follow_symlinks=False)
                continue
        if entry.type is FileType.DIRECTORY:
            os.mkdir(full, 0o700)
            modes.append((full, entry.mode or 0o755))
        elif entry.content is not None:
            _write(store, entry.content, full, entry.mode)
            os.utime(full, ns=(began_ns + entry.written * _APART_NS,) * 2)
        elif entry.type is FileType.SYMLINK:
            os.symlink(entry.target or b".", full)
        else:
            # Present, and nothing that a program could read from by accident.
            os.mkfifo(full, entry.mode or 0o600)
    for full, mode in reversed(modes):
        os.chmod(full, mode)


def _write(store: ContentStore, content: Content, full: bytes, mode: int) -> None:
    fd = os.open(full, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if content.size <= _BY_KERNEL_BYTES:
            _write_all(fd, store.read(content))
        else:
            _write_pieces(store, content, fd)
        os.fchmod(fd, mode)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _write_pieces(store: ContentStore, content: Content, fd: int) -> None:
    for piece in content.pieces:
        if not piece.key:
            os.lseek(fd, piece.size, os.SEEK_CUR)  # a hole reads as zeros
        elif piece.size < _BY_KERNEL_BYTES:
            _write_all(fd, store.read(Content((piece,), piece.size)))
        else:
            source = os.open(store.blobs.path(piece.key), os.O_RDONLY | os.O_CLOEXEC)
            try:
                _copy(source, piece.offset, piece.size, fd)
            finally:
                os.close(source)
    os.ftruncate(fd, content.size)


def _copy(source: int, offset: int, size: int, fd: int) -> None:
    """``size`` bytes from ``offset`` of ``source`` to where ``fd`` stands."""
    while size:
        done = os.sendfile(fd, source, offset, min(size, 1 << 30))
        if done == 0:
            raise OSError(errno.EIO, "a stored blob is shorter than the trace says")
        offset, size = offset + done, size - done


def erase(directory: str | bytes, *, keep_root: bool = False) -> None:
    """Remove a laid-out tree, read-only directories included. Missing is fine."""
    root = os.fsencode(directory)
    for here, folders, _ in os.walk(root):
        for folder in folders:
            full = os.path.join(here, folder)
            if not os.path.islink(full):
                with contextlib.suppress(OSError):
                    os.chmod(full, 0o700)
    if not keep_root:
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(root)
        return
    with os.scandir(root) as listing:
        children = list(listing)
    for child in children:
        if child.is_dir(follow_symlinks=False):
            shutil.rmtree(child.path)
        else:
            os.unlink(child.path)
