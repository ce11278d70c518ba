"""One attempt: a program started, watched, hurt at most once, ended, and nothing left of it.

:func:`run_attempt` is the whole interface. A program is run under one :class:`Settings`, and what
happened is an :class:`Attempt`: how it ended, whether the fault was *seen* to happen, what the
world saw of it, and the places it passed.

A fault counts as seen only on evidence: a kill when the main process was then found dead by
SIGKILL, a failed call when the kernel took the answer, a signal when a living process got it.

One attempt at a time, from the main thread: it forks. Everything that the attempt started is
killed and reaped before the function returns, whatever happens.

Not covered: what the program asked *others* to do (a database, a system daemon).
"""

import os
import time
from collections.abc import Collection
from typing import TYPE_CHECKING

from fault_injection import forkstart, points, processes, written
from fault_injection.aim import Aim
from fault_injection.output import Kept
from fault_injection.settings import Attempt, Command, Reads, Seen, Settings
from fault_injection.start import Arming, Started, StartError, start
from fault_injection.striking import Watched
from fault_injection.supervision import Supervision
from fault_injection.trace import Trace

if TYPE_CHECKING:
    from fault_injection.recorder import Recorder
    from fault_injection.seccomp import Match

__all__ = ["Attempt", "Command", "Seen", "Settings", "run_attempt"]


def run_attempt(command: Command, settings: Settings) -> Attempt:
    """Run ``command`` once, hurt as ``settings.fault`` says, to its end or its bounds.

    A program that cannot be started is an Attempt with ``start_error``. Raises ValueError for a
    fault that cannot be aimed, OSError or TimeoutError when the system refuses what is needed (a
    process that does not die of SIGKILL). Nothing is left running in any case.
    """
    aim = Aim(settings.fault)
    aim.time_s()  # a wrong one is an error before anything is started
    chosen = aim.chosen_point()
    arming = None
    if chosen is not None or settings.report_points:
        arming = Arming(points.parse_place(chosen) if chosen else None, settings.report_points)
    plan: forkstart.Plan | None = None
    if settings.fork and command.call is None:
        found = forkstart.plan(command.argv, env=dict(command.env), cwd=command.cwd)
        if isinstance(found, str):
            return Attempt(start_error=f"cannot be forked: {found}")
        plan = found
    spare = frozenset(processes.children(os.getpid())) if processes.has_children() else frozenset()
    adopts = processes.is_subreaper()
    started: Started | None = None
    recorder: Recorder | None = None
    try:
        processes.become_subreaper()
        before = {} if settings.supervise else written.look(settings)
        began_s = time.monotonic()
        recorder = _recorder(settings) if settings.supervise else None
        started = start(
            command,
            plan=plan,
            notify=_notify(recorder, aim),
            arming=arming,
            file_limit_bytes=settings.file_limit_bytes,
        )
        if recorder is not None:
            recorder.watch_output(started.stdout, "stdout")
            recorder.watch_output(started.stderr, "stderr")
        watched = Supervision(
            settings, started=started, aim=aim, recorder=recorder, spare=spare, began_s=began_s
        ).run()
    except StartError as error:
        return Attempt(start_error=str(error))
    finally:
        processes.kill_descendants(spare=spare)
        if started is not None:
            started.close()
        if not adopts:
            processes.become_subreaper(False)
    return _result(settings, watched, began_s, recorder, before)


def _recorder(settings: Settings) -> "Recorder":
    from fault_injection.recorder import Recorder
    from fault_injection.spool import Spool

    spool = None if settings.record_to is None else Spool(settings.record_to)
    recorder = Recorder(
        settings.root,
        spool=spool,
        watch=settings.watch,
        stable_names=settings.stable_names,
        observe_reads=settings.observe_reads,
        follow_outputs=settings.follow_outputs,
    )
    if spool is not None:
        spool.flush()  # ends its thread: the fork comes next
    return recorder


def _notify(recorder: "Recorder | None", aim: Aim) -> "Collection[int | Match] | None":
    if recorder is None:
        return None
    from fault_injection.syscalls import NUMBERS, STARTS_TASK

    end = [NUMBERS["exit_group"]] if aim.watches_end() else []
    return {*recorder.notify, *STARTS_TASK, *end}


def _result(
    settings: Settings,
    watched: Watched,
    began_s: float,
    recorder: "Recorder | None",
    before: dict[str, bytes],
) -> Attempt:
    status = watched.status
    assert status is not None
    trace: Trace | None = None
    reads: Reads | None = None
    cut = set(watched.cut)
    if recorder is None:
        observed = [(seen.source, seen.data, seen.operation, seen.place) for seen in watched.chunks]
        observed += [(path, data, -1, "") for path, data in written.since(settings, before)]
    else:
        recorder.finish()
        observed = list(recorder.seen)
        reads = recorder.reads if settings.observe_reads else None
        trace = recorder.trace() if settings.record_to is not None else None
    seen = _bounded(observed, settings.output_limit_bytes, cut)
    for name, kept in (("stdout", watched.stdout), ("stderr", watched.stderr)):
        if kept.cut_bytes:
            cut.add(name)
    return Attempt(
        exit_code=os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
        signal=os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        timed_out=watched.timed_out,
        seconds=watched.ended_s - began_s,
        fault_seen=watched.struck,
        evidence=watched.evidence,
        seen=seen,
        stdout=bytes(watched.stdout.kept),
        stderr=bytes(watched.stderr.kept),
        cut=tuple(sorted(cut)),
        points=tuple(watched.points),
        places=tuple(watched.places),
        trace=trace,
        reads=reads,
        overlay=recorder.overlay if recorder else None,
        removed=recorder.removed if recorder and settings.observe_reads else frozenset(),
        redirected=recorder.redirected if recorder else False,
        left_behind=watched.left_behind,
        at_once=watched.at_once,
        held_in_part=watched.held_in_part,
        untraceable=watched.untraceable or (recorder.untraceable if recorder else ""),
        bounded=watched.bounded,
        start_error=watched.start_error,
    )


def _bounded(
    observed: list[tuple[str, bytes, int, str]], limit_bytes: int, cut: set[str]
) -> tuple[Seen, ...]:
    kept: dict[str, Kept] = {}
    seen: list[Seen] = []
    for source, data, operation, place in observed:
        of_source = kept.setdefault(source, Kept(limit_bytes))
        part = of_source.add(data)
        if part:
            seen.append(Seen(source, part, operation, place))
        if of_source.cut_bytes:
            cut.add(source)
    return tuple(seen)
