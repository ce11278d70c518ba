"""Bundles: everything about one failing case in a directory that can be sent to someone.

====================  ==========================================================================
``case.json``         the case and the subject, from which it can be run again
``verdict.json``      the verdict and the violations
``versions.json``     of Python, torch, the kernel ...
``attempts/<n>/``     ``attempt.json``, ``stdout``, ``stderr`` (cut in the middle at a bound)
``history.json``      what the oracle was given of each attempt, to be judged again
``state/``            the crash state as a tree, or ``state.tar`` where a tree would not survive
                      being copied about (``harness.states``)
``trace/``            the recorded trace, where there is one
``timeline.*``        what became of each operation: text, SVG, and the data of both
``README.md``         what it is, and the one command
====================  ==========================================================================

All that belongs to a bundle lies in it, so that it may lie anywhere; the program under test is
named as it was started. It is written beside its place and renamed, so that there is a whole one or
none.

A bundle comes from somebody else: :func:`read_bundle` opens regular files only, of bounded size,
follows no symlink, and believes a case only when its id is the one that its content gives.
"""

import os
import re
import shlex
import shutil
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from fault_injection.faults import TriggerKind
from harness import states
from harness.cases import Case
from harness.durable import make_directory, sync_directory
from harness.errors import UsageError
from harness.evidence import Step
from harness.report.clean import one_line
from harness.report.text import plain, violation_lines
from harness.report.timeline import Timeline, as_svg, as_text
from harness.results import Violation
from harness.stored import encode_pretty, read_json, read_regular

FORMAT = "durability-bundle/1"
OUTPUT_LIMIT_BYTES = 1 << 20
STATE_LIMIT_BYTES = 256 << 20
MAX_ATTEMPTS = 100

_NOT_IN_A_NAME = re.compile(r"[^A-Za-z0-9._@+-]+")
_NOT_CODE = str.maketrans({"`": "'"})


class BundledAttempt(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One attempt: how it was started, what was done to it, how it ended.

    ``exit_code`` is None when it did not end by itself. ``stdout`` and ``stderr`` lie in files of
    their own in the bundle, each cut in the middle at ``OUTPUT_LIMIT_BYTES``.
    """

    command: list[str] = []
    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    seconds: float = 0.0
    fault: str = ""
    evidence: str = ""
    stdout: bytes = b""
    stderr: bytes = b""


class _CaseFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: str
    id: str
    case: Case
    subject: dict[str, Any]
    config: str = ""


class _HistoryFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    steps: tuple[Step, ...]


class _VerdictFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    verdict: str
    violations: list[Violation]


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle that was read. ``state`` and ``trace`` are paths (None: not in it).

    Lay the crash state out with ``states.unpack(bundle.state, to)``.
    """

    path: Path
    case: Case
    config: str
    subject: Mapping[str, Any]
    attempts: tuple[BundledAttempt, ...]
    verdict: str
    violations: tuple[Violation, ...]
    versions: Mapping[str, str]
    state: Path | None
    trace: Path | None
    timeline: Timeline | None
    history: tuple[Step, ...] = ()


def bundle_name(case: Case, *, config: str = "") -> str:
    """The name of a case's bundle: plain ASCII, at most 120 characters, unique by its last eight.

    ``config`` goes first: one case may fail in several configurations of a subject.
    """
    words = case.id[: -len(case.digest) - 1]
    said = f"{config}-{words}" if config and config != case.subject else words
    name = _NOT_IN_A_NAME.sub("_", said.replace("/", "-").replace("#", ".")).strip("._-")
    return f"{name[:110]}-{case.digest}"


def write_bundle(
    directory: Path,
    case: Case,
    *,
    subject: Mapping[str, Any],
    attempts: Sequence[BundledAttempt],
    verdict: str,
    violations: Sequence[Violation],
    versions: Mapping[str, str],
    config: str = "",
    tree: Path | None = None,
    trace_dir: Path | None = None,
    timeline: Timeline | None = None,
    history: Sequence[Step] = (),
    state_limit_bytes: int = STATE_LIMIT_BYTES,
) -> Path:
    """Write the bundle of ``case`` to ``directory``, replacing one that is there; returns it.

    ``subject`` holds JSON values only. A crash state ``tree`` above the limit is left out, and the
    README says so: ``reproduce`` makes it again. ``history`` are the attempts as the oracle saw
    them, the last resume included; with it and the state a case can be judged again. Raises
    OSError.
    """
    make_directory(directory.parent)
    work = directory.parent / f".{directory.name}.tmp"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir()
    try:
        case_file = _CaseFile(
            format=FORMAT, id=case.id, case=case, subject=dict(subject), config=config
        )
        (work / "case.json").write_bytes(encode_pretty(case_file))
        verdict_file = _VerdictFile(verdict=verdict, violations=list(violations))
        (work / "verdict.json").write_bytes(encode_pretty(verdict_file))
        (work / "versions.json").write_bytes(encode_pretty(dict(sorted(versions.items()))))
        if history:
            (work / "history.json").write_bytes(encode_pretty(_HistoryFile(steps=tuple(history))))
        for number, attempt in enumerate(attempts[:MAX_ATTEMPTS], start=1):
            _write_attempt(work / "attempts" / str(number), attempt)
        kept = None
        if tree is not None and states.size_bytes(tree) <= state_limit_bytes:
            kept = states.pack(tree, work / "state")
        if trace_dir is not None:
            shutil.copytree(trace_dir, work / "trace", symlinks=True)
        if timeline is not None:
            (work / "timeline.json").write_bytes(encode_pretty(timeline))
            (work / "timeline.txt").write_text(as_text(timeline), encoding="utf-8")
            (work / "timeline.svg").write_text(as_svg(timeline), encoding="utf-8")
        said = _readme(case, violations, directory.name, tree=tree, kept=kept)
        (work / "README.md").write_text(said, encoding="utf-8")
        _sync_all(work)
        if directory.exists():
            shutil.rmtree(directory)
        os.rename(work, directory)
    except BaseException:
        shutil.rmtree(work, ignore_errors=True)
        raise
    sync_directory(directory.parent)
    return directory


def _write_attempt(directory: Path, attempt: BundledAttempt) -> None:
    directory.mkdir(parents=True)
    bare = msgspec.structs.replace(attempt, stdout=b"", stderr=b"")
    (directory / "attempt.json").write_bytes(encode_pretty(bare))
    (directory / "stdout").write_bytes(_cut(attempt.stdout))
    (directory / "stderr").write_bytes(_cut(attempt.stderr))


def _cut(output: bytes) -> bytes:
    """The beginning and the end: the end says why it died."""
    left_out = len(output) - OUTPUT_LIMIT_BYTES
    if left_out <= 0:
        return output
    half = OUTPUT_LIMIT_BYTES // 2
    return output[:half] + f"\n[... {left_out} bytes cut ...]\n".encode() + output[-half:]


def _readme(
    case: Case,
    violations: Sequence[Violation],
    name: str,
    *,
    tree: Path | None,
    kept: Path | None,
) -> str:
    command = f"durability reproduce {shlex.quote(name)}"
    here = [msgspec.structs.replace(v, bundle="", reproduce=command) for v in violations]
    blocks = [f"FAIL {v.invariant}\n{plain(violation_lines(v))}" for v in here]
    what = "\n".join(blocks).replace("```", "'''") or "no violation\n"
    if kept is None:
        state = "not in this bundle" + ("" if tree is None else ": too large; `reproduce` makes it")
    elif kept.suffix == ".tar":
        state = "`state.tar`, a tar because of names or kinds of file that a copied tree would lose"
    else:
        state = "`state/`"
    by_time = any(fault.trigger is TriggerKind.TIME for fault in case.faults)
    return (
        f"# {one_line(case.id).translate(_NOT_CODE)}\n\n"
        f"{one_line(case.describe()).translate(_NOT_CODE)}\n\n"
        "To see it again, from the directory that holds this one:\n\n"
        f"    {command}\n\n"
        f"{_by_time(command, name) if by_time else ''}"
        f"```text\n{what}```\n\n"
        f"- the crash state, before the program resumed: {state}\n"
        "- each attempt's output: `attempts/<n>/stdout` and `stderr`\n"
        "- what became of each operation: `timeline.txt`, where there is one\n"
        "- the case, the verdict, the versions: `case.json`, `verdict.json`, `versions.json`\n"
    )


def _by_time(command: str, name: str) -> str:
    return (
        "This kill came after a time, not at a named place: it may strike elsewhere when it is run "
        f"again. Try often (`{command} --times 20`), or judge the very state that it left: "
        f"`durability recheck {shlex.quote(name)}`.\n\n"
    )


def _sync_all(directory: Path) -> None:
    for parent, _, names in os.walk(directory, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        sync_directory(Path(parent))


def read_bundle(path: Path) -> Bundle:
    """Read a bundle. Raises UsageError, naming the file and what is wrong with it."""
    if not path.is_dir():
        raise UsageError(f"{path} is not a bundle: a bundle is a directory with a case.json")
    case_file = read_json(path / "case.json", _CaseFile)
    if case_file.format != FORMAT:
        raise UsageError(f"{path / 'case.json'}: format {case_file.format!r} is not {FORMAT!r}")
    if case_file.case.id != case_file.id:
        raise UsageError(
            f"{path / 'case.json'} was changed: it says {case_file.id!r}, "
            f"its content is {case_file.case.id!r}"
        )
    verdict = read_json(path / "verdict.json", _VerdictFile)
    timeline = path / "timeline.json"
    history = path / "history.json"
    return Bundle(
        path=path,
        case=case_file.case,
        config=case_file.config,
        subject=case_file.subject,
        attempts=_read_attempts(path / "attempts"),
        verdict=verdict.verdict,
        violations=tuple(verdict.violations),
        versions=read_json(path / "versions.json", dict[str, str]),
        state=states.packed(path / "state"),
        trace=_real_directory(path / "trace"),
        timeline=read_json(timeline, Timeline) if os.path.lexists(timeline) else None,
        history=read_json(history, _HistoryFile).steps if os.path.lexists(history) else (),
    )


def _read_attempts(directory: Path) -> tuple[BundledAttempt, ...]:
    if _real_directory(directory) is None:
        return ()
    found = []
    for number in range(1, MAX_ATTEMPTS + 1):
        place = directory / str(number)
        if _real_directory(place) is None:
            break
        attempt = read_json(place / "attempt.json", BundledAttempt)
        limit = OUTPUT_LIMIT_BYTES + 4096  # what was cut carries a line that says so
        stdout = read_regular(place / "stdout", limit_bytes=limit)
        stderr = read_regular(place / "stderr", limit_bytes=limit)
        found.append(msgspec.structs.replace(attempt, stdout=stdout, stderr=stderr))
    return tuple(found)


def _real_directory(path: Path) -> Path | None:
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return None
    return path if stat.S_ISDIR(mode) else None
