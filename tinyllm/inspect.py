"""``tinyllm verify`` and ``tinyllm runs``: what is on the disk, without changing any of it.

Both only read, work on a read-only tree, and never import torch. Exit codes: 0 everything that was
asked about verifies, 1 something does not, 2 there is no such directory.
"""

import argparse
import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tinyllm.durable import doing, open_directory
from tinyllm.errors import SpecError, StorageFailed
from tinyllm.manifest import CheckpointManifest, ReleaseManifest
from tinyllm.paths import LATEST, MANIFEST, ckpt_dir, classify, parse_step_name, run_dir, step_name
from tinyllm.reader import Pointer, list_directory, read_pointer
from tinyllm.verification import Verdict, verify_directory

VERIFIES, DAMAGED = 0, 1
_MAX_DEPTH = 16


class ProblemRow(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong; ``file`` is "" for the directory itself."""

    file: str
    reason: str


class DirectoryRow(msgspec.Struct, frozen=True, kw_only=True):
    """One model directory. ``kind``, ``step``, ``model_id`` and ``version`` are its manifest's."""

    directory: str
    verifies: bool
    kind: str | None
    step: int | None
    model_id: str | None
    version: str | None
    files: int
    size_bytes: int
    problems: list[ProblemRow]


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """One run. ``latest`` is what LATEST names, null when it names nothing that can be used, and
    then ``latest_problem`` says why; ``resumes_from`` is what ``--resume`` would take.

    ``leftovers`` are temporary names that the next save removes; ``strays`` are not ours.
    ``disk_bytes`` is what the run takes on the disk, all together. ``problem`` says why the run
    could not be looked at, and is "" when it could.
    """

    run_id: str
    latest: str | None
    latest_problem: str
    resumes_from: str | None
    steps: list[DirectoryRow]
    leftovers: list[str]
    strays: list[str]
    disk_bytes: int
    problem: str


def add_parsers(subparsers: Any) -> None:
    """Add both; each sets ``command``, a function of the parsed arguments to an exit code."""
    verify = subparsers.add_parser(
        "verify",
        help="check every byte of a checkpoint or a release against its manifest",
        description="Check a step directory, a release, or every step directory of a run. "
        "Exit 0: verifies; 1: does not; 2: no such directory.",
    )
    verify.add_argument("directory", type=Path, help="a step, release, run or ckpt directory")
    verify.add_argument("--json", action="store_true", help="print one JSON document")
    verify.set_defaults(command=verify_command)
    runs = subparsers.add_parser(
        "runs",
        help="list runs: which steps verify, what LATEST names, what resume would take",
        description="List runs and their checkpoints. Nothing is written. "
        "Exit 0: all verifies; 1: something does not; 2: no such run.",
    )
    runs.add_argument("run_id", nargs="*", help="only these runs (default: all)")
    runs.add_argument(
        "--artifacts", type=Path, default=Path("artifacts"), help="default: ./artifacts"
    )
    runs.add_argument("--json", action="store_true", help="print one JSON document")
    runs.set_defaults(command=runs_command)


def verify_command(arguments: argparse.Namespace) -> int:
    """``tinyllm verify DIR``."""
    rows = [_row(verdict) for verdict in verify_below(arguments.directory)]
    if arguments.json:
        print(msgspec.json.encode(rows).decode())
    else:
        for row in rows:
            print("\n".join(_row_lines(row, indent="")))
    return VERIFIES if all(row.verifies for row in rows) else DAMAGED


def runs_command(arguments: argparse.Namespace) -> int:
    """``tinyllm runs``."""
    rows = list_runs(arguments.artifacts, only=arguments.run_id)
    if arguments.json:
        print(msgspec.json.encode(rows).decode())
    else:
        print("\n".join(line for row in rows for line in _run_lines(row)) or "no runs")
    sound = all(not r.problem and all(step.verifies for step in r.steps) for r in rows)
    return VERIFIES if sound else DAMAGED


def verify_below(directory: Path) -> list[Verdict]:
    """The verdict on a model directory, or on each step directory of a run or ckpt directory.

    SpecError when there is nothing of the kind.
    """
    if not os.path.isdir(directory):
        raise SpecError(f"{directory}: there is no such directory")
    path = os.path.abspath(directory)
    if parse_step_name(os.path.basename(path)) is not None or os.path.lexists(
        os.path.join(path, MANIFEST)
    ):
        return [verify_directory(path)]
    below = str(ckpt_dir(Path(path)))
    with open_directory(below if os.path.isdir(below) else path) as opened:
        steps = list_directory(opened).steps
        if steps:
            return [verify_directory(step_name(step), parent=opened) for step in steps]
    return [verify_directory(path)]


def list_runs(artifacts: Path, *, only: Sequence[str] = ()) -> list[RunRow]:
    """Every run below ``artifacts`` (or those named), by name. SpecError for one not there."""
    above = artifacts / "runs"
    for run_id in only:
        if not os.path.isdir(run_dir(artifacts, run_id)):
            raise SpecError(f"{above / run_id}: there is no such run")
    if not os.path.isdir(above):
        if not os.path.isdir(artifacts):
            raise SpecError(f"{artifacts}: there is no such directory")
        return []
    with doing("list the directory", str(above)):
        names = sorted(only or os.listdir(above))
    return [_run_row(above / name) for name in names if os.path.isdir(above / name)]


def _run_row(run: Path) -> RunRow:
    listing, pointer, problem = classify([]), Pointer(None, ""), ""
    verdicts: dict[int, Verdict] = {}
    try:
        with open_directory(str(ckpt_dir(run))) as opened:
            listing = list_directory(opened)
            if listing.steps or LATEST in listing.names:
                pointer = read_pointer(opened)
            for step in listing.steps:
                verdicts[step] = verify_directory(step_name(step), parent=opened)
    except StorageFailed as error:
        if error.errno != errno.ENOENT:
            problem = str(error)
    good = [step for step, verdict in verdicts.items() if verdict.verifies]
    latest_problem = pointer.problem
    if pointer.step is not None and pointer.step not in good:
        latest_problem = "does not verify" if pointer.step in verdicts else "does not exist"
    return RunRow(
        run_id=run.name,
        latest=pointer.name or None,
        latest_problem=latest_problem,
        resumes_from=_resumes_from(good, pointer.step),
        steps=[_row(verdict) for verdict in verdicts.values()],
        leftovers=list(listing.temporary),
        strays=[ascii(name)[1:-1] for name in listing.strays],
        disk_bytes=_disk_bytes(str(run), 0),
        problem=problem,
    )


def _resumes_from(good: Sequence[int], pointer: int | None) -> str | None:
    """The rule of ``reader.find_checkpoint``, on verdicts that are already known."""
    at_or_below = [step for step in good if pointer is None or step <= pointer]
    chosen = max(at_or_below or good, default=None)
    return None if chosen is None else step_name(chosen)


def _row(verdict: Verdict) -> DirectoryRow:
    manifest = verdict.manifest
    checkpoint = isinstance(manifest, CheckpointManifest)
    release = manifest if isinstance(manifest, ReleaseManifest) else None
    return DirectoryRow(
        directory=verdict.path,
        verifies=verdict.verifies,
        kind=None if manifest is None else "checkpoint" if checkpoint else "release",
        step=manifest.step if isinstance(manifest, CheckpointManifest) else None,
        model_id=release.model_id if release else None,
        version=release.version if release else None,
        files=len(manifest.files) if manifest else 0,
        size_bytes=verdict.size_bytes,
        problems=[ProblemRow(file=p.file, reason=p.reason) for p in verdict.problems],
    )


def _row_lines(row: DirectoryRow, *, indent: str) -> list[str]:
    state = "verifies" if row.verifies else "DOES NOT VERIFY"
    first = f"{indent}{row.directory}: {state}, {row.files} files, {_human(row.size_bytes)}"
    return [first] + [
        f"{indent}  {p.file or os.path.basename(row.directory)}: {p.reason}" for p in row.problems
    ]


def _run_lines(row: RunRow) -> list[str]:
    lines = [f"{row.run_id}: {len(row.steps)} checkpoints, {_human(row.disk_bytes)}"]
    if row.problem:
        lines.append(f"  {row.problem}")
    problem = f" ({row.latest_problem})" if row.latest_problem else ""
    lines.append(f"  LATEST       {row.latest or 'nothing'}{problem}")
    lines.append(f"  resumes from {row.resumes_from or 'nothing'}")
    for step in row.steps:
        here = msgspec.structs.replace(step, directory=os.path.basename(step.directory))
        lines += _row_lines(here, indent="  ")
    lines += [f"  {name}: left by a crash, the next save removes it" for name in row.leftovers]
    lines += [f"  {name}: not ours" for name in row.strays]
    return lines


def _disk_bytes(path: str, depth: int) -> int:
    """What a tree takes; links are not followed, what cannot be read counts nothing."""
    total = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                total += status.st_blocks * 512
                if stat.S_ISDIR(status.st_mode) and depth < _MAX_DEPTH:
                    total += _disk_bytes(entry.path, depth + 1)
    except OSError:
        pass
    return total


def _human(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
