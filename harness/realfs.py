"""The realfs layer: a real file system loses power at a place, and the subject resumes on it.

Each place is cut twice: right there, which shows what was forced so far, and after a forced
commit, which shows what the file system could have written by itself a moment later. What came
back is the truth about this kernel's file system; the models of the power layer must contain it.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from fault_injection.attempt import run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.realfs import run_on_real
from fault_injection.volumes import Image, Volume, unavailable, volume
from harness.artifacts import digests
from harness.baseline import Baseline
from harness.cases import Case
from harness.errors import CannotJudge
from harness.evidence import History
from harness.observation import is_output
from harness.oracle import judge
from harness.planning import places_of_saves
from harness.results import FAIL, INCONCLUSIVE, PASS
from harness.runner import Kept, Outcome, settings, step_of, tree_is_final
from harness.scratch import copied
from harness.subjects import Subject
from harness.underway import Told

COMMITTED = "committed"
CASES_A_VOLUME = 12


def realfs_cases(
    subject: Subject, baseline: Baseline, file_system: str, *, saves: Sequence[int] | None
) -> list[Case]:
    """Before every changing call of the saves and at the end, cut at once and after a commit."""
    faults = [
        Fault(TriggerKind.CALL, place, ActionKind.KILL)
        for place in places_of_saves(baseline, saves)
    ]
    faults.append(Fault(TriggerKind.AFTER_LAST_CALL, "end", ActionKind.KILL))
    return [
        Case(
            subject=subject.name,
            layer=f"realfs/{file_system}",
            faults=(fault,),
            place=f"{fault.place}{'-committed' if committed else ''}",
            state=((COMMITTED, "yes" if committed else "no"),),
        )
        for fault in faults
        for committed in (False, True)
    ]


def batches(cases: Sequence[Case]) -> Iterable[Sequence[Case]]:
    """The cases that share a volume."""
    for start in range(0, len(cases), CASES_A_VOLUME):
        yield cases[start : start + CASES_A_VOLUME]


def run_cuts(
    subject: Subject,
    baseline: Baseline,
    file_system: str,
    cases: Sequence[Case],
    *,
    told: Told,
) -> list[Outcome]:
    """Run the cases on one volume, each from an empty file system; ``told`` may stop it."""
    outcomes: list[Outcome] = []
    with volume(file_system) as on:
        blank = on.keep()
        for case in cases:
            if told.count(len(outcomes)):
                break
            outcomes.append(_run_cut(subject, baseline, case, on, blank))
    return outcomes


def rerun_cut(subject: Subject, baseline: Baseline, case: Case, kept: Kept) -> Outcome:
    """One case again, with the tree that came back, the tree in the end, and the attempts kept.

    Raises :class:`CannotJudge` where there are no such volumes.
    """
    file_system = case.layer.partition("/")[2]
    if (reason := unavailable(file_system)) is not None:
        raise CannotJudge(f"{case.id}: {case.layer} cannot run here: {reason}")
    with volume(file_system) as on:
        return _run_cut(subject, baseline, case, on, on.keep(), kept=kept)


def _run_cut(
    subject: Subject,
    baseline: Baseline,
    case: Case,
    on: Volume,
    blank: Image,
    *,
    kept: Kept | None = None,
) -> Outcome:
    began = time.monotonic()
    on.reset(blank)
    root = Path(on.path)
    fault = case.faults[0]
    record_to = str(kept.directory / "spool") if kept else None
    chosen = settings(subject, baseline, root=root, fault=fault, record_to=record_to)
    real = run_on_real(
        subject.command(root=on.path, resuming=False),
        replace(chosen, supervise=True, root=on.path),
        on=on,
        committed=dict(case.state)[COMMITTED] == "yes",
    )
    if kept is not None:
        copied(root, kept.state(1))
    crashed = step_of(real.attempt, subject=subject, root=root, fault=fault, resuming=False)
    crashed = replace(crashed, evidence=real.evidence, fault_seen=real.cut)
    if not real.cut:
        return Outcome(
            case=case,
            verdict=INCONCLUSIVE,
            findings=(),
            evidence="",
            seconds=time.monotonic() - began,
            message=f"the power was not cut: {fault.describe()} was never reached"
            + _otherwise(real.attempt.places, baseline, file_system=case.layer.partition("/")[2]),
            attempts=(real.attempt,) if kept is not None else (),
        )
    resume = run_attempt(
        subject.command(root=on.path, resuming=True),
        settings(subject, baseline, root=root, fault=None, observe_reads=kept is not None),
    )
    if kept is not None:
        copied(root, kept.state(2))
    step = step_of(resume, subject=subject, root=root, fault=None, resuming=True)
    history = History(
        subject=subject,
        layer=case.layer,
        steps=(crashed, step),
        final=digests(root, subject.final, compare=subject.compare),
        tree_is_final=tree_is_final(root, baseline),
    )
    findings = tuple(judge(history, baseline))
    return Outcome(
        case=case,
        verdict=FAIL if findings else PASS,
        findings=findings,
        evidence=real.evidence,
        seconds=time.monotonic() - began,
        timed_out=step.timed_out,
        attempts=(real.attempt, resume) if kept is not None else (),
        history=history if kept is not None else None,
    )


def _otherwise(places: Sequence[str], baseline: Baseline, *, file_system: str) -> str:
    """Where the program went another way than where it was recorded; empty when it did not.

    A program may ask what the file system can do (O_DIRECT, a lock, a hole), and do without.
    """
    known = frozenset(baseline.places)
    other = next((p for p in places if not is_output(p) and p not in known), None)
    if other is None:
        return ""
    return (
        f". On {file_system} the program made the call {other}, which it did not make where it was "
        "recorded: what it does depends on the file system. Set DURABILITY_RUNTIME_DIR to a "
        f"directory on {file_system}"
    )
