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
from fault_injection.procfs import fd_info
from fault_injection.trace import Kind

_O_ACCMODE, _O_APPEND, _O_DSYNC, _O_SYNC = 3, 0o2000, 0o10000, 0o4010000

SYNCS = (Kind.FSYNC, Kind.FDATASYNC, Kind.SYNC)
UNSEEN = (*SYNCS, Kind.META)


def prepare(world: World, pending: Pending) -> None:
    """Take what must be taken before the call runs: its bytes, and where they will go."""
    request = pending.request
    if request.kind is Kind.OUTPUT:
        if request.vectors:
            pending.data = world.spool.add_memory(request.tid, request.vectors)
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
        pending.data = world.spool.add_memory(request.tid, request.vectors)


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
