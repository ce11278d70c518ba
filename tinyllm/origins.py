"""Which data a checkpoint was trained on, by the run's own record.

A checkpoint names its train spec by sha256 only. The progress file has, for each attempt, that
sha256 and the sources that the spec names, each with the sha256 of what was read. The sources
behind a checkpoint are those of every attempt up to the one that acknowledged it (of every attempt,
when nobody did): a run that was allowed to change its data had both.

Where the record does not reach to the checkpoint's own spec, nothing is guessed.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tinyllm.durable import open_directory
from tinyllm.errors import StorageFailed
from tinyllm.guarded import Unreadable, open_regular
from tinyllm.progress import LINE_LIMIT_BYTES, SourceRecord

PROGRESS_FILE = "progress.jsonl"


class _Line(msgspec.Struct, frozen=True):
    kind: str
    attempt: int
    step: int = 0
    spec_sha256: str = ""
    sources: tuple[SourceRecord, ...] = ()


@dataclass(frozen=True, slots=True)
class Origins:
    """The ``sources``, each content once; or a ``problem`` that keeps us from telling."""

    sources: tuple[SourceRecord, ...]
    problem: str = ""


def origins_of(run: Path, *, step: int, spec_sha256: str) -> Origins:
    """The sources behind the checkpoint of ``step``, which was made with that spec."""
    try:
        with open_directory(str(run)) as directory:
            fd, _ = open_regular(directory, PROGRESS_FILE)
        lines = _read(fd)
    except (Unreadable, StorageFailed, ValueError) as error:
        return Origins((), f"cannot tell which data the model was trained on: {error}")
    acknowledged = [x.attempt for x in lines if (x.kind, x.step) == ("ckpt", step)]
    until = max(acknowledged, default=None)
    began = [
        x for x in lines if x.kind in ("start", "resume") and (until is None or x.attempt <= until)
    ]
    if spec_sha256 not in {x.spec_sha256 for x in began}:
        return Origins(
            (),
            "cannot tell which data the model was trained on: no attempt is recorded with the "
            f"checkpoint's train spec (sha256 {spec_sha256})",
        )
    sources = {(s.name, s.sha256): s for line in began for s in line.sources}
    return Origins(tuple(sources[key] for key in sorted(sources)))


def _read(fd: int) -> list[_Line]:
    """The lines that matter; a last line that is not whole yet is left out."""
    decoder = msgspec.json.Decoder(_Line)
    found = []
    number = 0
    with os.fdopen(fd, "rb") as file:
        while line := file.readline(LINE_LIMIT_BYTES):
            number += 1
            if len(line) == LINE_LIMIT_BYTES:
                raise ValueError(
                    f"line {number} has {len(line)} bytes or more; a run writes none such"
                )
            if not line.endswith(b"\n"):
                break
            try:
                decoded = decoder.decode(line)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
                raise ValueError(f"line {number} is not one that a run writes: {error}") from error
            if decoded.kind in ("start", "resume", "ckpt"):
                found.append(decoded)
    return found
