"""Is it right to go on from this checkpoint? And putting it back in place.

That the files are those that were saved is proved before we come here (see ``verification``). Here
the checkpoint is held against the run that wants to go on: the spec, the data and the tokenizer
are the same; the optimizer is of the same kind; every parameter and state is there with its shape
and type; the data cursor and its generator are where that many steps lead. A difference is refused
by name, before anything is changed. ``--allow-spec-change`` lets the first of these pass; the rest
cannot be made right by wishing.
"""

from collections.abc import Mapping

from fault_injection.points import point
from tinyllm import data, model, optim
from tinyllm.data import Position
from tinyllm.errors import ResumeRefused
from tinyllm.manifest import MODEL_FILE, OPTIMIZER_FILE
from tinyllm.pcg32 import Pcg32
from tinyllm.progress import SourceRecord
from tinyllm.reader import Checkpoint, load_tensors, tensor_table
from tinyllm.tensor_files import TensorInfo
from tinyllm.training import Inputs, Training

_SHOWN = 3


def restore(
    checkpoint: Checkpoint,
    inputs: Inputs,
    *,
    recorded_sources: tuple[SourceRecord, ...] | None,
    allow_spec_change: bool,
) -> Training:
    """The training state that the checkpoint holds; ResumeRefused when it is not this run's.

    ``recorded_sources`` are the sources that the progress file names, None when it names none.
    """
    changes = list(_changes(checkpoint, inputs, recorded_sources))
    if changes and not allow_spec_change:
        raise ResumeRefused(
            f"{checkpoint.path} is of another run: " + "; ".join(changes) + ". "
            "Use the spec and the files of that run, another --run-id, or --allow-spec-change"
        )
    expected = model.shapes(inputs.loaded.model)
    _compare(checkpoint, MODEL_FILE, expected)
    position = _position(checkpoint, inputs, strictly=not changes)
    if checkpoint.optimizer_name != inputs.loaded.optimizer_name:
        raise ResumeRefused(
            f"{checkpoint.path / OPTIMIZER_FILE} is of the optimizer "
            f"{checkpoint.optimizer_name}, the spec asks for {inputs.loaded.optimizer_name}"
        )
    _compare(checkpoint, OPTIMIZER_FILE, optim.state_shapes(inputs.loaded.optimizer_name, expected))
    point("resume.checked")
    saved = load_tensors(checkpoint, MODEL_FILE)
    parameters = {name: saved[name].requires_grad_() for name in expected}
    point("resume.parameters-loaded")
    optimizers = optim.make(inputs.loaded.spec.optimizer, parameters)
    optim.restore(optimizers, load_tensors(checkpoint, OPTIMIZER_FILE), step=checkpoint.step)
    point("resume.optimizer-loaded")
    order = data.open_order(position, windows=len(inputs.dataset.starts))
    point("resume.cursor-restored")
    return Training(
        inputs=inputs,
        parameters=parameters,
        optimizers=optimizers,
        order=order,
        step=checkpoint.step,
        tokens_seen=checkpoint.state.tokens_seen,
        lr=checkpoint.state.lr,
        saved_step=checkpoint.step,
    )


def _changes(
    checkpoint: Checkpoint, inputs: Inputs, recorded_sources: tuple[SourceRecord, ...] | None
) -> list[str]:
    """What is not as it was when the checkpoint was saved."""
    changes = []
    loaded = inputs.loaded
    if checkpoint.state.spec_sha256 != loaded.sha256:
        changes.append(
            f"the spec's sha256 was {checkpoint.state.spec_sha256}, {loaded.path} has "
            f"{loaded.sha256}"
        )
    if checkpoint.config != loaded.config_bytes:
        changes.append("config.json differs from the spec's model")
    if checkpoint.tokenizer != inputs.tokenizer:
        changes.append("tokenizer.json differs from the spec's tokenizer")
    if checkpoint.generation_config != loaded.generation_config_bytes:
        changes.append("generation_config.json differs from the spec's")
    now = dict(inputs.dataset.sources)
    for source in recorded_sources or ():
        sha256 = now.pop(source.name, None)
        if sha256 is None:
            changes.append(f"source {source.name} is no longer read")
        elif sha256 != source.sha256:
            changes.append(f"source {source.name}'s sha256 was {source.sha256}, it is {sha256}")
    if recorded_sources is not None:
        changes += [f"source {name} is new" for name in now]
    return changes


def _compare(checkpoint: Checkpoint, file: str, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Refuse unless ``file`` holds exactly the ``expected`` tensors, in F32."""
    table = tensor_table(checkpoint, file)
    problems = [f"{name} is missing" for name in expected if name not in table]
    for name, info in table.items():
        if name not in expected:
            problems.append(f"{name} is unknown")
        elif info != TensorInfo("F32", expected[name]):
            problems.append(
                f"{name} is {info.dtype} {list(info.shape)}, not F32 {list(expected[name])}"
            )
    if problems:
        more = f"; and {len(problems) - _SHOWN} more" if len(problems) > _SHOWN else ""
        raise ResumeRefused(
            f"{checkpoint.path / file} does not fit the spec's model: "
            + "; ".join(problems[:_SHOWN])
            + more
        )


def _position(checkpoint: Checkpoint, inputs: Inputs, *, strictly: bool) -> Position:
    """The data cursor, checked. After a change of the spec only its range can be."""
    state, spec = checkpoint.state, inputs.loaded.spec
    windows = len(inputs.dataset.starts)
    position = Position(
        epoch=state.cursor.epoch,
        next_window=state.cursor.next_window,
        generator=Pcg32(state=int(state.generator.state), increment=int(state.generator.increment)),
    )
    where = f"{checkpoint.path / 'trainer_state.json'}"
    if position.next_window >= windows:
        raise ResumeRefused(
            f"{where}: the data cursor is at window {position.next_window} of an epoch, the data "
            f"have {windows}"
        )
    if not strictly:
        return position
    consumed = state.step * spec.batch_size
    if state.tokens_seen != consumed * spec.data.seq_length:
        raise ResumeRefused(
            f"{where}: tokens_seen is {state.tokens_seen}; {state.step} steps of this spec see "
            f"{consumed * spec.data.seq_length}"
        )
    problem = data.implausible(position, seed=spec.seed, windows=windows, consumed=consumed)
    if problem:
        raise ResumeRefused(f"{where}: {problem}")
    return position
