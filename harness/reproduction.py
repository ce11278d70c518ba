"""Finding a case again by its name, and running it with everything kept.

A case is named by a bundle, an id, its hex digits (or a unique beginning), or its place in words.
Where an earlier run has a bundle of exactly this case, that says what it is and of which subject.
Otherwise the subject comes from the smoke configurations by name, or from what the user names, and
the case is planned again from a new baseline, so that no earlier result is needed; hex digits alone
are looked up in earlier runs first.
"""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path

from fault_injection.faults import TriggerKind
from fault_injection.filesystems import FILE_SYSTEMS
from harness import planning, tasks
from harness.baseline import Baseline
from harness.bundles import Bundle, BundledAttempt, read_bundle, write_bundle
from harness.cases import (
    LAYERS,
    REWIND,
    Case,
    kill_case,
    recording_of,
    rewind_case,
    time_case,
)
from harness.commands.gate import smoke_configs
from harness.errors import HarnessError, UsageError
from harness.failures import bundled_attempts, crash_state
from harness.power.explore import Exploration
from harness.realfs import realfs_cases
from harness.report.timeline import as_text
from harness.report.write import read_records
from harness.results import Violation
from harness.runner import Outcome
from harness.session import versions
from harness.signatures import signature_of
from harness.subjects import Subject, as_json, discover, from_json, with_timeout

_REWIND = re.compile(rf"{REWIND}(?P<step>step-[0-9]{{6}})")
_HEX = re.compile(r"[0-9a-f]{2,8}")
_ID = re.compile(
    r"(?P<subject>[^/@]+)/(?P<layer>[a-z0-9/-]+)@(?P<words>.+?)(?:-(?P<hex>[0-9a-f]{8}))?"
)


@dataclass(frozen=True, slots=True)
class Prepared:
    """A subject ready to run cases: its baseline, its stored trace, and a worker."""

    subject: Subject
    baseline: Baseline
    executor: Executor
    temp_dir: Path

    @property
    def trace_dir(self) -> str:
        """Where the recorded trace is."""
        return str(self.temp_dir / "traces" / self.subject.name)


@dataclass(frozen=True, slots=True)
class Found:
    """The case that a name means."""

    case: Case


@dataclass(frozen=True, slots=True)
class Rerun:
    """A case that was run again. ``timeline`` is for people, ended by a newline."""

    outcome: Outcome
    timeline: str
    crash_state: Path | None
    attempts: tuple[BundledAttempt, ...]


def is_bundle(name: str) -> bool:
    """Whether a name is the path of a bundle."""
    return (Path(name) / "case.json").is_file()


def subject_of(name: str, *, subject: Path | None, reports: Path) -> Subject:
    """The subject of the case that ``name`` names. Raises :class:`UsageError`."""
    if is_bundle(name):
        return from_json(dict(read_bundle(Path(name)).subject))
    if subject is not None:
        [only] = discover([subject])
        return only
    full = full_id(name, reports=reports)
    bundle = _bundle_of(full, reports=reports)
    if bundle is not None:
        return from_json(dict(bundle.subject))
    known = _known_subjects(reports)
    parsed = _ID.fullmatch(full)
    if parsed is not None:
        wanted = parsed["subject"]
        if wanted in known:
            return known[wanted]
        raise UsageError(
            f"{name}: no smoke config and no bundle under {reports} is of a subject {wanted!r}; "
            "name its file with --subject"
        )
    raise UsageError(
        f"{name}: neither a bundle nor the id of a case. An id is <subject>/<layer>@<place>-<hex>; "
        "its hex digits alone are enough when an earlier run under "
        f"{reports} has the case"
    )


def full_id(name: str, *, reports: Path) -> str:
    """The whole id for a beginning of hex digits, from earlier runs; other names as they are."""
    if not _HEX.fullmatch(name):
        return name
    found = sorted({i for i in _recorded_ids(reports) if i.rpartition("-")[2].startswith(name)})
    if len(found) > 1:
        raise UsageError(f"{name} begins {len(found)} cases: {', '.join(found[:4])}")
    return found[0] if found else name


def _bundle_of(full: str, *, reports: Path) -> Bundle | None:
    """The newest bundle of exactly this case in earlier runs: it needs no planning."""
    digest = full.rpartition("-")[2]
    if not _HEX.fullmatch(digest):
        return None
    for path in reversed(_bundles_below(reports, f"*-{digest}")):
        bundle = read_bundle(path)
        if bundle.case.id == full:
            return bundle
    return None


def _bundles_below(reports: Path, name: str = "*") -> list[Path]:
    """Bundles of earlier runs, the newest last: the results of a run before stay beside it."""
    found = reports.glob(f"**/failures/{name}/case.json")
    return [path.parent for _, path in sorted((p.lstat().st_mtime_ns, p) for p in found)]


def _recorded_ids(reports: Path) -> Iterator[str]:
    for path in sorted(reports.glob("**/cases.jsonl")):
        for record in read_records(path):
            yield record.case
    for path in _bundles_below(reports):
        yield read_bundle(path).case.id


def _known_subjects(reports: Path) -> dict[str, Subject]:
    """Subjects by name: those of bundles under ``reports``, and before them the smoke configs."""
    known = {}
    for path in _bundles_below(reports):
        bundled = from_json(dict(read_bundle(path).subject))
        known[bundled.name] = bundled
    try:
        directory = smoke_configs()
    except UsageError:
        return known
    found = [*discover([directory])]
    for path in sorted(directory.glob("subjects/*/*.toml")):
        found += discover([path])
    return {**known, **{s.name: s for s in found}}


def prepare(subject: Subject, *, executor: Executor, temp_dir: Path, fork: bool) -> Prepared:
    """Run the subject's baseline. Raises what it raises."""
    trace_dir = str(temp_dir / "traces" / subject.name)
    baseline = executor.submit(tasks.baseline_task, subject, fork, trace_dir).result()
    subject = with_timeout(subject, baseline_seconds=baseline.seconds)
    return Prepared(subject, baseline, executor, temp_dir)


def find(name: str, prepared: Prepared, *, reports: Path) -> Found:
    """The case that ``name`` names. Raises :class:`UsageError` when there is none."""
    if any(sign in name for sign in "*?[") and not is_bundle(name):
        raise UsageError(
            f"{name} is a pattern; give one case's id (--filter of check takes patterns)"
        )
    if is_bundle(name):
        return Found(read_bundle(Path(name)).case)
    full = full_id(name, reports=reports)
    bundle = _bundle_of(full, reports=reports)
    if bundle is not None and bundle.case.subject == prepared.subject.name:
        return Found(bundle.case)
    parsed = _ID.fullmatch(full)
    if parsed is not None:
        for case in _written_out(parsed, prepared):
            if parsed["hex"] is None or case.digest == parsed["hex"]:
                return Found(case)
    wanted = parsed["hex"] if parsed is not None else full
    layer = parsed["layer"] if parsed is not None else ""
    matches = {
        case.id: case
        for case in planned(prepared, layer=layer)
        if (wanted is not None and case.digest.startswith(wanted))
        or (wanted is None and case.id.rpartition("-")[0] == full)
    }
    if len(matches) == 1:
        return Found(next(iter(matches.values())))
    if matches:
        raise UsageError(f"{name} names {len(matches)} cases: {', '.join(sorted(matches)[:4])}")
    raise UsageError(
        f"{name}: {prepared.subject.name} has no such case now; the program or the place may have "
        "changed since it was found. A bundle keeps the crash state: durability recheck BUNDLE"
    )


def _written_out(parsed: re.Match[str], prepared: Prepared) -> Iterable[Case]:
    """The case of faults that an id says in words, for the layers whose words say everything."""
    name, layer, words = parsed["subject"], parsed["layer"], parsed["words"]
    places = words.split("+")
    back_to = _REWIND.fullmatch(places[0])
    if back_to is not None and layer in ("point", "kill", "double"):
        trigger = TriggerKind.POINT if layer == "point" else TriggerKind.CALL
        yield rewind_case(name, layer, trigger, back_to["step"], *places[1:])
    elif layer == "point":
        yield kill_case(name, layer, TriggerKind.POINT, *places)
    elif layer in ("kill", "double"):
        if places == ["end"]:
            yield kill_case(name, layer, TriggerKind.AFTER_LAST_CALL, "end")
        elif words.startswith("time-"):
            yield time_case(name, words.removeprefix("time-"))
        else:
            yield kill_case(name, layer, TriggerKind.CALL, *places)
    del prepared


def planned(prepared: Prepared, *, layer: str = "") -> Iterator[Case]:
    """Every case that can be planned from the baseline or a rewind, of the layer or of all."""
    subject, baseline = prepared.subject, prepared.baseline
    wanted = (layer.split("-")[0],) if layer else LAYERS
    if "point" in wanted:
        yield from planning.point_cases(subject, baseline)
        yield from rewinds(prepared, "point")
    if "kill" in wanted:
        yield from planning.kill_cases(subject, baseline)
        yield from rewinds(prepared, "kill")
    if "signal" in wanted:
        yield from planning.signal_cases(subject, baseline)
    if "error" in wanted:
        yield from planning.error_cases(subject, baseline, saves=None)
    if "realfs" in wanted:
        file_system = layer.partition("-")[2]
        for one in (file_system,) if file_system else FILE_SYSTEMS:
            yield from realfs_cases(subject, baseline, one, saves=None)
    if "power" in wanted:
        model = layer.partition("-")[2]
        for one in (model,) if model else ("posix", "ext4", "xfs", "btrfs"):
            for exploration in explorations(prepared, one):
                yield from prepared.executor.submit(tasks.power_cases_task, exploration).result()


def rewinds(prepared: Prepared, layer: str) -> Iterator[Case]:
    """The cases of a rewind in the layer: an undisturbed one is run to tell them."""
    subject, baseline = prepared.subject, prepared.baseline
    for base in planning.rewind_base(subject, baseline, layer=layer):
        yield base
        outcome = prepared.executor.submit(tasks.case_task, subject, baseline, base).result()
        if layer == "point":
            yield from planning.rewind_point_cases(outcome)
        else:
            yield from planning.rewind_kill_cases(outcome)


def explorations(
    prepared: Prepared, model: str, *, case: Case | None = None, seed: int = 0
) -> list[Exploration]:
    """The explorations of whole recorded runs under a model: all, or the one that a case is of.

    Raises :class:`UsageError` when there is no such recording now.
    """
    runs = [prepared.baseline, *prepared.baseline.others]
    if case is not None:
        number = recording_of(case)
        runs = [run for run in runs if run.number == number]
        if not runs:
            raise UsageError(
                f"{case.id}: its threads took turns in a way that was not recorded now "
                f"(recording {number}). A bundle keeps the crash state: durability recheck BUNDLE"
            )
    return [
        Exploration(
            subject=prepared.subject,
            baseline=run,
            trace_dir=prepared.trace_dir,
            model=model,
            seed=seed,
        )
        for run in runs
    ]


def rerun(case: Case, prepared: Prepared, *, directory: Path) -> Rerun:
    """Run a case with its trees kept below ``directory``."""
    directory.mkdir(parents=True, exist_ok=True)
    if case.layer.startswith("power/"):
        [exploration] = explorations(prepared, case.layer.partition("/")[2], case=case)
        run = prepared.executor.submit(
            tasks.kept_state_task, exploration, case, str(directory)
        ).result()
    else:
        run = prepared.executor.submit(
            tasks.kept_case_task, prepared.subject, prepared.baseline, case, str(directory)
        ).result()
    outcome = run.outcome
    return Rerun(
        outcome=outcome,
        timeline=as_text(run.timeline),
        crash_state=crash_state(directory, outcome),
        attempts=tuple(bundled_attempts(prepared.subject, outcome)),
    )


def promote(run: Rerun, prepared: Prepared, path: Path) -> None:
    """Keep a case as a bundle under version control."""
    violations = [
        Violation(
            case=run.outcome.case.id,
            layer=run.outcome.case.layer,
            invariant=finding.invariant,
            message=finding.message,
            config=prepared.subject.name,
            signature=signature_of(finding),
            expected=finding.expected,
            found=finding.found,
        )
        for finding in run.outcome.findings
    ]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(
            path,
            run.outcome.case,
            subject=as_json(prepared.subject),
            config=prepared.subject.name,
            attempts=run.attempts,
            verdict=run.outcome.verdict,
            violations=violations,
            versions=versions(),
            tree=run.crash_state,
            history=run.outcome.history.steps if run.outcome.history else (),
        )
    except OSError as error:
        raise HarnessError(f"{path}: the finding cannot be written: {error}") from error
