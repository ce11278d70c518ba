"""The oracle: the invariants, as functions over what a case's attempts did.

Pure: it reads no disk and no clock. The runner gathers a :class:`History`; each invariant is one
function ``(History, Baseline) -> list of findings``; :func:`judge` runs those that apply.

What counts as "resumed from before N" is learned from the baseline, so that no numbering is
assumed: there, after acknowledgement N, the next loss printed was that of step s; a resumed attempt
whose first loss is of a step before s has lost N. Of a step that has several losses, an attempt
begins with the one from which on all that it printed fits, the last of those that do.
"""

from collections.abc import Callable, Sequence

from fault_injection.faults import TriggerKind
from harness import tinyllm_oracle
from harness.baseline import Baseline
from harness.evidence import Finding, History, Step
from harness.observation import Event, losses_of
from harness.promises import next_loss_after
from harness.subjects import Subject

Check = Callable[[History, Baseline], list[Finding]]


def resumable(history: History, baseline: Baseline) -> list[Finding]:
    """The last attempt ends with its success status within its time limit."""
    del baseline
    last = history.steps[-1]
    word = "resumed" if last.resuming else "started"
    if last.timed_out:
        return [Finding("resumable", f"the {word} attempt did not end within its time limit")]
    if last.bounded:
        return [Finding("resumable", f"the {word} attempt was stopped: {last.bounded}")]
    if last.succeeded:
        return []
    how = f"exit code {last.exit_code}" if last.signal is None else f"signal {last.signal}"
    return [
        Finding(
            "resumable",
            f"the {word} attempt failed with {how}: {_last_line(last.output)}",
            expected="exit code 0",
            found=how,
        )
    ]


def same_losses(history: History, baseline: Baseline) -> list[Finding]:
    """Every loss has the uninterrupted run's bits of that step, through to the last."""
    if history.subject.losses is None:
        return []
    expected = {e.step: e.loss for e in reversed(baseline.losses)}
    for number, step in enumerate(history.steps, start=1):
        for event in losses_of(step.events):
            want = expected.get(event.step)
            if want is None:
                return [
                    Finding(
                        "same-losses",
                        f"attempt {number} trained step {event.step}, which the uninterrupted run "
                        "never had",
                        expected=f"steps {baseline.losses[0].step} to {baseline.losses[-1].step}",
                        found=f"step {event.step}",
                    )
                ]
            if event.loss != want and not _repeated(event, baseline):
                return [
                    Finding(
                        "same-losses",
                        f"step {event.step} of attempt {number} had loss {event.loss}; "
                        f"uninterrupted it is {want}",
                        expected=want,
                        found=event.loss,
                    )
                ]
    return _through_to_the_last(history, baseline)


def _repeated(event: Event, baseline: Baseline) -> bool:
    """A program may print several losses of one step (training and validation)."""
    return any(e.step == event.step and e.loss == event.loss for e in baseline.losses)


def _through_to_the_last(history: History, baseline: Baseline) -> list[Finding]:
    last = history.steps[-1]
    if not last.succeeded:
        return []
    wanted = [e.step for e in baseline.losses]
    printed = [e.step for e in losses_of(last.events)]
    if printed:
        rest = wanted[_start(losses_of(last.events), baseline) :]
        if printed != rest:
            missing = [s for s in rest if s not in printed]
            return [
                Finding(
                    "same-losses",
                    f"the last attempt ended with success after step {printed[-1]}, but did not "
                    f"train {_steps(missing)}"
                    if missing
                    else f"the last attempt trained its steps in another order: {_steps(printed)}",
                    expected=_steps(rest),
                    found=_steps(printed),
                )
            ]
        return []
    seen_last = any(e.step == wanted[-1] for step in history.steps for e in losses_of(step.events))
    if seen_last or history.tree_is_final:
        return []
    return [
        Finding(
            "same-losses",
            f"the last attempt ended with success without training to step {wanted[-1]}",
            expected=f"losses through step {wanted[-1]}",
            found="none",
        )
    ]


def same_final(history: History, baseline: Baseline) -> list[Finding]:
    """The final artifacts are those of the uninterrupted run."""
    if not history.subject.final or not history.steps[-1].succeeded:
        return []
    want, got = baseline.final, history.final
    names = sorted(want.keys() | got.keys())
    other = [name for name in names if want.get(name) != got.get(name)]
    if not other:
        return []
    # A manifest differs whenever anything does; what it differs for says more.
    name = min(other, key=lambda n: (n.endswith("MANIFEST.json"), n))
    if name not in got:
        said = f"the final file {name} is missing"
    elif name not in want:
        said = f"there is a final file {name} that the uninterrupted run does not leave"
    else:
        said = f"the final file {name} differs"
    more = f", and {len(other) - 1} more differ" if len(other) > 1 else ""
    return [Finding("same-final", said + more, want.get(name, "absent"), got.get(name, "missing"))]


def no_lost_ack(history: History, baseline: Baseline) -> list[Finding]:
    """After acknowledgement N no later crash makes the program resume from before N."""
    return [f for f in _lost_acks(history, baseline) if f.invariant == "no-lost-ack"]


def ack_after_durable(history: History, baseline: Baseline) -> list[Finding]:
    """The acknowledgement was the last thing that happened, and already then it was too early."""
    return [f for f in _lost_acks(history, baseline) if f.invariant == "ack-after-durable"]


def no_silent_restart(history: History, baseline: Baseline) -> list[Finding]:
    """It does not start from nothing when a complete checkpoint exists."""
    return [f for f in _lost_acks(history, baseline) if f.invariant == "no-silent-restart"]


def _lost_acks(history: History, baseline: Baseline) -> list[Finding]:
    """What the acknowledgements seen so far promised, held against each resumed attempt.

    An explicit rewind gives up what was acknowledged after the step that it goes back to; that
    step itself must still be there.
    """
    if not baseline.promises:
        return []
    promises = {p.step: p for p in baseline.promises}
    best = -1
    acknowledged = -1
    crashed: Step | None = None
    findings: list[Finding] = []
    for step in history.steps:
        losses = losses_of(step.events)
        begun = _start(losses, baseline)
        if step.rewound_to is not None:
            promise = promises.get(step.rewound_to)
            best, acknowledged = (promise.next_loss if promise else -1), step.rewound_to
            crashed = None  # its last acknowledgement is not the one that counts here
        if step.resuming and losses and best > begun:
            start = losses[0].step
            where = "nothing" if begun == 0 else f"before step {start}"
            said = (
                f"step {acknowledged} was acknowledged as saved; after the crash training resumed"
            )
            expected = (
                f"first loss of step {baseline.losses[best].step}"
                if best < len(baseline.losses)
                else "no loss: all was done"
            )
            found = f"first loss of step {start}"
            findings.append(Finding("no-lost-ack", f"{said} from {where}", expected, found))
            if begun == 0:
                findings.append(
                    Finding(
                        "no-silent-restart",
                        f"training started from nothing although step {acknowledged} was saved",
                        expected,
                        found,
                    )
                )
            if crashed is not None and crashed.calls_since_ack == 0:
                findings.append(
                    Finding(
                        "ack-after-durable",
                        f"step {acknowledged} was acknowledged before its checkpoint would "
                        "survive, or the resume passes it over",
                        expected,
                        found,
                    )
                )
            best = -1  # one lost acknowledgement is told once
        printed = begun
        for event in step.events:
            if event.kind == "loss":
                printed += 1
                continue
            promise = promises.get(event.step)
            next_loss = promise.next_loss if promise else _promised_anew(event, printed, baseline)
            if next_loss > best:
                best, acknowledged = next_loss, event.step
        crashed = step
    return findings


def _promised_anew(event: Event, printed: int, baseline: Baseline) -> int:
    """The next loss after an acknowledgement that the uninterrupted run did not give; -1: unknown.

    One that saves on a signal does so. What its number is about is known where it counts steps.
    ``printed`` is how far in the uninterrupted run's losses the attempt was.
    """
    if not baseline.acks_count_steps:
        return -1
    return next_loss_after(event.step, printed, baseline.losses)


def error_is_clear(history: History, baseline: Baseline) -> list[Finding]:
    """Under an injected error: a non-zero exit or a stated fallback, naming the file."""
    del baseline
    findings = []
    for number, step in enumerate(history.steps, start=1):
        if step.fault is None or not step.fault_seen or step.fault.trigger is not TriggerKind.CALL:
            continue
        if str(step.fault.action) not in ("errno",) or step.fault.detail == "EINTR":
            continue
        name = step.fault.place.partition("-")[2].rpartition("#")[0]
        name = "{root}" if name == "." else name  # as the output has it
        said = name in step.output or name == "~"
        if not said:
            findings.append(
                Finding(
                    "error-is-clear",
                    f"attempt {number} did not name the file: {step.fault.describe()}",
                    expected=f"a message that names {name}",
                    found=_last_line(step.output),
                )
            )
    return findings


GENERAL: dict[str, Check] = {
    "resumable": resumable,
    "no-lost-ack": no_lost_ack,
    "no-silent-restart": no_silent_restart,
    "ack-after-durable": ack_after_durable,
    "same-losses": same_losses,
    "same-final": same_final,
}


def invariants_of(subject: Subject, *, layers: list[str]) -> list[str]:
    """Which invariants are checked for a subject under the layers, for the result."""
    names = ["resumable"]
    if subject.acknowledged and subject.losses:
        names += ["no-lost-ack", "no-silent-restart", "ack-after-durable"]
    if subject.losses:
        names.append("same-losses")
    if subject.final:
        names.append("same-final")
    if subject.format == "tinyllm":
        names += [n for n in tinyllm_oracle.CHECKS if n not in names]
    if {"error", "corrupt"} & set(layers):
        names.append("error-is-clear")
    return names


def judge(history: History, baseline: Baseline) -> list[Finding]:
    """All findings of a case, in a fixed order."""
    checks = dict(GENERAL)
    if history.layer in ("error", "corrupt"):
        checks["error-is-clear"] = error_is_clear
    findings = [f for name in checks for f in checks[name](history, baseline)]
    if history.subject.format == "tinyllm":
        for check in tinyllm_oracle.CHECKS.values():
            findings += [f for f in check(history, baseline) if f not in findings]
    return findings


def _start(losses: Sequence[Event], baseline: Baseline) -> int:
    """Where in the uninterrupted run's losses an attempt began, by those that it printed.

    Beyond the last where it printed none, or one of an unknown step.
    """
    known = baseline.losses
    if not losses:
        return len(known)
    begins = [i for i, e in enumerate(known) if e.step == losses[0].step]
    fitting = [i for i in begins if all(map(_is_alike, losses, known[i:]))]
    following = [i for i in begins if all(map(_is_of_one_step, losses, known[i:]))]
    return (fitting or following or begins or [len(known)])[-1]


def _is_of_one_step(one: Event, other: Event) -> bool:
    return one.step == other.step


def _is_alike(one: Event, other: Event) -> bool:
    return (one.step, one.loss) == (other.step, other.loss)


def _steps(steps: list[int]) -> str:
    if not steps:
        return "no steps"
    if len(steps) == 1:
        return f"step {steps[0]}"
    return f"steps {', '.join(map(str, steps[:8]))}{', ...' if len(steps) > 8 else ''}"


def _last_line(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "it printed nothing"
