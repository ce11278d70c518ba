"""Why a crash state broke something, in words: which fsync was missing, between which operations.

A cause (``crash_states.cause_of``) names the operations that had to be durable and the one that was
too early. The fsync that was missing follows: of the file for its bytes, of the directory for its
names. States that miss the same fsync share a signature, whichever operations each of them lost.

Pure, and without the harness's heavier modules, for ``harness.explore``.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fault_injection.crash_states import Cause, State, describe
from fault_injection.crash_states.describe import operation_words
from fault_injection.crash_states.history import nameless_since
from fault_injection.crash_states.space import Space
from fault_injection.crash_states.tree import show
from fault_injection.trace import ROOT_INODE, FileType, Kind, Trace

MAX_LOST = 4
MAX_SYNCS = 3
_ADVICE = "write a new file, sync it, and rename it over the old one"
_ADVICE_ON_REMOVAL = "remove the old one when the new one is durable"
_VARIES = re.compile(r"\d+")
_OF_NAMES = (
    Kind.CREATE,
    Kind.MKDIR,
    Kind.LINK,
    Kind.SYMLINK,
    Kind.UNLINK,
    Kind.RMDIR,
    Kind.RENAME,
    Kind.EXCHANGE,
)


@dataclass(frozen=True, slots=True)
class Reason:
    """``needs``: the missing fsync and where it belongs; ``lost``: what was not durable.

    ``crash`` says where the crash fell, ``site`` which source line the fsync has to follow, when
    that is known, ``holds_if`` is the descriptor of the state with what was needed put back.
    ``signature`` is the same for all states that miss the same fsync. Without a cause these four
    are empty.
    """

    needs: str
    lost: tuple[str, ...]
    crash: str
    site: str = ""
    holds_if: str = ""
    signature: str = ""


def reason_of(
    state: State,
    cause: Cause | None,
    *,
    names: frozenset[bytes] | None = None,
    acknowledged: frozenset[int] | None = None,
) -> Reason:
    """The reason in words; without a cause only what was lost and where.

    ``acknowledged`` are the operations that did so (None: all that the world has seen).

    ``names`` are those that are the same in every run (None: all are); the others are made at
    random and are ``~`` in the signature.
    """
    crash = crash_words(state, acknowledged)
    if cause is None or not cause.needed:
        return Reason(needs="", lost=describe(state), crash=crash)
    space = state.space
    blamed = [i for i in cause.needed if (i > cause.before) == cause.too_late]
    syncs = missing_syncs(space, blamed)
    last = space.history.trace.operations[blamed[-1]]
    signature = " and ".join(sorted(syncs))
    if cause.too_late:
        needs = _beyond_syncs(space, blamed, cause.before, syncs, acknowledged)
        signature = f"atomic {last.kind} of {signature}"
    else:
        words = operation_words(space.history)[last.index]
        too_early = f"#{cause.before} {_shown(space, cause.before, acknowledged)}"
        needs = f"{few(syncs)} between #{last.index} {words} and {too_early}"
    return Reason(
        needs=needs,
        lost=describe(state, only=cause.needed),
        crash=crash,
        site=last.site,
        holds_if=cause.good.descriptor(),
        signature=_VARIES.sub("N", steady(signature, space.history.trace, names)),
    )


def _beyond_syncs(
    space: Space,
    late: Sequence[int],
    at: int,
    syncs: Sequence[str],
    acknowledged: frozenset[int] | None,
) -> str:
    """What was needed, where no fsync is in time for it: ``at`` came before it."""
    words = operation_words(space.history)
    needed = few([f"#{i} {words[i]}" for i in late])
    if at < 0:
        return f"{needed} to be atomic; an fsync cannot make it so: {_ADVICE}"
    earlier = f"#{at} {_shown(space, at, acknowledged)}"
    if at in space.seen:
        return f"{needed}, then {few(syncs)}, before {earlier}, which came too early"
    removes = space.history.trace.operations[at].kind in (Kind.UNLINK, Kind.RMDIR)
    return (
        f"{needed} to be durable at once with {earlier}; an fsync cannot make it so: "
        f"{_ADVICE_ON_REMOVAL if removes else _ADVICE}"
    )


def steady(text: str, trace: Trace, names: frozenset[bytes] | None) -> str:
    """``text`` without the names that differ from run to run."""
    if names is None:
        return text
    used = {name for op in trace.operations for name in (op.name, op.new_name) if name}
    for name in sorted(used - names, key=lambda n: (-len(n), n)):
        text = text.replace(show(name), "~")
    return text


def few(syncs: Sequence[str]) -> str:
    """The first of these joined, and how many more there are."""
    more = f" and {len(syncs) - MAX_SYNCS} more" if len(syncs) > MAX_SYNCS else ""
    return " and ".join(syncs[:MAX_SYNCS]) + more


def lost_words(lost: Sequence[str]) -> str:
    """The first few of what was lost, on one line, with the number of the others."""
    more = f"; and {len(lost) - MAX_LOST} more" if len(lost) > MAX_LOST else ""
    return "; ".join(lost[:MAX_LOST]) + more


def crash_words(state: State, acknowledged: frozenset[int] | None = None) -> str:
    """Between which operations the power was lost."""
    if state.place == 0:
        return "before the first operation"
    last = state.place - 1
    return f"after #{last} {_shown(state.space, last, acknowledged)}"


def _shown(space: Space, index: int, acknowledged: frozenset[int] | None) -> str:
    """An operation in words; one that the world saw with its whole line."""
    if index not in space.seen:
        return operation_words(space.history)[index]
    told = acknowledged is None or index in acknowledged
    kind = "acknowledgement" if told else "output"
    line = line_ended_by(space.history.trace, index)
    return f'the {kind} "{line}"' if line else f"the {kind}"


def line_ended_by(trace: Trace, index: int) -> str:
    """The last line of output that operation ``index`` completed, from as many writes as it took.

    Writes without a line's end are looked at as far back as the line's beginning; at most 200
    bytes are shown.
    """
    stream, text = trace.operations[index].stream, b""
    for op in reversed(trace.operations[: index + 1]):
        if op.kind is not Kind.OUTPUT or op.stream != stream:
            continue
        text = (trace.blobs.read(op.blob, 0, min(op.size, 4096)) if op.size else b"") + text
        if b"\n" in text.rstrip(b"\n") or len(text) > 4096:
            break
    line = text.rstrip(b"\r\n").rpartition(b"\n")[2].strip()
    return show(line[:200])


def missing_syncs(space: Space, needed: Sequence[int]) -> list[str]:
    """The fsyncs that would have made these operations durable, in words, each once, in order."""
    trace, types = space.history.trace, space.history.types
    paths = paths_after(trace, needed[-1])
    gone = nameless_since(trace)
    inodes = dict.fromkeys(inode for index in needed for inode in to_sync(trace, index))
    # What was removed by then was needed only for what else it held.
    there = [inode for inode in inodes if gone.get(inode, needed[-1]) >= needed[-1]]
    said = (f"fsync({named(paths, inode, types)})" for inode in there or inodes)
    return list(dict.fromkeys(said))


def named(paths: Mapping[int, str], inode: int, types: Mapping[int, FileType]) -> str:
    """What an fsync is of: ``paths`` are those of :func:`paths_after`."""
    directory = types.get(inode) is FileType.DIRECTORY
    if inode == ROOT_INODE:
        return "the root directory"
    if inode not in paths:
        return "the directory outside the root" if directory else "the nameless file"
    return paths[inode] + "/" * directory


def to_sync(trace: Trace, index: int) -> tuple[int, ...]:
    """The inodes whose fsyncs make an operation durable under every model."""
    op = trace.operations[index]
    if op.kind not in _OF_NAMES:
        return (op.inode,)
    if op.kind in (Kind.RENAME, Kind.EXCHANGE):
        return tuple(dict.fromkeys((op.new_parent, op.parent)))
    return (op.parent,) if op.parent >= 0 else (op.inode,)


def paths_after(trace: Trace, index: int) -> dict[int, str]:
    """The path of each inode, relative to the root, once operation ``index`` was done.

    What has no name any more keeps its last one; the root is "the root".
    """
    names: dict[int, tuple[int, bytes]] = {}
    for node in trace.start.values():
        for name, inode in sorted(node.entries.items()):
            names.setdefault(inode, (node.inode, name))
    for op in trace.operations[: index + 1]:
        if op.kind in (Kind.CREATE, Kind.MKDIR, Kind.SYMLINK, Kind.LINK) and op.name:
            names[op.inode] = (op.parent, op.name)
        elif op.kind in (Kind.RENAME, Kind.EXCHANGE):
            names[op.inode] = (op.new_parent, op.new_name)
            if op.kind is Kind.EXCHANGE:
                names[op.replaced] = (op.parent, op.name)
    paths = {ROOT_INODE: "the root"}
    for inode in names:
        parts: list[bytes] = []
        current = inode
        while current != ROOT_INODE and current in names and len(parts) < 64:
            current, name = names[current]
            parts.append(name)
        if current != ROOT_INODE:
            parts.append(b"(outside the root)")
        paths[inode] = show(b"/".join(reversed(parts)))
    return paths
