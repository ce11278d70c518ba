"""Follows one attempt of a program by the calls it makes: where it is, and what it has done.

A supervisor hands each notification to :meth:`Recorder.on_call` *before* the call runs, answers
it, and says how with :meth:`Recorder.answered`. Every call that changes or syncs the tree under the
root, or writes to stdout or stderr, has a place (``labels``), at which it can be killed or failed.

Two modes. Light (no spool): places, and what the world saw; some ten microseconds a call. Recording
(a spool): also a full trace. Calls of one thread are in order because it makes its next one only
when the one before has ended; a call of another thread is waited for, a short while, unless it can
be seen to be still running, and then the two overlap in the trace, as they did.

Not covered: changes made by processes that are not supervised. In the end the model is compared
with the real tree, and a difference makes the trace untraceable.
"""

import os
import stat
import time
from collections.abc import Sequence
from typing import NamedTuple

from fault_injection import calls, effects
from fault_injection.calls_content import STANDARD_STREAMS
from fault_injection.filetree import FileTree
from fault_injection.labels import Labeller, stable_names
from fault_injection.overlay import Overlay
from fault_injection.pending import Draft, Pending, World
from fault_injection.procfs import View, has_left
from fault_injection.pysite import Sites
from fault_injection.reads import NOTIFY as NOTIFY_READS
from fault_injection.reads import Reads
from fault_injection.requests import Request, refused
from fault_injection.seccomp import Match, Notification
from fault_injection.settings import BEFORE_ANY_CALL
from fault_injection.spool import Spool
from fault_injection.syscalls import NAMES
from fault_injection.trace import Kind, Operation, Trace
from fault_injection.watching import Sightings

__all__ = ["Call", "Outcome", "Recorder", "stable_names"]

MAX_OPERATIONS = 200_000
_PATIENCE_S = 0.005  # for a thread that runs: it may be out of its call, or in it
_PATIENCE_BLOCKED_S = 0.1  # for one that is seen to be in its call still
_POLL_S = 0.00005

Outcome = str | tuple[str, int]


class Call(NamedTuple):
    """One call as its supervisor sees it.

    ``place`` is empty for a call that is none of ours. ``changes``: it changes what is under the
    root, or what of it is durable. ``output`` is "stdout", "stderr" or empty. ``untraceable`` says
    why no trace can hold what the call does, beginning with its name.
    """

    name: str
    place: str
    changes: bool
    under_root: bool
    output: str
    untraceable: str
    kind: Kind | None
    tid: int = 0


class Recorder:
    """One attempt. See the module for what is called when."""

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        spool: Spool | None = None,
        watch: Sequence[str] = (),
        stable_names: frozenset[bytes] | None = None,
        observe_reads: bool = False,
        follow_outputs: bool = True,
    ) -> None:
        """``root`` must exist. Recording, the tree under it is stored as the durable start, and
        outputs have to be followed."""
        if spool is not None and not follow_outputs:
            raise ValueError("a trace holds the outputs: they are to be followed")
        path = os.path.realpath(os.fsencode(root))
        self._view = View(path)
        self._labels = Labeller(stable_names)
        self._sightings = Sightings(path, watch)
        self._spool = spool
        self._world: World | None = None
        self._decoders = dict(calls.BY_NUMBER)
        self._held: dict[int, Pending] = {}
        self._pending: dict[int, Pending] = {}
        self._done: list[Pending] = []
        self._clock = 0
        self._moving: set[int] = set()  # threads that move or remove a directory
        self._why = ""
        self._follows_outputs = follow_outputs
        self._last_place = BEFORE_ANY_CALL
        self.redirected = False  # whether a file of the tree stood for stdout or stderr
        self.notify: frozenset[int | Match] = calls.notify_set(
            recording=spool is not None, outputs=follow_outputs
        )
        if spool is not None:
            tree = FileTree(path)
            tree.scan(spool)
            self._why = tree.unreadable
            self._world = World(self._view, tree, spool)
            self._view.know(tree)
            self._decoders.update(calls.REFUSING)
        self._sites = Sites() if spool is not None else None
        self._reads = Reads(self._view) if observe_reads else None
        if observe_reads:
            # Every open asks, so no condition on opens is left.
            self.notify = frozenset(NOTIFY_READS | self.notify)

    @property
    def untraceable(self) -> str:
        """Why the trace does not hold all that happened: the first reason, or empty."""
        return self._why

    @property
    def reads(self) -> dict[bytes, frozenset[str]] | None:
        """With ``observe_reads``: what was asked of which path of the starting tree (``reads``)."""
        return None if self._reads is None else self._reads.questions()

    @property
    def overlay(self) -> Overlay | None:
        """With ``observe_reads``: where each path of the tree as it is comes from."""
        return None if self._reads is None else self._reads.overlay()

    @property
    def removed(self) -> frozenset[bytes]:
        """With ``observe_reads``: the directories of the starting tree that were listed and are
        gone; to be asked for while the tree still stands."""
        return frozenset() if self._reads is None else self._reads.removed()

    @property
    def seen(self) -> list[tuple[str, bytes, int, str]]:
        """What the world saw, in order: source, bytes, the operation's index (-1 in light mode,
        and before :meth:`finish`), and the place of the call that showed it."""
        return self._sightings.listed()

    def watch_output(self, fd: int, stream: str) -> None:
        """``fd`` is an end of the pipe that is the program's ``stream``, "stdout" or "stderr"."""
        if self._follows_outputs:
            self._view.outputs[os.readlink(b"/proc/self/fd/%d" % fd)] = stream

    def told(self, stream: str, data: bytes) -> None:
        """Where outputs are not followed: what came out of the pipe before the next call."""
        self._sightings.told(stream, data, self._last_place)

    # One call.

    def on_call(self, notification: Notification) -> Call:
        """What the waiting call is. Its thread must still be waiting."""
        tid = notification.tid
        if self._moving:
            self._view.forget_directories()
            self._moving.discard(tid)
        if self._pending:
            self._settle_before(tid)
        if self._reads is not None:
            self._reads.on_call(notification)
        self._drop(tid)  # a call that was never answered: its thread has been interrupted
        name = NAMES.get(notification.nr, str(notification.nr))
        request = self._decode(notification, name)
        if request is None:
            return Call(name, "", False, False, "", "", None, tid)
        if request.untraceable and self._world is not None:
            self._why = self._why or request.untraceable
        place = ""
        if request.verb and (request.inside or request.output):
            place = self._last_place = self._labels.place(request.verb, request.label)
        kind = request.kind
        if kind is Kind.WRITE and request.fd in STANDARD_STREAMS:
            self.redirected = True
        if kind in (Kind.RENAME, Kind.EXCHANGE, Kind.RMDIR) and _moves_a_directory(request):
            self._moving.add(tid)
        self._hold(request, notification, place)
        return Call(
            name,
            place,
            bool(place) and not request.output,
            request.inside,
            request.output,
            request.untraceable if self._world is not None else "",
            kind,
            tid,
        )

    def _decode(self, notification: Notification, name: str) -> Request | None:
        tid = notification.tid
        foreign = notification.foreign
        if foreign:
            return refused(tid, name, f"{foreign} (number {notification.nr})")
        decoder = self._decoders.get(notification.nr)
        if decoder is None:
            return None
        try:
            return decoder(self._view, tid, name, notification.args)
        except PermissionError as error:
            return refused(tid, name, f"{name} of a process that cannot be followed: {error}")
        except OSError:
            return None  # it is gone, or its arguments are no good: the call does nothing

    def _hold(self, request: Request, notification: Notification, place: str) -> None:
        """Remember the call until its answer, with what has to be taken before it runs."""
        observed = self._sightings.observes(request)
        if self._world is None and not observed and self._reads is None:
            return
        self._clock += 1
        pending = Pending(request, notification.nr, notification.args, self._clock, place)
        if self._sites is not None and place:
            pending.site, pending.stack = self._sites.of(request.tid)
        if self._world is not None and request.kind is not None:
            try:
                effects.prepare(self._world, pending)
            except OSError as error:
                self._why = self._why or f"{request.name}: its bytes cannot be read: {error}"
        if observed:
            self._sightings.take(pending)
        self._held[request.tid] = pending

    def answered(self, call: Call, outcome: Outcome) -> None:
        """How the call was answered: "continued", "failed" or ("wrote", count)."""
        if outcome == "failed":
            self._drop(call.tid)
            return
        pending = self._held.pop(call.tid, None)
        if pending is None:
            return
        if not isinstance(outcome, str):
            pending.wrote = outcome[1]
        self._sightings.happened(pending)
        if self._reads is not None and pending.request.kind is not None:
            self._reads.changing(pending.request)
        if self._world is None or pending.request.kind is None:
            return
        self._done.append(pending)
        if len(self._done) > MAX_OPERATIONS:
            self._why = self._why or f"more than {MAX_OPERATIONS} operations"
        if pending.request.kind is Kind.OUTPUT:
            self._accept(pending, [_output(pending)])
        elif pending.wrote is not None:
            self._accept(pending, effects.look(self._world, pending, final=True))
        else:
            self._pending[call.tid] = pending

    def _drop(self, tid: int) -> None:
        """Forget a call that did not run."""
        pending = self._held.pop(tid, None)
        if pending is not None:
            effects.release(pending)

    # Settling what calls have done.

    def _accept(self, pending: Pending, drafts: list[Draft] | None) -> None:
        self._clock += 1
        pending.ended = self._clock
        pending.drafts = drafts or []
        self._pending.pop(pending.request.tid, None)
        effects.release(pending)

    def _settle_before(self, tid: int) -> None:
        """Learn what earlier calls did, before thread ``tid`` makes its next one."""
        assert self._world is not None
        own = self._pending.get(tid)
        if own is not None:
            self._accept(own, effects.look(self._world, own, final=True))
        for pending in list(self._pending.values()):
            self._wait_for(pending)

    def _wait_for(self, pending: Pending) -> None:
        """Settle another thread's call, unless it is still running after a bounded wait."""
        assert self._world is not None
        unseen = pending.request.kind in effects.UNSEEN
        started = time.monotonic()
        while True:
            drafts = effects.look(self._world, pending, final=False)
            if drafts is not None:
                return self._accept(pending, drafts)
            left = has_left(pending.request.tid, pending.number, pending.args)
            if left:
                return self._accept(pending, effects.look(self._world, pending, final=True))
            if left is False and unseen:
                return None
            patience = _PATIENCE_S if left is None else _PATIENCE_BLOCKED_S
            if pending.slow or time.monotonic() - started > patience:
                pending.slow = True
                if left is None and unseen:
                    return self._accept(pending, effects.look(self._world, pending, final=True))
                return None
            time.sleep(_POLL_S)

    # The end.

    def finish(self) -> None:
        """Settle everything, when all processes of the attempt are gone. May be called again."""
        if self._world is None or self._spool is None:
            return
        for tid in list(self._held):
            self._drop(tid)
        for pending in list(self._pending.values()):
            self._accept(pending, effects.look(self._world, pending, final=True))
        self._spool.flush()
        self._why = self._why or self._world.problem
        self._why = self._why or next(self._world.tree.differences(), "")
        self._sightings.number(self._done)

    def trace(self) -> Trace:
        """The whole trace; to be called after :meth:`finish` of a recorder with a spool."""
        if self._world is None or self._spool is None:
            raise ValueError("this recorder has no spool: there is no trace")
        threads: dict[int, int] = {}
        operations: list[Operation] = []
        spread = 2 * max((len(p.drafts or ()) for p in self._done), default=1)
        for pending in self._done:
            drafts = pending.drafts or []
            for left, draft in zip(range(len(drafts) - 1, -1, -1), drafts, strict=True):
                thread = threads.setdefault(pending.request.tid, len(threads))
                # Only the last is the call itself and has its place. What comes before it (a file
                # moved in, its bytes, its sync) had been done when the call began, in this order:
                # ticks just before it say so. A sync covers only what had ended when it began.
                began = pending.began * spread - 2 * left
                ended = began + 1 if left else pending.ended * spread
                place = "" if left else pending.place
                operations.append(
                    _operation(len(operations), draft, pending, (began, ended), thread, place)
                )
        return Trace(
            start=self._world.tree.start(), operations=tuple(operations), blobs=self._spool
        )


def _moves_a_directory(request: Request) -> bool:
    other = None if request.second is None else request.second.status
    return any(s is not None and stat.S_ISDIR(s.st_mode) for s in (request.status, other))


def _output(pending: Pending) -> Draft:
    ticket = pending.data
    size = pending.request.size if ticket is None else ticket.size
    return Draft(Kind.OUTPUT, size=size, ticket=ticket, stream=pending.request.output)


def _operation(
    index: int,
    draft: Draft,
    pending: Pending,
    ticks: tuple[int, int],
    thread: int,
    place: str,
) -> Operation:
    return Operation(
        index=index,
        kind=draft.kind,
        began=ticks[0],
        ended=ticks[1],
        thread=thread,
        inode=draft.inode,
        parent=draft.parent,
        name=draft.name,
        new_parent=draft.new_parent,
        new_name=draft.new_name,
        replaced=draft.replaced,
        offset=draft.offset,
        size=draft.size,
        blob=draft.ticket.key if draft.ticket is not None else "",
        keep_size=draft.keep_size,
        synced=draft.synced,
        target=draft.target,
        mode=draft.mode,
        stream=draft.stream,
        place=place,
        call=pending.request.name,
        site=pending.site,
        stack=pending.stack,
    )
