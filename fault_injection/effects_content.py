"""What calls that change or sync a file's content have done, by looking at the file.

Lengths tell most of it; of an overwrite, the file's own position or the bytes that are there now.
Nothing can be seen of a sync: it counts as done when its thread is out of the call.
"""

import os

from fault_injection.filetree import read_regular
from fault_injection.pending import Draft, Pending, World, inode_of
from fault_injection.procfs import fd_info, fd_status, key_of, lstat
from fault_injection.requests import Request
from fault_injection.trace import Kind

_TAIL_BYTES = 4096


def truncate(world: World, request: Request) -> list[Draft] | None:
    """A length that was set."""
    size = _size_now(request)
    if size is not None and size != request.size:
        return None
    inode = inode_of(world, request)
    if inode is None:
        return []
    world.tree.sizes[inode] = request.size
    return [Draft(Kind.TRUNCATE, inode=inode, size=request.size)]


def _size_now(request: Request) -> int | None:
    """The length of the file a call worked on, None when no path leads there any more."""
    now, before = lstat(request.text), request.status
    if now is not None and before is not None and os.path.samestat(now, before):
        return now.st_size
    status = fd_status(request.tid, request.fd) if request.fd >= 0 else None
    if status is not None and before is not None and os.path.samestat(status, before):
        return status.st_size
    return None


def allocate(world: World, request: Request, final: bool) -> list[Draft] | None:
    """fallocate in its modes."""
    before = request.status
    assert before is not None
    assert request.kind is not None
    keep = bool(request.flags & 1)
    now = _size_now(request)
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
    inode = inode_of(world, request)
    if inode is None:
        return []
    world.tree.sizes[inode] = size
    return [
        Draft(
            request.kind,
            inode=inode,
            offset=request.offset,
            size=request.size,
            keep_size=keep,
        )
    ]


def unseen(world: World, request: Request) -> list[Draft]:
    """A sync, or a change of attributes: of the file as it was when the call began."""
    assert request.kind is not None
    if request.kind is Kind.SYNC:
        world.view.dirty.clear()
        return [Draft(Kind.SYNC)]
    status = request.status
    assert status is not None
    key = key_of(status)
    if request.inside:
        inode = inode_of(world, request)
    else:
        world.view.dirty.discard(key)
        inode = world.tree.inodes[key] if key in world.tree else None
    return [] if inode is None else [Draft(request.kind, inode=inode)]


def write(world: World, pending: Pending, final: bool) -> list[Draft] | None:
    """Bytes written: as many as can be seen to be there."""
    request = pending.request
    count = pending.wrote
    if count is None:
        count = _written(world, pending, final)
    if count is None:
        return None
    inode = inode_of(world, request)
    if count <= 0 or inode is None:
        return []
    if pending.reading >= 0:
        # It lies in the file now, and calls that would change it there have to wait for the copy.
        assert request.status is not None
        world.copying.add(key_of(request.status))
        ticket = world.spool.add_file_later(pending.reading, pending.offset, count)
        pending.reading = -1
    else:
        assert pending.data is not None
        ticket = world.spool.prefix(pending.data, count)
    end = pending.offset + count
    world.tree.sizes[inode] = max(world.tree.sizes.get(inode, 0), end)
    return [
        Draft(
            Kind.WRITE,
            inode=inode,
            offset=pending.offset,
            size=count,
            ticket=ticket,
            synced=pending.synced,
        )
    ]


def _written(world: World, pending: Pending, final: bool) -> int | None:
    """How many bytes were written; None while nothing of them can be seen."""
    request, before = pending.request, pending.request.status
    assert before is not None
    end = pending.offset + request.size
    size = _size_now(request)
    if size is None:
        return request.size if final else None
    if end > before.st_size:
        if size >= end:
            return request.size
        if not final:
            return None  # a long write grows its file as it goes
        return max(0, size - pending.offset) if size > before.st_size else 0
    # An overwrite. The file's own position says the end of it, unless it was moved since.
    now = fd_status(request.tid, request.fd) if request.offset < 0 else None
    if now is not None and os.path.samestat(now, before):
        info = fd_info(request.tid, request.fd)
        if info is not None and info.position == end:
            return request.size
    if request.copies:
        return request.size if final else None
    there = _bytes_there(world, pending)
    return there if there == request.size or final else None


def _bytes_there(world: World, pending: Pending) -> int:
    """How many bytes of an overwrite are in the file now, from its beginning."""
    request = pending.request
    assert pending.data is not None
    world.spool.wait_for_hashes()
    try:
        fd = read_regular(request.text)
    except OSError:
        return request.size  # not to be seen by us: then as the call said
    try:
        # Its last bytes tell of nearly all overwrites; the rest only counts if they differ.
        last = max(0, request.size - _TAIL_BYTES)
        if _common(world, pending, fd, last) == request.size - last:
            return request.size
        for start in range(0, last, _TAIL_BYTES):
            same = _common(world, pending, fd, start)
            if same < _TAIL_BYTES:
                return start + same
        return last
    finally:
        os.close(fd)


def _common(world: World, pending: Pending, fd: int, start: int) -> int:
    """How many bytes from ``start`` of an overwrite, at most a tail, are in the file now."""
    assert pending.data is not None
    wanted = world.spool.read(pending.data.key, start, _TAIL_BYTES)
    real = os.pread(fd, len(wanted), pending.offset + start)
    if real == wanted:
        return len(wanted)
    return next(
        (i for i, pair in enumerate(zip(real, wanted, strict=False)) if pair[0] != pair[1]), 0
    )


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
