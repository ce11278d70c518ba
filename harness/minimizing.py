"""Minimising a failing case: fewer faults, an earlier place, fewer lost operations.

Each candidate is run; it replaces the case when it breaks one of the same invariants. The number
of runs is bounded, and said when it was met.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from fault_injection.faults import Fault, TriggerKind
from harness import planning, tasks
from harness.cases import Case
from harness.reproduction import Found, Prepared, explorations, rerun, rewinds

MOST_RUNS = 60
SAID_EVERY = 10


def minimized(found: Found, prepared: Prepared, *, say: Callable[[str], None]) -> Found:
    """The smallest case that was found to break one of the same invariants."""
    case = found.case
    wanted = _broken(case, prepared, number=0)
    if not wanted:
        say("nothing to minimise: the case breaks no invariant now")
        return found
    if case.layer.startswith("power/"):
        say("looking for crash states that lose less")
        [exploration] = explorations(prepared, case.layer.partition("/")[2], case=case)
        smaller = prepared.executor.submit(tasks.smaller_states_task, exploration, case).result()
        candidates: Iterator[Case] = iter(smaller)
    else:
        candidates = _smaller(case, prepared)
    runs = 0
    for candidate in candidates:
        runs += 1
        if runs > MOST_RUNS:
            say(f"stopped after {MOST_RUNS} runs; a smaller case may exist")
            break
        if runs % SAID_EVERY == 1:
            say(f"trying smaller cases, {runs} to {runs + SAID_EVERY - 1} of at most {MOST_RUNS}")
        if _broken(candidate, prepared, number=runs) & wanted:
            say(f"minimised to {candidate.id}")
            return Found(candidate)
    if runs <= MOST_RUNS:
        say("no smaller case breaks the same invariant")
    return found


def _broken(case: Case, prepared: Prepared, *, number: int) -> set[str]:
    directory = Path(prepared.temp_dir) / f"minimise-{number}"
    return {f.invariant for f in rerun(case, prepared, directory=directory).outcome.findings}


def _smaller(case: Case, prepared: Prepared) -> Iterator[Case]:
    """Smaller cases, the smallest first: one fault before two, an earlier place before a later.

    A case with a rewind keeps it, and the first fault, without which there is nothing to go back
    from.
    """
    subject, baseline = prepared.subject, prepared.baseline
    if case.layer in ("signal", "error"):
        plan = (
            planning.signal_cases(subject, baseline)
            if case.layer == "signal"
            else planning.error_cases(subject, baseline, saves=None)
        )
        alike = (_kind_of(c.faults[0]) == _kind_of(case.faults[0]) for c in plan)
        for candidate, same in zip(plan, alike, strict=True):
            if candidate == case:
                return
            if same:
                yield candidate
        return
    at_point = case.faults[-1 if case.rewind else 0].trigger is TriggerKind.POINT
    fewest = 2 if case.rewind else 1
    simple: Iterable[Case]
    if case.rewind:
        simple = rewinds(prepared, "point" if at_point else "kill")
    elif at_point:
        simple = planning.point_cases(subject, baseline)
    else:
        simple = planning.kill_cases(subject, baseline)
    for candidate in simple:
        if len(case.faults) <= fewest and candidate.faults == case.faults:
            return
        yield candidate
    for length in range(fewest + 1, len(case.faults)):
        yield replace(case, faults=case.faults[:length])
    for left_out in range(fewest - 1, len(case.faults)):
        fewer = case.faults[:left_out] + case.faults[left_out + 1 :]
        if len(fewer) > fewest:
            yield replace(case, faults=fewer)


def _kind_of(fault: Fault) -> tuple[str, str, int]:
    return str(fault.action), fault.detail, fault.times
