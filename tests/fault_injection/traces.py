"""A builder of traces for tests: a small file system in memory that writes down what is done.

``Build()`` starts with an empty root, or with the files given; each method is one operation, with
paths as text. The bytes stay in memory; ``blobs.path`` writes them out where a test needs a file.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from fault_injection.crash_states import enumerate_states
from fault_injection.trace import ROOT_INODE, FileType, Kind, Node, Operation, Trace


@dataclass
class MemoryBlobs:
    """Bytes by their sha256."""

    by_key: dict[str, bytes] = field(default_factory=dict)

    def add(self, data: bytes) -> str:
        if not data:
            return ""
        key = hashlib.sha256(data).hexdigest()
        self.by_key[key] = data
        return key

    def read(self, key: str, offset: int = 0, size: int = -1) -> bytes:
        data = self.by_key[key] if key else b""
        return data[offset:] if size < 0 else data[offset : offset + size]

    def path(self, key: str) -> str:
        place = Path(tempfile.gettempdir()) / f"blob-{key}"
        place.write_bytes(self.by_key[key] if key else b"")
        return str(place)


class Build:
    """Operations one after the other, or overlapping where a test says so with ``overlaps``."""

    def __init__(self, files: Mapping[str, bytes | None] | None = None) -> None:
        """``files``: path to content; None makes a directory. All of it is durable."""
        self.blobs = MemoryBlobs()
        self.directories: dict[int, dict[bytes, int]] = {ROOT_INODE: {}}
        self.sizes: dict[int, int] = {}
        self.start: dict[int, Node] = {}
        self.operations: list[Operation] = []
        self.clock = 0
        self.next_inode = 1
        self.counts: dict[str, int] = {}
        for path, data in sorted((files or {}).items()):
            parent, name = self.slot(path)
            inode = self._new_inode()
            self.directories[parent][name] = inode
            if data is None:
                self.directories[inode] = {}
                self.start[inode] = Node(inode, FileType.DIRECTORY, 0o755)
            else:
                self.sizes[inode] = len(data)
                self.start[inode] = Node(
                    inode, FileType.FILE, 0o644, blob=self.blobs.add(data), size=len(data)
                )
        self.start[ROOT_INODE] = Node(ROOT_INODE, FileType.DIRECTORY, 0o755)
        for inode, node in list(self.start.items()):
            if node.type is FileType.DIRECTORY:
                entries = dict(self.directories[inode])
                self.start[inode] = Node(inode, node.type, node.mode, entries=entries)

    def trace(self) -> Trace:
        return Trace(start=self.start, operations=tuple(self.operations), blobs=self.blobs)

    def _new_inode(self) -> int:
        inode = self.next_inode
        self.next_inode += 1
        return inode

    def inode(self, path: str | int) -> int:
        if isinstance(path, int):
            return path
        at = ROOT_INODE
        for part in [p for p in path.split("/") if p]:
            at = self.directories[at][part.encode()]
        return at

    def slot(self, path: str) -> tuple[int, bytes]:
        above, _, name = path.rpartition("/")
        return self.inode(above), name.encode()

    def _add(self, kind: Kind, label: str, **fields: object) -> int:
        self.counts[label] = self.counts.get(label, 0) + 1
        op = Operation(
            index=len(self.operations),
            kind=kind,
            began=self.clock,
            ended=self.clock + 1,
            place=f"{label}#{self.counts[label]}",
            **fields,  # type: ignore[arg-type]
        )
        self.clock += 10  # room for overlap
        self.operations.append(op)
        return op.index

    def overlap(self, first: int, last: int) -> None:
        """Make the operations from ``first`` to ``last`` concurrent: each begins, in their order,
        before any has ended, and they end in that order too."""
        began = self.operations[first].began
        ended = self.operations[last].ended
        for index in range(first, last + 1):
            later = index - first
            self.operations[index] = replace(
                self.operations[index], began=began + later, ended=ended + later
            )

    def create(self, path: str, data: bytes | None = None) -> int:
        """A new file; with ``data`` also one write of it."""
        parent, name = self.slot(path)
        inode = self._new_inode()
        index = self._add(
            Kind.CREATE,
            f"create-{name.decode()}",
            inode=inode,
            parent=parent,
            name=name,
            mode=0o644,
        )
        self.directories[parent][name] = inode
        self.sizes[inode] = 0
        if data is not None:
            self.write(path, data)
        return index

    def tmpfile(self, data: bytes) -> int:
        """O_TMPFILE with one write; gives the inode."""
        inode = self._new_inode()
        self._add(Kind.CREATE, "create-tmpfile", inode=inode, mode=0o644)
        self.sizes[inode] = 0
        self.write(inode, data)
        return inode

    def write(
        self, path: str | int, data: bytes, *, offset: int | None = None, synced: str = ""
    ) -> int:
        """A write; an append unless ``offset`` is given."""
        inode = self.inode(path)
        at = self.sizes[inode] if offset is None else offset
        self.sizes[inode] = max(self.sizes[inode], at + len(data))
        name = path.rpartition("/")[2] if isinstance(path, str) else "inode"
        return self._add(
            Kind.WRITE,
            f"write-{name}",
            inode=inode,
            offset=at,
            size=len(data),
            blob=self.blobs.add(data),
            synced=synced,
        )

    def truncate(self, path: str, size: int = 0, *, call: str = "ftruncate") -> int:
        inode = self.inode(path)
        self.sizes[inode] = size
        return self._add(
            Kind.TRUNCATE,
            f"truncate-{path.rpartition('/')[2]}",
            inode=inode,
            size=size,
            call=call,
        )

    def mkdir(self, path: str) -> int:
        parent, name = self.slot(path)
        inode = self._new_inode()
        self.directories[parent][name] = inode
        self.directories[inode] = {}
        return self._add(
            Kind.MKDIR, f"mkdir-{name.decode()}", inode=inode, parent=parent, name=name, mode=0o755
        )

    def symlink(self, target: str, path: str) -> int:
        parent, name = self.slot(path)
        inode = self._new_inode()
        self.directories[parent][name] = inode
        return self._add(
            Kind.SYMLINK,
            f"symlink-{name.decode()}",
            inode=inode,
            parent=parent,
            name=name,
            target=target.encode(),
        )

    def link(self, source: str | int, path: str) -> int:
        inode = self.inode(source)
        parent, name = self.slot(path)
        self.directories[parent][name] = inode
        return self._add(Kind.LINK, f"link-{name.decode()}", inode=inode, parent=parent, name=name)

    def rename(self, old: str, new: str) -> int:
        parent, name = self.slot(old)
        new_parent, new_name = self.slot(new)
        replaced = self.directories[new_parent].get(new_name, -1)
        inode = self.directories[parent].pop(name)
        self.directories[new_parent][new_name] = inode
        return self._add(
            Kind.RENAME,
            f"rename-{new_name.decode()}",
            inode=inode,
            parent=parent,
            name=name,
            new_parent=new_parent,
            new_name=new_name,
            replaced=replaced,
        )

    def exchange(self, one: str, other: str) -> int:
        parent, name = self.slot(one)
        new_parent, new_name = self.slot(other)
        inode, replaced = self.inode(one), self.inode(other)
        self.directories[parent][name] = replaced
        self.directories[new_parent][new_name] = inode
        return self._add(
            Kind.EXCHANGE,
            f"exchange-{new_name.decode()}",
            inode=inode,
            parent=parent,
            name=name,
            new_parent=new_parent,
            new_name=new_name,
            replaced=replaced,
        )

    def unlink(self, path: str) -> int:
        parent, name = self.slot(path)
        inode = self.directories[parent].pop(name)
        return self._add(
            Kind.UNLINK, f"unlink-{name.decode()}", inode=inode, parent=parent, name=name
        )

    def rmdir(self, path: str) -> int:
        parent, name = self.slot(path)
        inode = self.directories[parent].pop(name)
        return self._add(
            Kind.RMDIR, f"rmdir-{name.decode()}", inode=inode, parent=parent, name=name
        )

    def fsync(self, path: str | int = "") -> int:
        """fsync of a file or directory; the root by default."""
        return self._add(Kind.FSYNC, f"fsync-{path or 'root'}", inode=self.inode(path))

    def fdatasync(self, path: str | int = "") -> int:
        return self._add(Kind.FDATASYNC, f"fdatasync-{path or 'root'}", inode=self.inode(path))

    def sync(self) -> int:
        return self._add(Kind.SYNC, "sync")

    def output(self, text: str) -> int:
        data = text.encode()
        return self._add(
            Kind.OUTPUT,
            "output-stdout",
            stream="stdout",
            blob=self.blobs.add(data),
            size=len(data),
        )


def shapes_at_the_end(build: Build, model: str) -> set[tuple[tuple[str, bytes], ...]]:
    """Every enumerated outcome of a crash after the last operation: sorted (path, bytes) pairs.

    Directories have a trailing slash and no bytes. The crash place is told apart from the earlier
    ones by an output that only it has seen.
    """
    build.output("cut here")
    trace = build.trace()
    shapes = set()
    for state in enumerate_states(trace, model=model):
        if state.outputs == 1:
            tree = state.tree()
            shapes.add(
                tuple(
                    sorted(
                        (path.decode(), tree.read(path))
                        if entry.content is not None
                        else (path.decode() + "/", b"")
                        for path, entry in tree.entries.items()
                    )
                )
            )
    return shapes
