"""A training run, from the first look at the disk to the last line of the progress file.

Start-up reads everything that the spec names, takes the run's lock, looks at what is there, and
decides; only then is anything changed. The loop makes a step, reports it, and every ``ckpt_every``
steps (and after the last one) saves. Steps are pure (see ``training``), so a run that resumes goes
on with the same bits.

One thread computes: the order of a sum would otherwise depend on chance, and a thread pool does
not survive a fork.

Not covered: more than one process, gradient accumulation, evaluation.
"""

import contextlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from fault_injection.points import point
from tinyllm import optim, progress
from tinyllm.durable import make_durable_directories, open_directory, sync_directory
from tinyllm.errors import NothingToResume, ResumeRefused, StorageFailed, TinyllmError
from tinyllm.lock import run_lock
from tinyllm.paths import ckpt_dir, parse_step_name, run_dir, step_name
from tinyllm.progress import History, Progress, SourceRecord
from tinyllm.provenance import git_sha
from tinyllm.reader import Found, find_checkpoint, list_directory
from tinyllm.resume import restore
from tinyllm.retention import Line, line_from
from tinyllm.signals import StopRequest
from tinyllm.state import Cursor, GeneratorState, TrainerState
from tinyllm.training import Inputs, Training, advance, begin, check_finite, read_inputs
from tinyllm.writer import Save, Snapshot, publish_pointer, save_checkpoint, sync_step_name

PROGRESS_FILE = "progress.jsonl"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. ``step_dir`` chooses the checkpoint to resume from."""

    spec_path: Path
    artifacts: Path
    run_id: str
    resume: bool = False
    step_dir: Path | None = None
    allow_spec_change: bool = False


@dataclass(frozen=True, slots=True)
class Run:
    """A run that was decided upon: where it writes, and what it knows of its directory."""

    ckpt: Path
    progress: Progress
    line: Line
    say: Say


def say(text: str) -> None:
    """A line for people, on stderr. That nobody may be there to read it is no error."""
    with contextlib.suppress(OSError):
        print(f"tinyllm: {text}", file=sys.stderr, flush=True)


def train(request: Request, *, stop: StopRequest) -> int:
    """Train to the end, or until ``stop`` asks to leave; returns the exit code.

    Raises a :class:`TinyllmError` for everything that keeps the run from that.
    """
    torch.set_num_threads(1)
    run = run_dir(request.artifacts, request.run_id)
    ckpt = ckpt_dir(run)
    inputs = read_inputs(request.spec_path)
    point("start.inputs-read")
    if request.step_dir is not None and not ckpt.is_dir():
        raise NothingToResume(f"{request.step_dir}: there is no run at {run}")
    if stop.signum:
        return stop.exit_code
    line = Line(tell=lambda name, reason: say(f"{name}: {reason}"))
    make_durable_directories(str(ckpt), unsupported=line.report)
    point("start.directories-made")
    with run_lock(run):
        point("start.locked")
        return _train_locked(request, inputs, run, stop=stop, report=line.report)


def _train_locked(
    request: Request,
    inputs: Inputs,
    run_path: Path,
    *,
    stop: StopRequest,
    report: Callable[[str, str], None],
) -> int:
    ckpt = ckpt_dir(run_path)
    history = progress.read_history(run_path / PROGRESS_FILE)
    if not request.resume:
        _refuse_to_overwrite(ckpt)
        found, training = None, begin(inputs)
        line = Line(tell=report)
    else:
        found = find_checkpoint(ckpt, request.step_dir)
        point("resume.found")
        line = line_from(found, tell=report)
        training = _resumed(found, request, inputs, history)
    point("start.model-made")
    if stop.signum:
        return stop.exit_code
    if found is not None and _is_finished(found, training, history):
        say(f"{ckpt / step_name(training.step)} is the last step: nothing to do")
        return 0
    opened = progress.open_progress(run_path / PROGRESS_FILE, history)
    try:
        with open_directory(str(run_path)) as directory:
            sync_directory(directory, unsupported=report)
        point("start.progress-opened")
        run = Run(ckpt=ckpt, progress=opened, line=line, say=say)
        _report_beginning(run, training, found)
        return _loop(run, training, stop=stop)
    except TinyllmError as error:
        # The disk that failed may be the one that this line would go to.
        with contextlib.suppress(StorageFailed):
            progress.emit(opened, progress.Error(opened.attempt, training.step, str(error)))
        raise
    finally:
        progress.close(opened)


def _refuse_to_overwrite(ckpt: Path) -> None:
    """A run that has checkpoints goes on with --resume or not at all."""
    with open_directory(str(ckpt)) as directory:
        listing = list_directory(directory)
    if listing.steps:
        raise ResumeRefused(
            f"{ckpt} has checkpoints up to {step_name(listing.steps[-1])}: use --resume to go on "
            "from them, or another --run-id for another run"
        )


def _resumed(found: Found, request: Request, inputs: Inputs, history: History) -> Training:
    """The state to go on from; a fresh one when nothing was ever saved."""
    checkpoint = found.checkpoint
    for name, reason in found.skips:
        say(f"skipped {name}: {reason}")
    wanted = request.step_dir and parse_step_name(request.step_dir.name)
    if checkpoint is not None and wanted is not None and wanted not in found.steps:
        # What does not verify is passed over for an older one; a slip of the pen is not, since
        # going back gives up everything newer.
        checkpoint.close()
        raise NothingToResume(
            f"{request.step_dir} does not exist; there are "
            + ", ".join(step_name(step) for step in found.steps)
        )
    if checkpoint is None:
        if found.steps or request.step_dir is not None:
            raise NothingToResume(
                f"no checkpoint in {ckpt_dir(run_dir(request.artifacts, request.run_id))} "
                f"can be resumed from:\n{found.why_nothing()}\n"
                "nothing was changed; restore one of them, or use another --run-id"
            )
        return begin(inputs)
    try:
        return restore(
            checkpoint,
            inputs,
            recorded_sources=history.sources,
            allow_spec_change=request.allow_spec_change,
        )
    finally:
        checkpoint.close()


def _is_finished(found: Found, training: Training, history: History) -> bool:
    """Whether all is made, saved, pointed at and reported, so that nothing is left to write."""
    checkpoint, last = found.checkpoint, history.last
    return (
        checkpoint is not None
        and training.step >= training.inputs.loaded.spec.steps
        and (found.rewound or found.pointer == step_name(checkpoint.step))
        and history.whole_bytes == history.size_bytes
        and last is not None
        and (last.kind, last.step) == ("done", training.step)
    )


def _report_beginning(run: Run, training: Training, found: Found | None) -> None:
    """The lines that say where this attempt starts, and why there."""
    attempt, loaded = run.progress.attempt, training.inputs.loaded
    sources = tuple(SourceRecord(*source) for source in training.inputs.dataset.sources)
    for name, reason in found.skips if found else ():
        progress.emit(run.progress, progress.Skip(attempt, name, reason))
    if found is None or found.checkpoint is None:
        if found is not None:
            run.say(f"{run.ckpt} has no checkpoint: starting from the first step")
        start = progress.Start(attempt, loaded.spec.steps, loaded.sha256, sources)
        progress.emit(run.progress, start)
        point("start.reported")
        return
    name = step_name(training.step)
    run.say(f"resuming from {found.checkpoint.path}")
    progress.emit(
        run.progress,
        progress.Resume(attempt, training.step, name, loaded.spec.steps, loaded.sha256, sources),
    )
    point("resume.reported")
    if found.pointer != name and not found.rewound:
        _repair_pointer(run, training.step)


def _repair_pointer(run: Run, step: int) -> None:
    """LATEST was missing or useless: let it name what was found instead.

    A crash may have come between the checkpoint's rename and LATEST's, so this is the rest of that
    save: its name is made durable, then LATEST, and then it is acknowledged.
    """
    with open_directory(str(run.ckpt)) as directory:
        names = set(list_directory(directory).names)
        rest = Save(ckpt=directory, name=step_name(step), names=names, line=run.line)
        sync_step_name(rest)
        publish_pointer(rest, rest.name)
    point("resume.pointer-repaired")
    _acknowledge(run, step)


def _acknowledge(run: Run, step: int) -> None:
    progress.emit(run.progress, progress.Ckpt(run.progress.attempt, step, step_name(step)))


def _loop(run: Run, training: Training, *, stop: StopRequest) -> int:
    """Step, report, save, until the last step or a signal."""
    spec = training.inputs.loaded.spec
    attempt = run.progress.attempt
    while training.step < spec.steps and not stop.signum:
        loss = advance(training)
        progress.emit(
            run.progress, progress.step_line(attempt, training.step, loss=loss, lr=training.lr)
        )
        point("step.reported")
        if training.step % spec.ckpt_every == 0 or training.step == spec.steps:
            save(run, training)
    if training.step < spec.steps:
        if training.step > training.saved_step:
            save(run, training)
        run.say(f"stopped after step {training.step} of {spec.steps}; --resume goes on")
        return stop.exit_code
    progress.emit(run.progress, progress.Done(attempt, training.step))
    point("end.reported")
    progress.sync(run.progress)
    point("end.progress-synced")
    run.say(f"done: step {training.step}, {run.ckpt / step_name(training.step)}")
    return 0


def save(run: Run, training: Training) -> None:
    """Save the state as it is. The lines of its steps are made durable first."""
    check_finite(training)
    progress.sync(run.progress)
    point("save.progress-synced")
    loaded = training.inputs.loaded
    save_checkpoint(
        run.ckpt,
        snapshot(training),
        keep_ckpts=loaded.spec.keep_ckpts,
        announce=lambda step: _acknowledge(run, step),
        line=run.line,
    )
    training.saved_step = training.step


def snapshot(training: Training) -> Snapshot:
    """What a checkpoint of this state holds; the tensors themselves, not copies."""
    loaded, position = training.inputs.loaded, training.order.position
    return Snapshot(
        step=training.step,
        parameters=[(name, value.detach()) for name, value in training.parameters.items()],
        optimizer=optim.state_tensors(training.optimizers),
        optimizer_name=training.optimizers.name,
        config=loaded.config_bytes,
        tokenizer=training.inputs.tokenizer,
        generation_config=loaded.generation_config_bytes,
        state=TrainerState(
            step=training.step,
            tokens_seen=training.tokens_seen,
            cursor=Cursor(epoch=position.epoch, next_window=position.next_window),
            generator=GeneratorState(
                state=str(position.generator.state),
                increment=str(position.generator.increment),
            ),
            lr=training.lr,
            spec_sha256=loaded.sha256,
            git_sha=git_sha(),
        ),
    )
