"""Which checkpoint to go on from: the one that was asked for, or that LATEST names, if it verifies.

What does not verify is skipped, with its reason, for the newest older one that does. When nothing
at or below the pointer verifies, a newer directory is taken rather than nothing. Directories are
only ever read, each file is opened once, and torch is imported only to make tensors.
"""

import errno
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from tinyllm.durable import Directory, open_directory
from tinyllm.errors import ResumeRefused, StorageFailed, storage_failed
from tinyllm.guarded import Unreadable, read_bounded
from tinyllm.manifest import (
    CONFIG_FILE,
    GENERATION_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    TOKENIZER_FILE,
)
from tinyllm.paths import LATEST, Listing, classify, parse_step_name, step_name
from tinyllm.state import TrainerState, decode_state
from tinyllm.tensor_files import TensorInfo, read_metadata, read_table, read_tensors
from tinyllm.verification import Verdict, verify_directory

if TYPE_CHECKING:
    from torch import Tensor

# A pointer is twelve bytes; this much is enough to show what stands there instead.
_POINTER_BYTES = 64

# These say that this process is short of something or not allowed, not that a file is damaged:
# going back to an older checkpoint would lose work for no reason.
NOT_DAMAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EACCES, errno.EPERM})


class Skip(NamedTuple):
    """Something that was not used, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Pointer:
    """What LATEST says: ``step`` and its ``name``, or None and a ``problem``."""

    step: int | None
    problem: str

    @property
    def name(self) -> str:
        """The directory it names, "" when it names none."""
        return "" if self.step is None else step_name(self.step)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified step directory, its two tensor files open; :meth:`close` it when loaded."""

    path: Path
    step: int
    state: TrainerState
    config: bytes
    tokenizer: bytes | None
    generation_config: bytes | None
    optimizer_name: str
    descriptors: Mapping[str, int]

    def close(self) -> None:
        """Close the tensor files (once)."""
        for fd in self.descriptors.values():
            os.close(fd)


@dataclass(frozen=True, slots=True)
class Found:
    """What a ckpt/ directory offers.

    ``checkpoint`` is the one to go on from, or None: a fresh start when ``steps`` is empty, else
    nothing verifies. ``skips`` is everything that was passed over, in the order of looking.
    ``rewound`` tells that an older one was asked for explicitly, which makes ``newer`` (steps after
    the chosen one) an abandoned line. ``pointer`` is what LATEST named, "" for nothing usable.
    """

    checkpoint: Checkpoint | None
    skips: tuple[Skip, ...]
    steps: tuple[int, ...]
    strays: tuple[str, ...]
    temporary: tuple[str, ...]
    pointer: str
    rewound: bool

    @property
    def newer(self) -> tuple[int, ...]:
        """The step directories after the chosen one."""
        chosen = self.checkpoint.step if self.checkpoint else -1
        return tuple(step for step in self.steps if step > chosen)

    def why_nothing(self) -> str:
        """What is wrong with each directory, a line each."""
        return "\n".join(f"  {name}: {reason}" for name, reason in self.skips)


def find_checkpoint(ckpt_dir: Path, explicit: Path | None = None) -> Found:
    """Find what to resume from.

    ``explicit`` is a step directory of ``ckpt_dir`` (a path to it, or its bare name); anything
    else is refused. StorageFailed when the disk or a permission keeps us from telling.
    """
    wanted = _explicit_step(ckpt_dir, explicit)
    try:
        with open_directory(str(ckpt_dir)) as directory:
            return _find(directory, ckpt_dir, wanted)
    except StorageFailed as error:
        if error.errno == errno.ENOENT and error.path == str(ckpt_dir):
            return Found(None, _not_there(wanted), (), (), (), "", False)
        raise


def _find(directory: Directory, ckpt_dir: Path, wanted: int | None) -> Found:
    listing = list_directory(directory)
    pointer = read_pointer(directory)
    skips = _pointer_skips(pointer, listing) if wanted is None else []
    if wanted is not None and wanted not in listing.steps:
        skips += _not_there(wanted)
    checkpoint = None
    first = pointer.step if wanted is None else wanted
    for step in _order(listing, first, explicit=wanted is not None):
        name = step_name(step)
        verdict = verify_directory(name, parent=directory, keep_open=(MODEL_FILE, OPTIMIZER_FILE))
        if verdict.verifies:
            checkpoint = _checkpoint(ckpt_dir / name, verdict)
            break
        _raise_unless_damage(verdict)
        skips.append(Skip(name, verdict.why()))
    return Found(
        checkpoint=checkpoint,
        skips=tuple(skips),
        steps=listing.steps,
        strays=listing.strays,
        temporary=listing.temporary,
        pointer=pointer.name,
        rewound=wanted is not None,
    )


def list_directory(directory: Directory) -> Listing:
    """The entries of an open ckpt/ directory by kind."""
    try:
        return classify(os.listdir(directory.fd))
    except OSError as error:
        raise storage_failed(directory.path, "list the directory", error) from error


def read_pointer(directory: Directory) -> Pointer:
    """Read LATEST: exactly a step directory's name and a newline, or a problem."""
    try:
        data = read_bounded(directory, LATEST, limit_bytes=_POINTER_BYTES)
    except Unreadable as error:
        if error.errno in NOT_DAMAGE:
            raise StorageFailed(directory.at(LATEST), error.reason, errno=error.errno) from error
        return Pointer(None, error.reason)
    if not data:
        return Pointer(None, "is empty")
    text = data.decode("ascii", errors="backslashreplace")
    step = parse_step_name(text[:-1]) if text.endswith("\n") else None
    if step is None:
        return Pointer(None, f"holds {text!a}, which is not a step's name and a newline")
    return Pointer(step, "")


def tensor_table(checkpoint: Checkpoint, file: str) -> dict[str, TensorInfo]:
    """Names, dtypes and shapes in ``model.safetensors`` or ``optimizer.safetensors``."""
    try:
        return read_table(checkpoint.descriptors[file])
    except ValueError as error:
        raise ResumeRefused(f"{checkpoint.path / file}: {error}") from error


def load_tensors(checkpoint: Checkpoint, file: str) -> "dict[str, Tensor]":
    """The tensors of ``model.safetensors`` or ``optimizer.safetensors``, by name."""
    try:
        return read_tensors(checkpoint.descriptors[file])
    except ValueError as error:
        raise ResumeRefused(f"{checkpoint.path / file}: {error}") from error


def _explicit_step(ckpt_dir: Path, explicit: Path | None) -> int | None:
    if explicit is None:
        return None
    step = parse_step_name(explicit.name)
    here = explicit.parent == Path(".") or explicit.parent.resolve() == ckpt_dir.resolve()
    if step is None or not here:
        raise ResumeRefused(
            f"{explicit}: is not a step directory of this run: give {ckpt_dir}/step-<nnnnnn>, "
            "or no path for the newest"
        )
    return step


def _not_there(wanted: int | None) -> tuple[Skip, ...]:
    return () if wanted is None else (Skip(step_name(wanted), "does not exist"),)


def _pointer_skips(pointer: Pointer, listing: Listing) -> list[Skip]:
    if pointer.step is None and not listing.steps and LATEST not in listing.names:
        return []  # nothing was ever saved here
    if pointer.problem:
        return [Skip(LATEST, pointer.problem)]
    if pointer.step not in listing.steps:
        return [Skip(LATEST, f"names {pointer.name}, which does not exist")]
    return []


def _order(listing: Listing, first: int | None, *, explicit: bool) -> list[int]:
    """The steps in the order in which they are tried."""
    descending = sorted(listing.steps, reverse=True)
    if first is None:
        return descending
    older = [step for step in descending if step <= first]
    return older if explicit else older + [step for step in descending if step > first]


def _raise_unless_damage(verdict: Verdict) -> None:
    for problem in verdict.problems:
        if problem.errno in NOT_DAMAGE:
            path = os.path.join(verdict.path, problem.file) if problem.file else verdict.path
            raise StorageFailed(path, problem.reason, errno=problem.errno)


def _checkpoint(path: Path, verdict: Verdict) -> Checkpoint:
    state = decode_state(verdict.contents[STATE_FILE])
    return Checkpoint(
        path=path,
        step=state.step,
        state=state,
        config=verdict.contents[CONFIG_FILE],
        tokenizer=verdict.contents.get(TOKENIZER_FILE),
        generation_config=verdict.contents.get(GENERATION_FILE),
        optimizer_name=read_metadata(verdict.descriptors[OPTIMIZER_FILE])["optimizer"],
        descriptors=verdict.descriptors,
    )
