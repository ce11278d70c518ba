"""The trace: what one attempt did to the tree under its root, in order, over inodes.

A trace is a starting tree (durable), a totally ordered list of operations, and the bytes that were
written, stored once each by content. It is what the recorder produces and what crash states, lints
and explanations are computed from. It is plain data: no descriptors, no paths of the host, no
times.

Inodes are small integers; 0 is the root directory. Names are bytes (any byte but NUL and slash).
``began`` and ``ended`` are ticks of one logical clock of the attempt: operation X happened before
operation Y when ``X.ended < Y.began``; two operations whose intervals overlap are concurrent, and
an fsync orders only what had ended when it began.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

ROOT_INODE = 0


class Kind(StrEnum):
    """What an operation does. Namespace, content, synchronisation, and what the world saw."""

    CREATE = "create"  # a regular file; with an empty name: O_TMPFILE, an inode without a name
    MKDIR = "mkdir"
    SYMLINK = "symlink"
    LINK = "link"
    RENAME = "rename"
    EXCHANGE = "exchange"
    UNLINK = "unlink"
    RMDIR = "rmdir"
    WRITE = "write"
    TRUNCATE = "truncate"
    ALLOCATE = "allocate"  # fallocate mode 0 or KEEP_SIZE
    PUNCH = "punch"  # PUNCH_HOLE or ZERO_RANGE: zeros, length as ``keep_size`` says
    COLLAPSE = "collapse"
    INSERT = "insert"
    FSYNC = "fsync"
    FDATASYNC = "fdatasync"
    SYNC = "sync"  # sync, syncfs: everything
    OUTPUT = "output"  # bytes that reached stdout or stderr
    META = "meta"  # chmod, chown, utimes, xattr: a place to crash, no effect on a state


class FileType(StrEnum):
    """What an inode is. FIFOs, sockets and devices are ``OTHER``: present, never opened."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation. Fields that a kind does not use keep their defaults.

    ===========  ==============================================================================
    kind         fields
    ===========  ==============================================================================
    create,      ``inode`` is new, ``parent``/``name`` its name
    mkdir
    symlink      the same, and ``target``
    link         ``inode`` gets the further name ``parent``/``name``
    rename       ``inode`` moves from ``parent``/``name`` to ``new_parent``/``new_name``;
                 ``replaced`` is the inode that lost that name, or -1
    exchange     ``inode`` at ``parent``/``name`` and ``replaced`` at ``new_parent``/``new_name``
                 swap their names
    unlink,      ``inode`` loses ``parent``/``name``
    rmdir
    write        ``size`` bytes ``blob`` at ``offset`` of ``inode``. ``synced`` is "" or "data"
                 (O_DSYNC) or "all" (O_SYNC): the sync that the same call implies
    truncate     ``inode`` gets length ``size``
    allocate ... ``offset``, ``size``, ``keep_size``
    fsync,       ``inode``
    fdatasync
    output       ``stream`` "stdout" or "stderr", ``blob``, ``size``
    ===========  ==============================================================================

    ``place`` is the semantic label, ``<call>-<name>#<occurrence>``; ``call`` the system call's own
    name; ``site`` where the program made it ("train.py:41 save()"), when that is known; ``stack``
    that line with its callers.
    """

    index: int
    kind: Kind
    began: int
    ended: int
    thread: int = 0
    inode: int = -1
    parent: int = -1
    name: bytes = b""
    new_parent: int = -1
    new_name: bytes = b""
    replaced: int = -1
    offset: int = 0
    size: int = 0
    blob: str = ""
    keep_size: bool = False
    synced: str = ""
    target: bytes = b""
    mode: int = 0
    stream: str = ""
    place: str = ""
    call: str = ""
    site: str = ""
    stack: str = ""


@dataclass(frozen=True, slots=True)
class Node:
    """An inode of the starting tree. ``entries`` for directories, ``blob``/``size`` for files."""

    inode: int
    type: FileType
    mode: int
    entries: Mapping[bytes, int] = field(default_factory=dict)
    blob: str = ""
    size: int = 0
    target: bytes = b""


class Blobs(Protocol):
    """Bytes by their sha256 (hex). ``""`` is the key of no bytes."""

    def read(self, key: str, offset: int = 0, size: int = -1) -> bytes:
        """``size`` bytes from ``offset`` (-1: to the end)."""
        ...

    def path(self, key: str) -> str:
        """A file that holds exactly these bytes, for copying without reading them."""
        ...


@dataclass(frozen=True, slots=True)
class Trace:
    """Starting tree, operations and blobs of one attempt."""

    start: Mapping[int, Node]
    operations: tuple[Operation, ...]
    blobs: Blobs

    def mutations(self) -> Iterator[Operation]:
        """The operations that change or sync the tree (no output)."""
        return (op for op in self.operations if op.kind is not Kind.OUTPUT)
