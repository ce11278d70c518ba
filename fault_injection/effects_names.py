"""What calls that make, move and remove names have done, by looking at the names.

Each function answers with the operations that the call was, or None while (or because) nothing of
it can be seen.
"""

import os
import stat

from fault_injection.calls import O_TMPFILE_BIT, RENAME_EXCHANGE
from fault_injection.filetree import file_type, recorded_mode, store_file
from fault_injection.pending import Draft, World, inode_of
from fault_injection.procfs import Location, fd_status, fd_text, key_of, lstat
from fault_injection.requests import Request
from fault_injection.trace import FileType, Kind


def create(world: World, request: Request) -> list[Draft] | None:
    """A new file, directory, symbolic link, or nameless file."""
    where = request.first
    assert where is not None
    assert request.kind is not None
    if request.flags & O_TMPFILE_BIT:
        return _create_nameless(world, request, where)
    status = lstat(where.path)
    if status is None:
        return None
    parent = world.tree.directory(where.parent_key)
    kind = file_type(status.st_mode)
    if world.tree.lookup(parent, where.name) >= 0:
        return []  # of two that wanted to make it, another has
    inode = world.tree.add(key_of(status), kind)
    world.tree.put(parent, where.name, inode)
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


def _create_nameless(world: World, request: Request, where: Location) -> list[Draft] | None:
    """O_TMPFILE: the new file is the open one that has no name and that we do not know."""
    for number in sorted(map(int, os.listdir(f"/proc/{request.tid}/fd"))):
        status = fd_status(request.tid, number)
        if status is None or status.st_nlink or key_of(status) in world.tree:
            continue
        text = fd_text(request.tid, number)
        if text.startswith(where.parent + b"/#") and text.endswith(b" (deleted)"):
            inode = world.tree.add(key_of(status), FileType.FILE)
            mode = recorded_mode(status.st_mode)
            parent = world.tree.directory(where.parent_key)
            return [Draft(Kind.CREATE, inode=inode, parent=parent, mode=mode)]
    return None


def unlink(world: World, request: Request) -> list[Draft] | None:
    """A name that went: unlink and rmdir."""
    where, before = request.first, request.status
    assert where is not None
    assert before is not None
    assert request.kind is not None
    now = lstat(where.path)
    if now is not None and os.path.samestat(now, before):
        return None
    inode = inode_of(world, request)
    if inode is None:
        return []
    parent = world.tree.directory(where.parent_key)
    world.tree.remove(parent, where.name)
    _lost_a_name(world, before)
    return [Draft(request.kind, inode=inode, parent=parent, name=where.name)]


def _lost_a_name(world: World, before: os.stat_result) -> None:
    if stat.S_ISDIR(before.st_mode) or before.st_nlink == 1:
        world.tree.bury(key_of(before))


def rename(world: World, request: Request) -> list[Draft] | None:
    """A name that moved, or two that changed places."""
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
    parent = world.tree.directory(first.parent_key)
    new_parent = world.tree.directory(second.parent_key)
    inode = _bring_in(world, drafts, moved, parent, first.name, second.path)
    replaced = -1
    if second.status is not None:
        if exchange:
            replaced = _bring_in(world, drafts, second.status, new_parent, second.name, first.path)
        else:
            replaced = world.tree.inodes.get(key_of(second.status), -1)
            _lost_a_name(world, second.status)
    world.tree.remove(parent, first.name)
    if exchange:
        world.tree.put(parent, first.name, replaced)
    world.tree.put(new_parent, second.name, inode)
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


def link(world: World, request: Request) -> list[Draft] | None:
    """A further name of a file."""
    first, second, source = request.first, request.second, request.status
    assert second is not None
    assert source is not None
    there = lstat(second.path)
    if there is None or not os.path.samestat(there, source):
        return None
    drafts: list[Draft] = []
    if first is not None and first.parent_key != (0, 0) and source.st_nlink:
        origin, name = world.tree.directory(first.parent_key), first.name
    else:
        origin, name = world.tree.directory(second.parent_key), b""
    inode = _bring_in(world, drafts, source, origin, name, second.path)
    parent = world.tree.directory(second.parent_key)
    world.tree.put(parent, second.name, inode)
    drafts.append(Draft(Kind.LINK, inode=inode, parent=parent, name=second.name))
    return drafts


def _bring_in(
    world: World, drafts: list[Draft], status: os.stat_result, parent: int, name: bytes, path: bytes
) -> int:
    """The inode of something moved or linked; made, with its content, when it is from outside.

    Such content is durable unless the attempt has written it and not synced it since; then it
    is data not yet synced, as if just written.
    """
    if key_of(status) in world.tree:
        return world.tree.inodes[key_of(status)]
    kind = file_type(status.st_mode)
    inode = world.tree.add(key_of(status), kind, status.st_size)
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
        world.tree.put(parent, name, inode)
    if kind is FileType.FILE and status.st_size:
        ticket = store_file(path, world.spool, status.st_size)
        drafts.append(Draft(Kind.WRITE, inode=inode, size=ticket.size, ticket=ticket))
    elif kind is FileType.DIRECTORY:
        for below in sorted(os.listdir(path)):
            child = path + b"/" + below
            _bring_in(world, drafts, os.lstat(child), inode, below, child)
    content = world.tree.sizes.get(inode, 0) or len(world.tree.entries.get(inode, ()))
    if content and key_of(status) not in world.view.dirty:
        drafts.append(Draft(Kind.FSYNC, inode=inode))
    return inode
