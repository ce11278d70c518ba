"""Calls that are under way, and the operations that they turn out to be."""

from dataclasses import dataclass, field

from fault_injection.filetree import FileTree
from fault_injection.procfs import View, key_of
from fault_injection.requests import Request
from fault_injection.spool import Spool, Ticket
from fault_injection.trace import Kind


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
    stack: str = ""
    offset: int = 0
    synced: str = ""
    data: Ticket | None = None
    reading: int = -1
    wrote: int | None = None
    slow: bool = False
    hopeless: bool = False
    ended: int = 0
    drafts: list[Draft] | None = None


@dataclass(slots=True)
class World:
    """What a recording works on. ``problem`` is the first thing that did not fit the model.

    ``copying`` are the files of which the spool may still be copying what was written last: they
    must not be changed there before it is done.
    """

    view: View
    tree: FileTree
    spool: Spool
    copying: set[tuple[int, int]] = field(default_factory=set)
    problem: str = ""


def inode_of(world: World, request: Request) -> int | None:
    """The inode that a call works on; one that nobody has seen come is a problem."""
    status = request.status
    inode = None if status is None else world.tree.inodes.get(key_of(status))
    if inode is None and request.inside:
        name = request.label.decode("utf-8", "backslashreplace")
        world.problem = world.problem or f"{name}: {request.name} on a file whose origin is unseen"
    return inode
