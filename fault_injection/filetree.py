"""The tree under the root as the operations seen so far have made it.

Inodes of the real file system (device, number) are given small integers in the order in which they
are met; a number that is used again after its file died is a new inode. Directories outside the
root that something was moved in from, or out to, are nodes that no name under the root leads to:
a rename from or to them is then a rename like any other.

The names and sizes kept here predict nothing; they are compared with the real tree in the end, so
that a change which no call announced is noticed.
"""

import os
import stat
from collections.abc import Iterator

from fault_injection.spool import Spool, Ticket
from fault_injection.trace import ROOT_INODE, FileType, Node

Key = tuple[int, int]


def file_type(mode: int) -> FileType:
    """The trace's word for a mode's type."""
    if stat.S_ISREG(mode):
        return FileType.FILE
    if stat.S_ISDIR(mode):
        return FileType.DIRECTORY
    return FileType.SYMLINK if stat.S_ISLNK(mode) else FileType.OTHER


def recorded_mode(mode: int) -> int:
    """Permission bits; the whole mode for a FIFO, socket or device, whose type says what it is."""
    return mode if file_type(mode) is FileType.OTHER else stat.S_IMODE(mode)


def allocated_bytes(root: str) -> int:
    """What the files below ``root`` take on their disk. One that disappears is not counted."""
    total = 0
    for directory, _, names in os.walk(root):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_blocks * 512
            except OSError:
                continue
    return total


def read_regular(path: bytes) -> int:
    """Open a regular file for reading; never waits, whatever the path has become meanwhile."""
    return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)


def store_file(path: bytes, spool: Spool, size: int) -> Ticket:
    """Put a regular file's content into the spool."""
    fd = read_regular(path)
    try:
        return spool.add_file(fd, 0, size)
    finally:
        os.close(fd)


class FileTree:
    """Live model of one attempt's tree."""

    def __init__(self, root: bytes) -> None:
        self.root = root
        self.inodes: dict[Key, int] = {}
        self.types: dict[int, FileType] = {}
        self.sizes: dict[int, int] = {}
        self.entries: dict[int, dict[bytes, int]] = {}
        self.unreadable = ""
        self._dead: set[Key] = set()
        self._start: list[tuple[Node, Ticket]] = []
        self._next = ROOT_INODE

    # Taking in the starting tree.

    def scan(self, spool: Spool) -> None:
        """Take in what is under the root now, contents included: it is durable."""
        status = os.stat(self.root)
        self._scan(self.root, self.add((status.st_dev, status.st_ino), FileType.DIRECTORY), spool)

    def _scan(self, path: bytes, inode: int, spool: Spool) -> None:
        # Parents come before children, and names in order: the numbers are the same in every run.
        queue = [(path, inode)]
        while queue:
            path, inode = queue.pop(0)
            mode = stat.S_IMODE(os.stat(path).st_mode)
            for name in sorted(os.listdir(path)):
                below = path + b"/" + name
                status = os.lstat(below)
                key = (status.st_dev, status.st_ino)
                kind = file_type(status.st_mode)
                child = self.inodes.get(key)
                if child is None:
                    child = self.add(key, kind, status.st_size)
                    if kind is FileType.DIRECTORY:
                        queue.append((below, child))
                    else:
                        self._start.append(self._leaf(below, child, status, spool))
                self.entries[inode][name] = child
            node = Node(inode, FileType.DIRECTORY, mode, dict(self.entries[inode]))
            self._start.append((node, Ticket("", 0)))

    def _leaf(
        self, path: bytes, inode: int, status: os.stat_result, spool: Spool
    ) -> tuple[Node, Ticket]:
        kind = file_type(status.st_mode)
        ticket = Ticket("", 0)
        target = os.readlink(path) if kind is FileType.SYMLINK else b""
        if kind is FileType.FILE and status.st_size:
            try:
                ticket = store_file(path, spool, status.st_size)
            except PermissionError:
                self.unreadable = self.unreadable or f"{self._show(path)} cannot be read"
        node = Node(inode, kind, recorded_mode(status.st_mode), size=ticket.size, target=target)
        return node, ticket

    def start(self) -> dict[int, Node]:
        """The starting tree, once the spool knows all keys."""
        nodes = {}
        for node, ticket in self._start:
            nodes[node.inode] = Node(
                node.inode,
                node.type,
                node.mode,
                node.entries,
                ticket.key,
                node.size,
                node.target,
            )
        return {inode: nodes[inode] for inode in sorted(nodes)}

    # Following operations.

    def add(self, key: Key, kind: FileType, size: int = 0) -> int:
        """A new inode."""
        inode = self._next
        self._next += 1
        self.inodes[key] = inode
        self._dead.discard(key)
        self.types[inode] = kind
        if kind is FileType.DIRECTORY:
            self.entries[inode] = {}
        elif kind is FileType.FILE:
            self.sizes[inode] = size
        return inode

    def __contains__(self, key: object) -> bool:
        """Whether a living inode of the tree has this key."""
        return key in self.inodes and key not in self._dead

    def bury(self, key: Key) -> None:
        """The last name is gone: only open descriptors still lead to it, and its number may be
        another file's any time."""
        self._dead.add(key)

    def directory(self, key: Key) -> int:
        """The inode of a directory; one outside the root that was not met before becomes a node.

        It is part of the starting tree: it was there, and nothing under the root leads to it.
        """
        inode = self.inodes.get(key)
        if inode is None or key in self._dead:
            inode = self.add(key, FileType.DIRECTORY)
            self._start.append((Node(inode, FileType.DIRECTORY, 0o755), Ticket("", 0)))
        return inode

    def lookup(self, parent: int, name: bytes) -> int:
        """The inode at a name, or -1."""
        return self.entries.get(parent, {}).get(name, -1)

    def put(self, parent: int, name: bytes, inode: int) -> None:
        """Give an inode a name; whatever had it loses it."""
        self.entries.setdefault(parent, {})[name] = inode

    def remove(self, parent: int, name: bytes) -> None:
        """Take a name away."""
        self.entries.get(parent, {}).pop(name, None)

    # Comparing with the truth.

    def differences(self) -> Iterator[str]:
        """Where the real tree is not what the operations made: a sentence for each place."""
        queue = [(self.root, ROOT_INODE)]
        while queue:
            path, inode = queue.pop()
            try:
                real = set(os.listdir(path))
            except OSError as error:
                yield f"{self._show(path)}: {error.strerror}"
                continue
            known = self.entries.get(inode, {})
            for name in sorted(real ^ set(known)):
                word = "appeared" if name in real else "vanished"
                yield f"{self._show(path + b'/' + name)} {word} without a call that was seen"
            for name in sorted(real & set(known)):
                below, child = path + b"/" + name, known[name]
                status = os.lstat(below)
                if self.inodes.get((status.st_dev, status.st_ino)) != child:
                    yield f"{self._show(below)} is another file than the calls that were seen made"
                elif stat.S_ISDIR(status.st_mode):
                    queue.append((below, child))
                elif stat.S_ISREG(status.st_mode) and status.st_size != self.sizes[child]:
                    yield (
                        f"{self._show(below)} has {status.st_size} bytes, by the calls that were "
                        f"seen {self.sizes[child]}"
                    )

    def _show(self, path: bytes) -> str:
        return path[len(self.root) + 1 :].decode("utf-8", "backslashreplace")
