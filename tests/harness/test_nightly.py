"""The night is random and can be drawn again; every find keeps what is needed to see it again."""

import json
import random
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness import nightly, tasks
from harness.benchmarks.quiet import Quiet
from harness.bundles import read_bundle, write_bundle
from harness.campaign import Campaign, Options
from harness.cases import Case, kill_case
from harness.cli import main
from harness.commands.gate import smoke_configs
from harness.commands.nightly import specs_of
from harness.errors import UsageError
from harness.failures import write_bundles
from harness.layers import Bounds
from harness.nightly import draw_cases, drive, generator, next_in_chain
from harness.nightly_specs import random_spec, write_spec
from harness.report.write import read_result
from harness.results import PASS
from harness.runner import Behaviour, Outcome
from harness.session import Request
from harness.subjects import Subject
from harness.workers import InlineExecutor
from tests.harness.histories import a_baseline, a_subject
from tests.harness.toys import CORRECT, NEVER_RESUMES, toy
from tinyllm.spec import read_spec

BASES = specs_of([smoke_configs()])
PLACES = ("create-x#1", "write-x#1", "fsync-x#1", "rename-x#1")


def base(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes())
    return content


@pytest.mark.parametrize("path", BASES, ids=lambda p: p.stem)
def test_every_random_spec_is_valid(path: Path, tmp_path: Path) -> None:
    for number in range(25):
        spec = random_spec(generator(1, number), base(path))
        read_spec(write_spec(spec, base=path, directory=tmp_path))


def test_random_specs_reach_every_kind() -> None:
    drawn = [random_spec(generator(1, n), base(BASES[0])) for n in range(60)]
    assert {s["optimizer"]["name"] for s in drawn} == {"adamw", "sgd", "muon"}
    assert {s["precision"] for s in drawn} == {"f32", "bf16"}
    assert {s["schedule"]["name"] for s in drawn} == {"constant", "linear", "cosine"}
    assert {s["keep_ckpts"] for s in drawn} == {1, 2, 3, 4}


def test_a_spec_is_named_by_its_content_and_brings_its_data(tmp_path: Path) -> None:
    spec = random_spec(generator(7, "x"), base(BASES[0]))
    path = write_spec(spec, base=BASES[0], directory=tmp_path)
    assert write_spec(spec, base=BASES[0], directory=tmp_path) == path
    assert sorted(p.name for p in tmp_path.iterdir()) == ["corpus.txt", path.name]
    spec["data"]["sources"][0]["path"] = "../elsewhere.txt"
    with pytest.raises(UsageError, match="does not lie beside the spec"):
        write_spec(spec, base=BASES[0], directory=tmp_path)


def test_one_generator_a_draw() -> None:
    assert generator(3, "cases", 1).random() == generator(3, "cases", 1).random()
    others = {generator(*name).random() for name in ((3, "cases", 2), (4, "cases", 1), (3, "x", 1))}
    assert len(others) == 3


def test_only_cases_of_the_layers_that_are_wanted() -> None:
    baseline = a_baseline(places=PLACES, points=("p.one#1", "p.two#1"))
    drawn = draw_cases(random.Random(0), a_subject(), baseline, faults=("kill", "point", "error"))
    assert {case.layer for case in drawn} == {"kill", "point"}  # errors: of tinyllm only
    assert len({case.id for case in drawn}) == len(drawn)
    assert draw_cases(random.Random(0), a_subject(), a_baseline(), faults=("point",)) == []
    tinyllm = a_subject(format="tinyllm")
    drawn = draw_cases(random.Random(0), tinyllm, baseline, faults=("error",))
    assert {case.layer for case in drawn} == {"error"}


def outcome(verdict: str, *calls: str) -> Outcome:
    case = kill_case("toy", "kill", TriggerKind.CALL, "rename-x#1")
    behaviours = (Behaviour((), calls),) if calls else ()
    return Outcome(case, verdict, (), "seen", 0.1, behaviours=behaviours)


def test_a_chain_goes_on_before_a_call_that_the_resume_made() -> None:
    grown = next_in_chain(
        random.Random(0), [outcome(PASS, "unlink-x.tmp#1"), outcome(PASS), outcome("fail", "a-b#1")]
    )
    assert [(c.layer, [f.place for f in c.faults]) for c in grown] == [
        ("double", ["rename-x#1", "unlink-x.tmp#1"])
    ]


@pytest.fixture
def executor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    monkeypatch.setenv(tasks.ENV_SCRATCH, str(tmp_path / "scratch"))
    monkeypatch.setattr(nightly, "CASES_IN_A_ROUND", 5)
    monkeypatch.setattr(nightly, "CHAINS_IN_A_ROUND", 2)
    return InlineExecutor()


def a_night(
    subject: Subject, executor: Executor, tmp_path: Path, *, faults: tuple[str, ...]
) -> Campaign:
    options = Options(
        faults=faults, jobs=1, seed=11, fork=False, trace_dir=str(tmp_path / "traces")
    )
    campaign = Campaign(options, executor, Quiet(), None)
    request = Request(
        command="nightly",
        subjects=(subject,),
        options=options,
        out=tmp_path / "out",
        bounds=lambda _: Bounds(),
    )
    assert list(drive(campaign, request, specs=(), rounds=1)) == [subject.name]
    return campaign


def test_a_correct_program_passes_and_the_same_night_comes_twice(
    executor: Executor, tmp_path: Path
) -> None:
    subject = toy(tmp_path, CORRECT)
    faults = ("kill", "double", "power/posix")
    first = a_night(subject, executor, tmp_path, faults=faults)
    assert first.violations == []
    again = a_night(subject, executor, tmp_path, faults=faults)
    placed = [[r.case for r in c.records if "@time-" not in r.case] for c in (first, again)]
    assert placed[0] == placed[1]
    assert {"kill", "double", "power/posix"} == set(first.layers)
    assert first.notes[-1].startswith("1 rounds over 1 subjects") or "by time" in first.notes[-1]


def test_what_a_kill_by_time_left_is_in_its_bundle(executor: Executor, tmp_path: Path) -> None:
    subject = toy(tmp_path, NEVER_RESUMES)
    campaign = a_night(subject, executor, tmp_path, faults=("kill",))
    by_time = [f for f in campaign.failed if f.kept is not None]
    for failed in by_time:
        assert failed.outcome.case.faults[0].trigger is TriggerKind.TIME
    timed = [r for r in campaign.records if r.case.startswith("toy/kill@time-")]
    too_late = [int(n.split()[0]) for n in campaign.notes if "by time came after" in n]
    assert len(timed) + sum(too_late) == nightly.TIME_KILLS_IN_A_ROUND
    campaign.failed[:] = by_time[:1]
    out = tmp_path / "out"
    write_bundles(campaign, out, versions={}, executor=executor)
    for path in out.glob("failures/*"):
        bundle = read_bundle(path)
        assert bundle.verdict == "fail"
        assert bundle.history[-1].resuming
        assert "durability recheck" in (path / "README.md").read_text()


def test_a_bundle_says_that_a_kill_came_by_time(tmp_path: Path) -> None:
    for trigger, place, said in (
        (TriggerKind.TIME, "0.25", True),
        (TriggerKind.CALL, "a#1", False),
    ):
        case = Case("toy", "kill", (Fault(trigger, place, ActionKind.KILL),))
        path = write_bundle(
            tmp_path / str(trigger),
            case,
            subject={},
            attempts=[],
            verdict="fail",
            violations=[],
            versions={},
        )
        readme = (path / "README.md").read_text()
        assert ("came after a time, not at a named place" in readme) is said


def test_the_command_keeps_the_seed_and_the_history(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    toy(tmp_path, NEVER_RESUMES)
    described = tmp_path / "toy.toml"
    described.write_text(
        'name = "toy"\ntrain = ["python", "toy.py", "{root}"]\n'
        "[losses]\nfrom = \"stdout\"\npattern = 'step=(?P<step>\\d+) loss=(?P<loss>\\S+)'\n"
    )
    out = tmp_path / "out"
    words = ["nightly", str(described), "--faults", "kill", "--rounds", "1", "--jobs", "1"]
    assert main([*words, "--seed", "5", "--out", str(out)]) == 1
    result = read_result(out / "result.json")
    assert result.seed == 5
    assert result.subject == "toy"
    assert result.canary.startswith("caught: ")
    assert result.notes[-2] == "seed 5"
    assert result.notes[-1].startswith("new: resumable: ")
    assert main([*words, "--out", str(out)]) == 1
    again = read_result(out / "result.json")
    assert again.arguments[-2:] == ["--seed", str(again.seed)]
    assert again.notes[-1].startswith("known since ")
    assert "in 1 earlier run: resumable: " in again.notes[-1]
    assert f"seed {again.seed}" in capfd.readouterr().err
