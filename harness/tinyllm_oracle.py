"""The invariants that need tinyllm's format: what LATEST, the manifests and the log say.

Pure functions over a case's history, like those of ``harness.oracle``.
"""

from collections.abc import Callable

from harness.baseline import Baseline
from harness.evidence import Finding, History, Step
from harness.observation import acks_of
from harness.tinyllm_state import RunState
from tinyllm.paths import MANIFEST, step_name


def pointer_complete(history: History, baseline: Baseline) -> list[Finding]:
    """At every instant that a kill can leave, LATEST is absent or names a complete checkpoint."""
    del baseline
    for number, step in enumerate(history.steps, start=1):
        state = step.after
        if state is not None and state.pointer_problem:
            return [
                Finding(
                    "pointer-complete",
                    f"after attempt {number} LATEST {state.pointer_problem}",
                    expected="LATEST absent, or naming a directory whose manifest verifies",
                    found=state.pointer_problem,
                )
            ]
    return []


def never_mixed(history: History, baseline: Baseline) -> list[Finding]:
    """What an attempt resumed from is one checkpoint: every file of one and the same step."""
    by_digest = {
        digest: (step, name)
        for step, files in sorted(baseline.step_files.items())
        for name, digest in files.items()
        if _varies(baseline, name)
    }
    for number, (before, step) in enumerate(
        zip(history.steps, history.steps[1:], strict=False), start=2
    ):
        if step.after is None or before.after is None or step.after.resumed_from is None:
            continue
        resumed = step.after.resumed_from
        expected = baseline.step_files.get(resumed, {})
        for name, digest in sorted((before.after.files or {}).get(resumed, {}).items()):
            other = by_digest.get(digest)
            if digest != expected.get(name) and other is not None and other[0] != resumed:
                return [
                    Finding(
                        "never-mixed",
                        f"attempt {number} resumed from step {resumed}, whose {name} is that of "
                        f"step {other[0]}",
                        expected=f"every file of step {resumed}",
                        found=f"{name} of step {other[0]}",
                    )
                ]
    return []


def _varies(baseline: Baseline, name: str) -> bool:
    """Whether a file's content differs from step to step (config.json's does not)."""
    digests = [files[name] for files in baseline.step_files.values() if name in files]
    return len(set(digests)) == len(digests) and len(digests) > 1


def progress_readable(history: History, baseline: Baseline) -> list[Finding]:
    """The progress file is whole JSON lines after the resume, and no step is missing."""
    last = history.steps[-1]
    if last.after is None or not last.succeeded:
        return []
    if last.after.progress_problem:
        return [
            Finding(
                "progress-readable",
                f"progress.jsonl {last.after.progress_problem}",
                expected="whole JSON lines",
                found=last.after.progress_problem,
            )
        ]
    missing = sorted({e.step for e in baseline.losses} - last.after.progress_steps)
    if missing:
        return [
            Finding(
                "progress-readable",
                f"progress.jsonl has no line of step {missing[0]}",
                expected=f"a line for each of {len(baseline.losses)} steps",
                found=f"{len(missing)} missing",
            )
        ]
    return []


def retention(history: History, baseline: Baseline) -> list[Finding]:
    """At most keep_ckpts plus the one being written; never fewer complete ones than promised.

    While a rewind saves again what it gives up, the old one and the new one may both be without
    their name: what verifies under a temporary one counts then. With its first save the line that
    it gave up may go, and once it has gone on, nothing of that is left.
    """
    keep = history.subject.keep_ckpts
    acknowledged: set[int] = set()
    rewound = False
    findings: list[Finding] = []
    before: RunState | None = None
    for number, step in enumerate(history.steps, start=1):
        state = step.after
        acks = acks_of(step.events)
        rewound |= step.rewound_to is not None
        if step.rewound_to is not None and acks and before is not None:
            acknowledged = {s for s in before.complete if s <= step.rewound_to}
        acknowledged |= {a.step for a in acks}
        before = state
        if state is None:
            continue
        there = len(state.complete) + len(state.broken)
        # Each crash may leave one more that the next complete save removes.
        if there > keep + number:
            findings.append(
                Finding(
                    "retention",
                    f"{there} step directories stood after attempt {number}",
                    expected=f"at most {keep + number} with keep_ckpts {keep}",
                    found=str(there),
                )
            )
        for name in _given_up(step):
            findings.append(
                Finding(
                    "retention",
                    f"{name} of the line that was given up stood after attempt {number}",
                    expected="the checkpoints after a rewind removed by its first complete save",
                    found=name,
                )
            )
        promised = min(keep, len(acknowledged))
        complete = len(state.complete) + (len(state.spare) if rewound else 0)
        if complete < promised and history.layer != "corrupt":
            findings.append(
                Finding(
                    "retention",
                    f"only {complete} complete checkpoints stood after attempt {number}",
                    expected=f"at least {promised}",
                    found=str(complete),
                )
            )
    last = history.steps[-1]
    saved_since_the_fault = bool(acks_of(last.events)) and last.succeeded
    if last.after is not None and saved_since_the_fault and len(history.steps) > 1:
        if last.after.temporary:
            findings.append(
                Finding(
                    "retention",
                    f"{last.after.temporary[0]} was left behind by the crash and never removed",
                    expected="nothing temporary after the next complete save",
                    found=", ".join(last.after.temporary),
                )
            )
        for name in _half_deleted(last.after, baseline):
            findings.append(
                Finding(
                    "retention",
                    f"{name} was left behind half deleted, and never removed",
                    expected="whole step directories after the next complete save",
                    found=f"{name} without some of its files",
                )
            )
        if len(last.after.complete) > keep:
            findings.append(
                Finding(
                    "retention",
                    f"{len(last.after.complete)} checkpoints were kept to the end",
                    expected=f"keep_ckpts {keep}",
                    found=str(len(last.after.complete)),
                )
            )
    return findings[:1]


def _given_up(step: Step) -> list[str]:
    """The complete checkpoints after the last loss that a rewinding attempt printed.

    Only when that loss came after an acknowledgement of its own, with whose save they had to go.
    """
    events = step.events if step.rewound_to is not None else ()
    first = next((n for n, e in enumerate(events) if e.kind == "ack"), len(events))
    steps = [e.step for e in events[first:] if e.kind == "loss"]
    if step.after is None or not steps:
        return []
    return [step_name(s) for s in sorted(step.after.complete) if s > max(steps)]


def _half_deleted(state: RunState, baseline: Baseline) -> list[str]:
    """The step directories that lack files of theirs, the others being whole."""
    found = []
    for name, _ in state.broken:
        step = int(name.partition("-")[2])
        expected = baseline.step_files.get(step)
        files = (state.files or {}).get(step, {})
        left = {file: digest for file, digest in files.items() if file != MANIFEST}
        if expected and left.items() <= expected.items() and {MANIFEST, *expected} - files.keys():
            found.append(name)
    return found


def no_silent_restart(history: History, baseline: Baseline) -> list[Finding]:
    """It does not start from nothing when a complete checkpoint exists."""
    del baseline
    for number, (before, step) in enumerate(
        zip(history.steps, history.steps[1:], strict=False), start=2
    ):
        if before.after is None or step.after is None:
            continue
        if step.after.started_fresh and before.after.complete:
            newest = max(before.after.complete)
            return [
                Finding(
                    "no-silent-restart",
                    f"attempt {number} started from nothing although step {newest} was complete",
                    expected=f"a resume from step {newest}",
                    found="a fresh start",
                )
            ]
    return []


Check = Callable[[History, Baseline], list[Finding]]

CHECKS: dict[str, Check] = {
    "pointer-complete": pointer_complete,
    "no-silent-restart": no_silent_restart,
    "never-mixed": never_mixed,
    "progress-readable": progress_readable,
    "retention": retention,
}
