"""What a call that was let run has done: found out by looking, for its result is not shown to us.

A notification comes before its call and nothing comes after. But what the call asked for is known,
the tree before it was looked at, and most effects can be seen: a name that is there, a length, an
offset that moved. A call that failed has left nothing to see and gives no operation. What leaves no
trace on the live system (a sync) counts as done once its thread is out of the call.
"""

import os

from fault_injection import effects_content, effects_names
from fault_injection.calls_content import RWF_APPEND, RWF_DSYNC, RWF_NOAPPEND, RWF_SYNC
from fault_injection.pending import Draft, Pending, World
from fault_injection.procfs import fd_info, key_of
from fault_injection.requests import Request
from fault_injection.trace import Kind

_O_ACCMODE, _O_APPEND, _O_DSYNC, _O_SYNC = 3, 0o2000, 0o10000, 0o4010000

SYNCS = (Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC)
LATER_BYTES = 1 << 18  # what is appended in such pieces is copied from the file, afterwards
_REWRITES = (Kind.TRUNCATE, Kind.ALLOCATE, Kind.PUNCH, Kind.COLLAPSE, Kind.INSERT)
UNSEEN = (*SYNCS, Kind.META)


def prepare(world: World, pending: Pending) -> None:
    """Take what must be taken before the call runs: its bytes, and where they will go."""
    request = pending.request
    if request.kind is Kind.OUTPUT:
        if request.vectors:
            pending.data = world.spool.add_memory(request.tid, request.vectors)
        return
    if request.kind is not Kind.WRITE:
        if request.kind in _REWRITES:
            _let_copies_end(world, request)
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
    appends = pending.offset >= status.st_size
    if not appends:
        _let_copies_end(world, request)
    if request.copies or (appends and request.size >= LATER_BYTES):
        pending.reading = _open_again(request)
    if pending.reading < 0:
        if request.copies:
            raise PermissionError(f"{os.fsdecode(request.text)} may not be read")
        pending.data = world.spool.add_memory(request.tid, request.vectors)


def _open_again(request: Request) -> int:
    """A descriptor of ours for reading what the call will write; -1 where that is not allowed.

    Not a copy of the program's: a lock on that would outlive the program's own descriptor.
    """
    path = b"/proc/%d/fd/%d" % (request.tid, request.fd)
    try:
        return os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except PermissionError:
        return -1


def _let_copies_end(world: World, request: Request) -> None:
    if request.status is not None and key_of(request.status) in world.copying:
        world.spool.wait_for_hashes()
        world.copying.clear()


def release(pending: Pending) -> None:
    """Give back what :func:`prepare` opened."""
    if pending.reading >= 0:
        os.close(pending.reading)
        pending.reading = -1


def look(world: World, pending: Pending, *, final: bool) -> list[Draft] | None:
    """The operations that the call was, none when it failed; None: nothing can be seen yet.

    ``final`` says that the call is over, so that what cannot be seen has not happened.
    """
    request, kind = pending.request, pending.request.kind
    if pending.hopeless:
        return []
    if kind is Kind.WRITE:
        return effects_content.write(world, pending, final)
    if kind in UNSEEN:
        return effects_content.unseen(world, request) if final else None
    if kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK):
        drafts = effects_names.create(world, request)
    elif kind in (Kind.UNLINK, Kind.RMDIR):
        drafts = effects_names.unlink(world, request)
    elif kind in (Kind.RENAME, Kind.EXCHANGE):
        drafts = effects_names.rename(world, request)
    elif kind is Kind.LINK:
        drafts = effects_names.link(world, request)
    elif kind is Kind.TRUNCATE:
        drafts = effects_content.truncate(world, request)
    else:
        drafts = effects_content.allocate(world, request, final)
    return [] if drafts is None and final else drafts
