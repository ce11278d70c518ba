"""What a worker process is asked to do: functions of plain data, run by any executor.

A worker has one scratch directory and does one task at a time, since it forks. Modules that a
subject wants preloaded are imported once a worker.
"""

import gc
import importlib
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from harness.baseline import Baseline, run_baseline
from harness.cases import Case
from harness.errors import UsageError
from harness.explaining import Explained, Why, explain_kill, explain_model, explain_state
from harness.forkproof import proven
from harness.power.explore import Exploration, Explored, explore
from harness.realfs import run_cuts
from harness.recordings import trace_of
from harness.rerun import KeptRun, rerun_case, rerun_state, smaller_states, states_of
from harness.runner import Outcome, run_case
from harness.subjects import Subject
from harness.underway import Told

ENV_SCRATCH = "DURABILITY_SCRATCH"


def scratch() -> Path:
    """This worker's scratch directory (made by the guardian's run directory, or temporary)."""
    base = os.environ.get(ENV_SCRATCH) or tempfile.gettempdir()
    path = Path(base) / f"worker-{os.getpid()}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def preload(subject: Subject) -> None:
    """Import what the subject's attempts will find imported. Raises :class:`UsageError`."""
    new = [module for module in subject.preload if module not in sys.modules]
    for module in new:
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise UsageError(
                f"{subject.name}: preload {module!r} cannot be imported: {error}"
            ) from error
    if new:
        # A fork collects garbage when it ends; what is loaded here must be no part of that, or
        # every attempt walks through all of torch and copies its pages (half a second each).
        gc.collect()
        gc.freeze()


def baseline_task(subject: Subject, fork: bool, keep_trace: str | None) -> Baseline:
    """The subject's baseline; its traces are stored where ``keep_trace`` says when it is given."""
    preload(subject)
    baseline, traces = run_baseline(subject, scratch(), fork=fork)
    baseline = proven(subject, baseline, scratch())
    if keep_trace is not None and traces:
        from fault_injection.tracestore import save_trace

        for number, trace in enumerate(traces):
            save_trace(trace, trace_of(keep_trace, number))
    return baseline


def case_task(subject: Subject, baseline: Baseline, case: Case) -> Outcome:
    """One case, run and judged."""
    preload(subject)
    return run_case(subject, baseline, case, scratch())


def cuts_task(
    subject: Subject, baseline: Baseline, file_system: str, cases: Sequence[Case], told: str = ""
) -> list[Outcome]:
    """Cases on a real file system that loses power, one after another on one volume.

    ``told`` is the task's file of :mod:`harness.underway`; stopped, the first outcomes only.
    """
    preload(subject)
    return run_cuts(subject, baseline, file_system, cases, told=Told(told))


def explore_task(
    explorations: Sequence[Exploration], told: str = "", deadline_s: float | None = None
) -> list[Explored]:
    """The crash states at some places of a recorded run, judged under one model after another.

    ``told`` is the task's file of :mod:`harness.underway`; stopped, what was judged by then.
    """
    preload(explorations[0].subject)
    telling = Told(told, deadline_s)
    done: list[Explored] = []
    for exploration in explorations:
        before = sum(e.states for e in done)
        done.append(explore(exploration, scratch(), told=telling, before=before))
        if telling.must_stop:
            break
    return done


def kept_case_task(subject: Subject, baseline: Baseline, case: Case, directory: str) -> KeptRun:
    """One case again, with the trees that its attempts left and all that they said kept."""
    preload(subject)
    return rerun_case(subject, baseline, case, scratch(), Path(directory))


def kept_state_task(exploration: Exploration, case: Case, directory: str) -> KeptRun:
    """One crash state again, with its tree and the resumed attempt kept."""
    preload(exploration.subject)
    return rerun_state(exploration, case, scratch(), Path(directory))


def smaller_states_task(exploration: Exploration, case: Case) -> list[Case]:
    """The crash states up to the case's place that lose fewer operations, the smallest first."""
    return smaller_states(exploration, case, scratch())


def power_cases_task(exploration: Exploration) -> list[Case]:
    """Every crash state as a case, without judging any."""
    return states_of(exploration, scratch())


def explain_state_task(exploration: Exploration, case: Case) -> Why | None:
    """Why the crash state of a power case is bad; None: it is good."""
    preload(exploration.subject)
    return explain_state(exploration, case, scratch())


def explain_kill_task(exploration: Exploration, place: str) -> str:
    """Which operation makes a kill before ``place`` harmful."""
    preload(exploration.subject)
    return explain_kill(exploration, place, scratch())


def explain_model_task(exploration: Exploration, budget_s: float) -> Explained:
    """Which fsyncs mend a recorded run under a model, or which of its own nobody needs."""
    preload(exploration.subject)
    return explain_model(exploration, scratch(), budget_s=budget_s)
