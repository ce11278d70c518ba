"""The progress file: one JSON object a line, appended while the run goes on.

Kinds: ``start``, ``resume``, ``step``, ``ckpt``, ``skip``, ``done``, ``error``; each line carries
the number of the attempt that wrote it, from 1. A line is handed to the kernel in one ``write``.
Steps that a resume repeats appear again, under their new attempt.

A step's loss stands there twice: as a number for people, and as the bits of the float32 in hex,
which is the truth. JSON has no NaN or infinity: such a loss is ``null``, and its bits say which.

The file is made durable before each save (:func:`sync`), so a power loss never leaves a checkpoint
whose steps are not in the file. What was written after that may be lost or torn: on opening, the
file is cut after its last whole line, and the cut is made durable before anything is appended. A
file that was damaged in another way, or is not ours, is refused and left as it is.
"""

import contextlib
import math
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
from msgspec import Struct

from tinyllm.errors import ResumeRefused, storage_failed

LINE_LIMIT_BYTES = 1 << 20
_OURS = b'{"kind":"'


class SourceRecord(Struct, frozen=True):
    """A source of training data, by its name in the spec and its content."""

    name: str
    sha256: str


class Start(Struct, frozen=True, tag_field="kind", tag="start"):
    """A run begins at its first step. ``sources`` are in the order of the spec."""

    attempt: int
    steps: int
    spec_sha256: str
    sources: tuple[SourceRecord, ...]


class Resume(Struct, frozen=True, tag_field="kind", tag="resume"):
    """A run goes on after ``step``, which the checkpoint ``name`` holds."""

    attempt: int
    step: int
    name: str
    steps: int
    spec_sha256: str
    sources: tuple[SourceRecord, ...]


class Step(Struct, frozen=True, tag_field="kind", tag="step"):
    """An update was made. ``loss`` in nats a token, ``loss_bits`` 8 hex digits, big end first."""

    attempt: int
    step: int
    loss: float | None
    loss_bits: str
    lr: float


class Ckpt(Struct, frozen=True, tag_field="kind", tag="ckpt"):
    """The acknowledgement: the checkpoint of this step is complete and durable."""

    attempt: int
    step: int
    name: str


class Skip(Struct, frozen=True, tag_field="kind", tag="skip"):
    """A checkpoint, or LATEST, could not be used while looking for one to resume from."""

    attempt: int
    name: str
    reason: str


class Done(Struct, frozen=True, tag_field="kind", tag="done"):
    """The last step is made and saved."""

    attempt: int
    step: int


class Error(Struct, frozen=True, tag_field="kind", tag="error"):
    """The run ends here because of ``message``; ``step`` is the last one made."""

    attempt: int
    step: int
    message: str


Line = Start | Resume | Step | Ckpt | Skip | Done | Error


class LineHead(Struct, frozen=True):
    """What is read back of a line. ``sources`` stand in start and resume lines."""

    kind: Literal["start", "resume", "step", "ckpt", "skip", "done", "error"]
    attempt: int
    step: int = 0
    sources: tuple[SourceRecord, ...] | None = None


@dataclass(frozen=True, slots=True)
class History:
    """What a progress file holds. ``whole_bytes`` is where its last whole line ends."""

    exists: bool
    size_bytes: int = 0
    whole_bytes: int = 0
    last: LineHead | None = None
    sources: tuple[SourceRecord, ...] | None = None

    @property
    def attempts(self) -> int:
        """How many attempts have written to it."""
        return 0 if self.last is None else self.last.attempt


@dataclass(frozen=True, slots=True)
class Progress:
    """An open progress file and the number of this attempt."""

    path: Path
    descriptor: int
    attempt: int


def loss_bits(loss: float) -> str:
    """The bits of ``loss`` as a float32 in hex: 1.0 is ``3f800000``."""
    return struct.pack(">f", loss).hex()


def step_line(attempt: int, step: int, *, loss: float, lr: float) -> Step:
    """The line of an update; ``loss`` is a float32's value."""
    shown = loss if math.isfinite(loss) else None
    return Step(attempt=attempt, step=step, loss=shown, loss_bits=loss_bits(loss), lr=lr)


def read_history(path: Path) -> History:
    """Read a progress file without changing it; a missing one is an empty history.

    ResumeRefused when it is not a regular file, or holds a line that no crash can explain.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        return History(exists=False)
    except OSError as error:
        raise ResumeRefused(
            f"progress file {path} cannot be opened: {error.strerror}; move it away to go on"
        ) from None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise ResumeRefused(f"progress file {path} is not a regular file; move it away to go on")
    with open(descriptor, "rb") as file:
        try:
            return _scan(file, path=path, size_bytes=status.st_size)
        except OSError as error:
            raise storage_failed(str(path), "read the progress file", error) from None


def _scan(file: BinaryIO, *, path: Path, size_bytes: int) -> History:
    decoder = msgspec.json.Decoder(LineHead)
    whole_bytes, last, sources, number = 0, None, None, 0
    while line := file.readline(LINE_LIMIT_BYTES):
        number += 1
        try:
            if not line.endswith(b"\n"):
                raise msgspec.DecodeError("the line does not end")
            last = decoder.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            if _torn(line):
                break
            raise ResumeRefused(
                f"progress file {path}, line {number} is not one that a run writes ({error}); "
                "nothing was changed; move the file away to go on without it"
            ) from None
        sources = last.sources if last.sources is not None else sources
        whole_bytes += len(line)
    return History(
        exists=True, size_bytes=size_bytes, whole_bytes=whole_bytes, last=last, sources=sources
    )


def _torn(line: bytes) -> bool:
    """Whether a crash explains a bad line: its end is missing, or blocks of it came back as zeros.

    The beginning must be ours, so that somebody's file is never taken for a torn one and cut.
    """
    if b"\0" in line:
        return True
    unfinished = not line.endswith(b"\n") and len(line) < LINE_LIMIT_BYTES
    return unfinished and (line.startswith(_OURS) or _OURS.startswith(line))


def open_progress(path: Path, history: History) -> Progress:
    """Open for appending as the next attempt, and cut off what a crash left torn.

    The caller makes the name of a new file durable, by an fsync of its directory.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        descriptor = os.open(path, flags | os.O_CREAT, 0o666)
    except OSError as error:
        raise storage_failed(str(path), "open the progress file", error) from None
    try:
        if history.whole_bytes < history.size_bytes:
            os.ftruncate(descriptor, history.whole_bytes)
            os.fsync(descriptor)  # or a line appended now might lie over the torn one
    except OSError as error:
        os.close(descriptor)
        raise storage_failed(str(path), "cut off a torn line", error) from None
    return Progress(path=path, descriptor=descriptor, attempt=history.attempts + 1)


def emit(progress: Progress, line: Line) -> None:
    """Append one line, in one write. StorageFailed when it does not fit."""
    content = msgspec.json.encode(line) + b"\n"
    try:
        while content:  # after a short write the next one goes on, or says why it cannot
            content = content[os.write(progress.descriptor, content) :]
    except OSError as error:
        raise storage_failed(str(progress.path), "append a line", error) from None


def sync(progress: Progress) -> None:
    """Make every line so far durable."""
    try:
        os.fsync(progress.descriptor)
    except OSError as error:
        raise storage_failed(str(progress.path), "make it durable (fsync)", error) from None


def close(progress: Progress) -> None:
    """Close the file. Errors were reported by :func:`emit` and :func:`sync`."""
    with contextlib.suppress(OSError):
        os.close(progress.descriptor)
