"""Rewinds from the gate's command line to a bundle that is judged again, on a smoke config."""

import contextlib
import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fault_injection import seccomp
from fault_injection.faults import TriggerKind
from harness import cli, mutants, planning, reproduction, tasks
from harness.bundles import read_bundle, write_bundle
from harness.cases import Case, kill_case, rewind_case
from harness.minimizing import minimized
from harness.rechecking import recheck
from harness.reproduction import Found, Prepared
from harness.results import FAIL, PASS
from harness.runner import Outcome
from harness.subjects import Subject, as_json, discover
from harness.workers import worker_pool

pytestmark = [
    pytest.mark.skipif(
        seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
    ),
    pytest.mark.timeout(300),
]

ROOT = Path(__file__).parents[2]
SPEC = ROOT / "smoke_configs" / "adamw.json"
BACK_TO = "step-000006"


@pytest.fixture(scope="module")
def gate(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, Any], list[Any]]:
    """The rewinds of a gate of one config: exit code, result, records."""
    out = tmp_path_factory.mktemp("gate") / "out"
    options = ["--faults", "point,kill", "--filter", "*@rewind-*", "--jobs", "1"]
    code = cli.main(["gate", str(SPEC), *options, "--out", str(out)])
    records = [json.loads(line) for line in (out / "cases.jsonl").read_text().splitlines()]
    return code, json.loads((out / "result.json").read_text()), records


def test_the_gate_reaches_what_only_a_rewind_does(
    gate: tuple[int, dict[str, Any], list[Any]],
) -> None:
    code, _, records = gate
    assert code == 0
    [case] = [r for r in records if "+rewind.pointer-moved-back#1-" in r["case"]]
    assert (case["layer"], case["verdict"]) == ("point", "pass")
    # The rewinding attempt is named as killed there: the second of the two that were.
    assert case["evidence"].count("SIGKILL") == 2
    assert "rewind.pointer-moved-back#1" in case["evidence"].partition("; ")[2]


def test_one_undisturbed_rewind_tells_both_layers_what_to_kill(
    gate: tuple[int, dict[str, Any], list[Any]],
) -> None:
    """Whatever follows the first rename, and a few of the rest, said to be a sample."""
    _, result, records = gate
    words = [r["case"].partition("@")[2].rpartition("-")[0] for r in records]
    assert words.count(f"rewind-{BACK_TO}") == 1
    kills = {
        w.partition("+")[2] for w, r in zip(words, records, strict=True) if r["layer"] == "kill"
    }
    assert kills >= {
        "rename-LATEST#1",
        "fsync-ckpt#1",
        "rename-step-000008.aside-1.tmp#1",
        "rename-step-000008#1",
        "fsync-ckpt#2",
        "create-LATEST.tmp#2",
        "rename-LATEST#2",
        "fsync-ckpt#3",
    }
    noted = [n for n in result["notes"] if n.startswith("adamw kill, rewind: ")]
    assert len(noted) == 1
    assert result["layers"]["kill"]["cases"] == len(kills)


@contextlib.contextmanager
def prepared(subject: Subject) -> Iterator[Prepared]:
    with worker_pool(1) as (executor, temp_dir):
        yield reproduction.prepare(subject, executor=executor, temp_dir=Path(temp_dir), fork=True)


@pytest.fixture(scope="module")
def adamw() -> Iterator[Prepared]:
    [subject] = discover([SPEC])
    with prepared(subject) as ready:
        yield ready


def run(ready: Prepared, case: Case) -> Outcome:
    return ready.executor.submit(tasks.case_task, ready.subject, ready.baseline, case).result()


def test_a_rewind_is_found_by_its_words_and_by_its_digest(adamw: Prepared, tmp_path: Path) -> None:
    case = rewind_case("adamw", "point", TriggerKind.POINT, BACK_TO, "rewind.pointer-moved-back#1")
    for name in (case.id, case.id.rpartition("-")[0], case.digest):
        assert reproduction.find(name, adamw, reports=tmp_path).case == case


def test_a_worker_makes_the_first_attempt_of_rewinds_once(adamw: Prepared, tmp_path: Path) -> None:
    """What it remembers leads to what a run of all the attempts does, and is left alone by it."""
    case = rewind_case("adamw", "point", TriggerKind.POINT, BACK_TO, "rewind.pointer-moved-back#1")
    other = rewind_case("adamw", "kill", TriggerKind.CALL, BACK_TO, "rename-step-000008#1")
    outcomes = [run(adamw, each) for each in (case, other, case)]
    kept = reproduction.rerun(case, adamw, directory=tmp_path / "kept").outcome
    assert [o.verdict for o in (*outcomes, kept)] == [PASS] * 4
    assert {o.evidence for o in (outcomes[0], outcomes[2], kept)} == {kept.evidence}
    assert outcomes[0].behaviours == outcomes[2].behaviours
    assert outcomes[0].behaviours[0].shape == kept.behaviours[0].shape


def test_the_kinds_of_cases_of_the_gate_reach_every_documented_point(adamw: Prepared) -> None:
    """But those of a release: uninterrupted, in a rewind, and in what follows four of the kills."""
    page = (ROOT / "docs" / "failpoints.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `([^`]+)` \|", page, flags=re.MULTILINE))
    kills = (
        "save.staging-made#1",
        "save.pointer-written#1",
        "save.step-renamed#1",
        "save.step-renamed#2",
    )
    cases = [kill_case("adamw", "point", TriggerKind.POINT, place) for place in kills]
    cases += planning.rewind_base(adamw.subject, adamw.baseline, layer="point")
    reached = [*adamw.baseline.points, *(p for c in cases for p in run(adamw, c).resume_points)]
    names = {p.rpartition("#")[0] for p in reached}
    assert {p for p in documented if not p.startswith("release.")} == names


def test_a_bundle_of_an_undisturbed_rewind_is_rewound_again(
    adamw: Prepared, tmp_path: Path
) -> None:
    """A plain resume would not miss the checkpoint that this one is told to go back to."""
    [base] = planning.rewind_base(adamw.subject, adamw.baseline, layer="kill")
    again = reproduction.rerun(base, adamw, directory=tmp_path / "kept")
    assert again.crash_state is not None
    assert again.outcome.history is not None
    shutil.rmtree(again.crash_state / "runs" / "run" / "ckpt" / BACK_TO)
    bundle = write_bundle(
        tmp_path / "bundle",
        base,
        subject=as_json(adamw.subject),
        attempts=again.attempts,
        verdict=FAIL,
        violations=[],
        versions={},
        tree=again.crash_state,
        history=again.outcome.history.steps,
    )
    [judged] = recheck([bundle], executor=adamw.executor, fork=True)
    assert judged.problem == ""
    [resumable] = [f for f in judged.now if f.invariant == "resumable"]
    assert resumable.found == "exit code 4"  # nothing to resume from


def test_a_broken_rewind_is_bundled_judged_again_and_minimised(tmp_path: Path) -> None:
    """A kill that follows in the next attempt is not needed; the rewind is, and its first kill."""
    [mutant] = [
        m
        for m in mutants.tinyllm_mutants(ROOT / "tests" / "mutants", spec=SPEC)
        if m.name == "tinyllm-rewind-leaves-the-pointer"
    ]
    name, place = mutant.subject.name, "rename-step-000008#1"
    small = rewind_case(name, "kill", TriggerKind.CALL, BACK_TO, place)
    large = rewind_case(name, "double", TriggerKind.CALL, BACK_TO, place, "fsync-run#1")
    said: list[str] = []
    with prepared(mutant.subject) as ready:
        run = reproduction.rerun(large, ready, directory=tmp_path / "kept")
        found = minimized(Found(large), ready, say=said.append)
        bundle = write_bundle(
            tmp_path / "bundle",
            large,
            subject=as_json(ready.subject),
            attempts=run.attempts,
            verdict=run.outcome.verdict,
            violations=[],
            versions={},
            tree=run.crash_state,
            history=run.outcome.history.steps if run.outcome.history else (),
        )
        [again] = recheck([bundle], executor=ready.executor, fork=True)
    assert (run.outcome.verdict, found.case) == (FAIL, small)
    assert said[-1] == f"minimised to {small.id}"
    assert [f.invariant for f in run.outcome.findings] == ["pointer-complete"]
    stored = read_bundle(bundle)
    assert [s.rewind for s in stored.history] == ["", BACK_TO, "", ""]
    assert stored.attempts[1].command[-1] == f"{{root}}/runs/run/ckpt/{BACK_TO}"
    assert [a.command[-1] for a in (stored.attempts[0], *stored.attempts[2:])] == [
        "run",
        "--resume",
        "--resume",
    ]
    assert (again.problem, {f.invariant for f in again.now}) == ("", {"pointer-complete"})
