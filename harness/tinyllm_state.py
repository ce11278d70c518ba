"""What stands in a tinyllm run directory: the evidence for the invariants that need its format.

It reads with tinyllm's public reading API only, never writes, and looks at the same things that a
person would: what LATEST names, which step directories verify, what the progress file says.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_injection.attempt import Seen
from fault_injection.trace import Kind, Trace
from harness.artifacts import file_digest
from harness.tinyllm_layout import CKPT, PROGRESS
from tinyllm.durable import Directory, open_directory
from tinyllm.paths import LATEST, MANIFEST, Listing, step_name
from tinyllm.reader import list_directory, read_pointer
from tinyllm.verification import verify_directory


@dataclass(frozen=True, slots=True)
class RunState:
    """A run directory as one attempt left it.

    ``latest`` is the step that LATEST names; ``pointer_problem`` is "" when LATEST is absent or
    names a complete checkpoint. ``complete`` are the steps whose directory verifies, ``broken``
    the others with the reason; ``files`` has the sha256 of each of their files by step and name.
    ``temporary`` are names that only an unfinished save or deletion makes; ``spare`` those of them
    that verify as a checkpoint.

    ``progress_problem`` is "" when the progress file is whole JSON lines; ``progress_steps`` the
    steps it has lines for. ``resumed_from`` is the step that the attempt said it resumed from,
    ``started_fresh`` whether it said that it started anew.
    """

    latest: int | None = None
    pointer_problem: str = ""
    complete: tuple[int, ...] = ()
    broken: tuple[tuple[str, str], ...] = ()
    files: dict[int, dict[str, str]] | None = None
    temporary: tuple[str, ...] = ()
    spare: tuple[str, ...] = ()
    progress_problem: str = ""
    progress_steps: frozenset[int] = frozenset()
    resumed_from: int | None = None
    started_fresh: bool = False


def read_run(root: Path, *, seen: Sequence[Seen]) -> RunState:
    """Look at the run below ``root``; ``seen`` is what the attempt that just ended wrote."""
    problem, steps = _progress(root / PROGRESS)
    resumed_from, started_fresh = _beginning(seen)
    ckpt = root / CKPT
    if not ckpt.is_dir():
        return RunState(
            progress_problem=problem,
            progress_steps=steps,
            resumed_from=resumed_from,
            started_fresh=started_fresh,
        )
    with open_directory(str(ckpt)) as directory:
        listing = list_directory(directory)
        verdicts = {s: verify_directory(step_name(s), parent=directory) for s in listing.steps}
        complete = tuple(s for s, v in verdicts.items() if v.verifies)
        spare = tuple(
            n for n in listing.temporary if verify_directory(n, parent=directory).verifies
        )
        latest, pointer_problem = _pointer(directory, listing, complete)
    return RunState(
        latest=latest,
        pointer_problem=pointer_problem,
        complete=complete,
        broken=tuple((step_name(s), v.why()) for s, v in verdicts.items() if not v.verifies),
        files={s: _digests(ckpt / step_name(s)) for s in listing.steps},
        temporary=listing.temporary,
        spare=spare,
        progress_problem=problem,
        progress_steps=steps,
        resumed_from=resumed_from,
        started_fresh=started_fresh,
    )


def _pointer(
    directory: Directory, listing: Listing, complete: tuple[int, ...]
) -> tuple[int | None, str]:
    if LATEST not in listing.names:
        return None, ""
    pointer = read_pointer(directory)
    if pointer.step is None:
        return None, f"is no pointer: {pointer.problem}"
    if pointer.step not in listing.steps:
        return pointer.step, f"names {pointer.name}, which is not there"
    if pointer.step not in complete:
        return pointer.step, f"names {pointer.name}, which does not verify"
    return pointer.step, ""


def _digests(step: Path) -> dict[str, str]:
    """sha256 by name of the regular files of a step directory."""
    if step.is_symlink() or not step.is_dir():
        return {}
    with os.scandir(step) as entries:
        names = sorted(e.name for e in entries if e.is_file(follow_symlinks=False))
    return {name: file_digest(step / name) for name in names}


def _progress(path: Path) -> tuple[str, frozenset[int]]:
    """What is wrong with the progress file, and the steps that it has lines for."""
    if not path.is_file():
        return ("is missing" if path.parent.is_dir() else "", frozenset())
    data = path.read_bytes()
    steps: set[int] = set()
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        try:
            value = json.loads(line)
        except ValueError:
            return f"line {number} is not JSON: {line[:60]!r}", frozenset(steps)
        if isinstance(value, dict) and value.get("kind") == "step":
            steps.add(int(value.get("step", -1)))
    if data and not data.endswith(b"\n"):
        return "does not end in a whole line", frozenset(steps)
    return "", frozenset(steps)


def _beginning(seen: Sequence[Seen]) -> tuple[int | None, bool]:
    """What an attempt said of its beginning: the step it resumed from, or that it started anew."""
    resumed_from, started = None, False
    written = b"".join(s.data for s in seen if s.source == PROGRESS)
    for value in _objects(written.split(b"\n")):
        if value.get("kind") == "resume":
            resumed_from = value.get("step")
        elif value.get("kind") == "start":
            started = True
    return resumed_from if isinstance(resumed_from, int) else None, started


def _objects(lines: Iterable[bytes]) -> Iterable[dict[str, object]]:
    for line in lines:
        try:
            value = json.loads(line)
        except ValueError:
            continue
        if isinstance(value, dict):
            yield value


def step_files(trace: Trace) -> dict[int, dict[str, str]]:
    """From a recorded run: the sha256 that each step's manifest named, by step and file."""
    manifests = {
        op.inode
        for op in trace.operations
        if op.kind is Kind.CREATE and op.name == MANIFEST.encode()
    }
    contents: dict[int, bytes] = {}
    for op in trace.operations:
        if op.kind is Kind.WRITE and op.inode in manifests:
            contents[op.inode] = contents.get(op.inode, b"") + trace.blobs.read(op.blob)
    found = {}
    for data in contents.values():
        manifest = json.loads(data)
        found[int(manifest["step"])] = {
            name: str(entry["sha256"]) for name, entry in manifest["files"].items()
        }
    return found
