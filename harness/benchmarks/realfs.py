"""Real file systems: how often a second a save of tinyllm can be cut, remounted and looked at."""

import time
from dataclasses import replace

from fault_injection.attempt import Command, Settings, run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.realfs import run_on_real
from fault_injection.volumes import unavailable, volume
from harness import tasks
from harness.benchmarks.figures import Figure, unmeasured
from harness.benchmarks.sizes import Setting
from harness.errors import CannotJudge
from harness.subjects import Subject, discover
from harness.workers import worker_pool

TARGET = 10.0
FILE_SYSTEM = "ext4"
FIRST_SAVE = "save.announced#1"
TIMEOUT_S = 120.0
NAME, WHAT = "realfs", f"cuts a second of a save of adamw on a real {FILE_SYSTEM}"


def realfs(setting: Setting) -> list[Figure]:
    """Cuts at places of the second save, each from an image that holds the first."""
    reason = unavailable(FILE_SYSTEM)
    if reason is not None:
        return [unmeasured(NAME, WHAT, reason)]
    [subject] = discover([setting.configs / "adamw.json"])
    with worker_pool(1, env=dict(subject.env)) as (executor, _):
        cuts, seconds = executor.submit(cut_often, subject, setting.sizes.cuts).result()
    return [cuts_figure(cuts, seconds)]


def cuts_figure(cuts: int, seconds: float) -> Figure:
    """The rate; each cut includes the resume that leads to its place, and the remount."""
    return Figure(
        name=NAME,
        what=WHAT,
        value=cuts / seconds,
        unit="cuts/s",
        target=TARGET,
        at_most=False,
        detail=f"{cuts} cuts in {seconds:.2f} s, each with a resume up to its place and a remount",
        rounds=cuts,
    )


def cut_often(subject: Subject, cuts: int) -> tuple[int, float]:
    """Cut ``cuts`` times; how many happened and how long they took. Run in a worker."""
    tasks.preload(subject)
    with volume(FILE_SYSTEM) as disk:
        settings = Settings(root=disk.path, timeout_s=TIMEOUT_S, fork=True)
        first = Fault(TriggerKind.POINT, FIRST_SAVE, ActionKind.KILL)
        _run(subject, settings, first, resuming=False)
        image = disk.keep()
        places = _places(subject, settings)
        chosen = [places[n * len(places) // cuts % len(places)] for n in range(cuts)]
        began = time.perf_counter()
        happened = 0
        for number, place in enumerate(chosen):
            disk.reset(image)
            fault = Fault(TriggerKind.CALL, place, ActionKind.KILL)
            found = run_on_real(
                _command(subject, disk.path),
                replace(settings, fault=fault),
                on=disk,
                committed=number % 2 == 1,
            )
            happened += found.cut
        return happened, time.perf_counter() - began


def _command(subject: Subject, root: str) -> Command:
    return subject.command(root=root, resuming=True)


def _run(subject: Subject, settings: Settings, fault: Fault, *, resuming: bool) -> None:
    command = subject.command(root=settings.root, resuming=resuming)
    attempt = run_attempt(command, replace(settings, fault=fault))
    if not attempt.fault_seen:
        raise CannotJudge(f"{subject.name}: {fault.describe()} did not happen: {attempt.stderr!r}")


def _places(subject: Subject, settings: Settings) -> list[str]:
    """The places that the resume passes up to the end of its first save."""
    attempt = run_attempt(_command(subject, settings.root), settings)
    if attempt.exit_code != 0:
        raise CannotJudge(f"{subject.name}: the resume failed: {attempt.stderr!r}")
    places = [place for place in attempt.places if not place.startswith("output")]
    last = next((n for n, p in enumerate(places) if p.startswith("rename-LATEST")), len(places) - 1)
    return places[: last + 2]
