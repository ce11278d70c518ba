"""What a call that was let run has done: found out by looking, for its result is not shown to us.

A notification comes before its call and nothing comes after. But what the call asked for is known,
the tree before it was looked at, and most effects can be seen: a name that is there, a length, an
offset that moved (by how much tells a short write). A call that failed has left nothing to see and
gives no operation. What leaves no trace on the live system (a sync, an overwrite with the same
bytes) counts as done once its thread is out of the call.
"""

import os
import stat
from dataclasses import dataclass, field

from fault_injection.calls import O_TMPFILE_BIT, RENAME_EXCHANGE
from fault_injection.calls_content import RWF_APPEND, RWF_DSYNC, RWF_NOAPPEND, RWF_SYNC
from fault_injection.filetree import FileTree, file_type, read_regular, recorded_mode, store_file
from fault_injection.procfs import Location, View, fd_info, fd_status, fd_text, key_of, lstat
from fault_injection.requests import Request
from fault_injection.spool import Spool, Ticket
from fault_injection.trace import FileType, Kind

_O_ACCMODE, _O_APPEND, _O_DSYNC, _O_SYNC = 3, 0o2000, 0o10000, 0o4010000
_TAIL_BYTES = 4096

SYNCS = (Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC)
_UNSEEN = (*SYNCS, Kind.META)


@dataclass(slots=True)
class Draft:
    """An operation to be: the fields of ``trace.Operation`` that its kind uses, and its bytes."""

    kind: Kind
    inode: int = -1
    parent: int = -1
    name: bytes = b""
    new_parent: int = -1
    new_name: bytes = b""
    replaced: int = -1
    offset: int = 0
    size: int = 0
    ticket: Ticket | None = None
    keep_size: bool = False
    synced: str = ""
    target: bytes = b""
    mode: int = 0
    stream: str = ""


@dataclass(slots=True)
class Pending:
    """A call between its notification and its effect. ``began`` is a tick of the attempt's clock.

    ``drafts`` is None until the effect is known, and empty when there was none. ``wrote`` is the
    count that a supervisor answered with in place of running the call.
    """

    request: Request
    number: int
    args: tuple[int, ...]
    began: int
    place: str = ""
    site: str = ""
    offset: int = 0
    synced: str = ""
    data: Ticket | None = None
    reading: int = -1
    wrote: int | None = None
    slow: bool = False
    hopeless: bool = False
    ended: int = 0
    drafts: list[Draft] | None = None
    extra: list[Draft] = field(default_factory=list)


class Effects:
    """Prepares calls and finds out what they did, against one tree and its model."""

    def __init__(self, view: View, tree: FileTree, spool: Spool) -> None:
        self.view = view
        self.tree = tree
        self.spool = spool
        self.problem = ""

    # Before the call.

    def prepare(self, pending: Pending) -> None:
        """Take what must be taken before the call runs: its bytes, and where they will go."""
        request = pending.request
        if request.kind is Kind.OUTPUT:
            if request.vectors:
                pending.data = self.spool.add_memory(request.tid, request.vectors)
            return
        if request.kind is not Kind.WRITE:
            return
        info, status = fd_info(request.tid, request.fd), request.status
        if info is None or status is None or info.flags & _O_ACCMODE == os.O_RDONLY:
            pending.hopeless = True  # EBADF
            return
        append = info.flags & _O_APPEND and not request.flags & RWF_NOAPPEND
        if append or request.flags & RWF_APPEND:
            pending.offset = status.st_size
        else:
            pending.offset = info.position if request.offset < 0 else request.offset
        if info.flags & _O_SYNC == _O_SYNC or request.flags & RWF_SYNC:
            pending.synced = "all"
        elif info.flags & _O_DSYNC or request.flags & RWF_DSYNC:
            pending.synced = "data"
        if request.copies:
            path = b"/proc/%d/fd/%d" % (request.tid, request.fd)
            pending.reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        else:
            pending.data = self.spool.add_memory(request.tid, request.vectors)

    def release(self, pending: Pending) -> None:
        """Give back what :meth:`prepare` opened."""
        if pending.reading >= 0:
            os.close(pending.reading)
            pending.reading = -1

    # After the call.

    def look(self, pending: Pending, *, final: bool) -> list[Draft] | None:
        """The operations that the call was, none when it failed; None: nothing can be seen yet.

        ``final`` says that the call is over, so that what cannot be seen has not happened.
        """
        request, kind = pending.request, pending.request.kind
        if pending.hopeless:
            return []
        if kind is Kind.WRITE:
            return self._write(pending, final)
        if kind in _UNSEEN:
            return self._unseen(request) if final else None
        if kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK):
            drafts = self._create(request)
        elif kind in (Kind.UNLINK, Kind.RMDIR):
            drafts = self._unlink(request)
        elif kind in (Kind.RENAME, Kind.EXCHANGE):
            drafts = self._rename(request)
        elif kind is Kind.LINK:
            drafts = self._link(request)
        elif kind is Kind.TRUNCATE:
            drafts = self._truncate(request)
        else:
            drafts = self._allocate(request, final)
        return [] if drafts is None and final else drafts

    def _inode(self, request: Request) -> int | None:
        """The inode that a call works on; one that nobody has seen come is a problem."""
        status = request.status
        inode = None if status is None else self.tree.inodes.get(key_of(status))
        if inode is None and request.inside:
            name = request.label.decode("utf-8", "backslashreplace")
            self.problem = (
                self.problem or f"{name}: {request.name} on a file whose origin is unseen"
            )
        return inode

    def _create(self, request: Request) -> list[Draft] | None:
        where = request.first
        assert where is not None
        assert request.kind is not None
        if request.flags & O_TMPFILE_BIT:
            return self._create_nameless(request, where)
        status = lstat(where.path)
        if status is None:
            return None
        parent = self.tree.directory(where.parent_key)
        kind = file_type(status.st_mode)
        if self.tree.lookup(parent, where.name) >= 0:
            return []  # of two that wanted to make it, another has
        inode = self.tree.add(key_of(status), kind)
        self.tree.put(parent, where.name, inode)
        return [
            Draft(
                request.kind,
                inode=inode,
                parent=parent,
                name=where.name,
                mode=recorded_mode(status.st_mode),
                target=request.target,
            )
        ]

    def _create_nameless(self, request: Request, where: Location) -> list[Draft] | None:
        """O_TMPFILE: the new file is the open one that has no name and that we do not know."""
        for number in sorted(map(int, os.listdir(f"/proc/{request.tid}/fd"))):
            status = fd_status(request.tid, number)
            if status is None or status.st_nlink or key_of(status) in self.tree:
                continue
            text = fd_text(request.tid, number)
            if text.startswith(where.parent + b"/#") and text.endswith(b" (deleted)"):
                inode = self.tree.add(key_of(status), FileType.FILE)
                mode = recorded_mode(status.st_mode)
                parent = self.tree.directory(where.parent_key)
                return [Draft(Kind.CREATE, inode=inode, parent=parent, mode=mode)]
        return None

    def _unlink(self, request: Request) -> list[Draft] | None:
        where, before = request.first, request.status
        assert where is not None
        assert before is not None
        assert request.kind is not None
        now = lstat(where.path)
        if now is not None and os.path.samestat(now, before):
            return None
        inode = self._inode(request)
        if inode is None:
            return []
        parent = self.tree.directory(where.parent_key)
        self.tree.remove(parent, where.name)
        self._lost_a_name(before)
        return [Draft(request.kind, inode=inode, parent=parent, name=where.name)]

    def _lost_a_name(self, before: os.stat_result) -> None:
        if stat.S_ISDIR(before.st_mode) or before.st_nlink == 1:
            self.tree.bury(key_of(before))

    def _rename(self, request: Request) -> list[Draft] | None:
        first, second, moved = request.first, request.second, request.status
        assert first is not None
        assert second is not None
        assert moved is not None
        exchange = bool(request.flags & RENAME_EXCHANGE)
        there = lstat(second.path)
        here = lstat(first.path)
        if there is None or not os.path.samestat(there, moved):
            return None
        if here is not None and os.path.samestat(here, moved):
            return None
        drafts: list[Draft] = []
        parent = self.tree.directory(first.parent_key)
        new_parent = self.tree.directory(second.parent_key)
        inode = self._bring_in(drafts, moved, parent, first.name, second.path)
        replaced = -1
        if second.status is not None:
            if exchange:
                replaced = self._bring_in(
                    drafts, second.status, new_parent, second.name, first.path
                )
            else:
                replaced = self.tree.inodes.get(key_of(second.status), -1)
                self._lost_a_name(second.status)
        self.tree.remove(parent, first.name)
        if exchange:
            self.tree.put(parent, first.name, replaced)
        self.tree.put(new_parent, second.name, inode)
        drafts.append(
            Draft(
                Kind.EXCHANGE if exchange else Kind.RENAME,
                inode=inode,
                parent=parent,
                name=first.name,
                new_parent=new_parent,
                new_name=second.name,
                replaced=replaced,
            )
        )
        return drafts

    def _link(self, request: Request) -> list[Draft] | None:
        first, second, source = request.first, request.second, request.status
        assert second is not None
        assert source is not None
        there = lstat(second.path)
        if there is None or not os.path.samestat(there, source):
            return None
        drafts: list[Draft] = []
        if first is not None and first.parent_key != (0, 0) and source.st_nlink:
            origin, name = self.tree.directory(first.parent_key), first.name
        else:
            origin, name = self.tree.directory(second.parent_key), b""
        inode = self._bring_in(drafts, source, origin, name, second.path)
        parent = self.tree.directory(second.parent_key)
        self.tree.put(parent, second.name, inode)
        drafts.append(Draft(Kind.LINK, inode=inode, parent=parent, name=second.name))
        return drafts

    def _bring_in(
        self, drafts: list[Draft], status: os.stat_result, parent: int, name: bytes, path: bytes
    ) -> int:
        """The inode of something moved or linked; made, with its content, when it is from outside.

        Such content is durable unless the attempt has written it and not synced it since; then it
        is data not yet synced, as if just written.
        """
        if key_of(status) in self.tree:
            return self.tree.inodes[key_of(status)]
        kind = file_type(status.st_mode)
        inode = self.tree.add(key_of(status), kind, status.st_size)
        made = {FileType.DIRECTORY: Kind.MKDIR, FileType.SYMLINK: Kind.SYMLINK}
        drafts.append(
            Draft(
                made.get(kind, Kind.CREATE),
                inode=inode,
                parent=parent,
                name=name,
                mode=recorded_mode(status.st_mode),
                target=os.readlink(path) if kind is FileType.SYMLINK else b"",
            )
        )
        if name:
            self.tree.put(parent, name, inode)
        if kind is FileType.FILE and status.st_size:
            ticket = store_file(path, self.spool, status.st_size)
            drafts.append(Draft(Kind.WRITE, inode=inode, size=ticket.size, ticket=ticket))
        elif kind is FileType.DIRECTORY:
            for below in sorted(os.listdir(path)):
                child = path + b"/" + below
                self._bring_in(drafts, os.lstat(child), inode, below, child)
        content = self.tree.sizes.get(inode, 0) or len(self.tree.entries.get(inode, ()))
        if content and key_of(status) not in self.view.dirty:
            drafts.append(Draft(Kind.FSYNC, inode=inode))
        return inode

    def _truncate(self, request: Request) -> list[Draft] | None:
        size = self._size_now(request)
        if size is not None and size != request.size:
            return None
        inode = self._inode(request)
        if inode is None:
            return []
        self.tree.sizes[inode] = request.size
        return [Draft(Kind.TRUNCATE, inode=inode, size=request.size)]

    def _size_now(self, request: Request) -> int | None:
        """The length of the file a call worked on, None when no path leads there any more."""
        now, before = lstat(request.text), request.status
        if now is not None and before is not None and os.path.samestat(now, before):
            return now.st_size
        status = fd_status(request.tid, request.fd) if request.fd >= 0 else None
        if status is not None and before is not None and os.path.samestat(status, before):
            return status.st_size
        return None

    def _allocate(self, request: Request, final: bool) -> list[Draft] | None:
        before = request.status
        assert before is not None
        assert request.kind is not None
        keep = bool(request.flags & 1)
        now = self._size_now(request)
        end = request.offset + request.size
        size = before.st_size if keep else max(before.st_size, end)
        if request.kind is Kind.COLLAPSE:
            size = before.st_size - request.size
        elif request.kind is Kind.INSERT:
            size = before.st_size + request.size
        changed = now is not None and now != before.st_size
        if (now is not None and now != size) or not (changed or final):
            return None
        if request.kind is Kind.PUNCH and not _reads_zero(request):
            return None
        inode = self._inode(request)
        if inode is None:
            return []
        self.tree.sizes[inode] = size
        return [
            Draft(
                request.kind,
                inode=inode,
                offset=request.offset,
                size=request.size,
                keep_size=keep,
            )
        ]

    def _unseen(self, request: Request) -> list[Draft]:
        assert request.kind is not None
        if request.kind is Kind.SYNC:
            self.view.dirty.clear()
            return [Draft(Kind.SYNC)]
        status = request.status
        assert status is not None
        key = key_of(status)
        if request.inside:
            inode = self._inode(request)
        else:
            self.view.dirty.discard(key)
            inode = self.tree.inodes[key] if key in self.tree else None
        return [] if inode is None else [Draft(request.kind, inode=inode)]

    def _write(self, pending: Pending, final: bool) -> list[Draft] | None:
        request = pending.request
        count = pending.wrote
        if count is None:
            count = self._written(pending, final)
        if count is None:
            return None
        inode = self._inode(request)
        if count <= 0 or inode is None:
            return []
        if request.copies:
            ticket = self.spool.add_file(pending.reading, pending.offset, count)
        else:
            assert pending.data is not None
            ticket = self.spool.prefix(pending.data, count)
        end = pending.offset + ticket.size
        self.tree.sizes[inode] = max(self.tree.sizes.get(inode, 0), end)
        return [
            Draft(
                Kind.WRITE,
                inode=inode,
                offset=pending.offset,
                size=ticket.size,
                ticket=ticket,
                synced=pending.synced,
            )
        ]

    def _written(self, pending: Pending, final: bool) -> int | None:
        """How many bytes were written; None while nothing of them can be seen."""
        request, before = pending.request, pending.request.status
        assert before is not None
        end = pending.offset + request.size
        status = fd_status(request.tid, request.fd)
        if request.offset < 0 and status is not None and os.path.samestat(status, before):
            info = fd_info(request.tid, request.fd)
            if info is not None:
                moved = info.position - pending.offset
                if 0 < moved <= request.size:
                    return moved
                if moved == 0:
                    return 0 if final else None
        size = self._size_now(request)
        if size is None:
            return request.size if final else None
        if end > before.st_size:
            if size >= end:
                return request.size
            if size > before.st_size or final:
                return max(0, size - pending.offset) if size > before.st_size else 0
            return None
        if request.copies or self._tail_is_there(pending):
            return request.size if final or not request.copies else None
        return 0 if final else None

    def _tail_is_there(self, pending: Pending) -> bool:
        """Whether the last bytes of an overwrite are in the file now."""
        request = pending.request
        assert pending.data is not None
        size = min(request.size, _TAIL_BYTES)
        self.spool.wait_for_hashes()
        wanted = self.spool.read(pending.data.key, request.size - size, size)
        try:
            fd = read_regular(request.text)
        except OSError:
            return True  # not to be seen by us: then as the call said
        try:
            return os.pread(fd, size, pending.offset + request.size - size) == wanted
        finally:
            os.close(fd)


def _reads_zero(request: Request) -> bool:
    """Whether a range that should be zeros begins with them."""
    try:
        fd = read_regular(request.text)
    except OSError:
        return True
    try:
        data = os.pread(fd, min(request.size, _TAIL_BYTES), request.offset)
        return not data.strip(b"\0")
    finally:
        os.close(fd)
