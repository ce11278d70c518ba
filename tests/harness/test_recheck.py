"""Stored crash states are judged again: by today's program, today's oracle, the stored history."""

import shutil
from concurrent.futures import Future
from pathlib import Path

import pytest

from fault_injection.faults import TriggerKind
from harness import tasks
from harness.baseline import Baseline
from harness.bundles import read_bundle, write_bundle
from harness.cases import kill_case
from harness.cli import main
from harness.commands.recheck import exit_code, lines_of, summary_of
from harness.errors import UsageError
from harness.evidence import Finding, Step
from harness.failures import bundle_case
from harness.observation import Event
from harness.rechecking import Rechecked, bundles_below, recheck
from harness.rerun import KeptRun, rerun_case
from harness.results import FAIL, Violation
from harness.subjects import Subject, as_json
from harness.workers import InlineExecutor
from tests.harness.toys import CORRECT, STUMBLES, toy


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(tasks.ENV_SCRATCH, str(tmp_path / "scratch"))
    return tmp_path / "scratch"


def baseline_of(subject: Subject) -> Baseline:
    return tasks.baseline_task(subject, False, None)


def stumbling_bundle(directory: Path, tmp_path: Path) -> Path:
    """The bundle of a kill before the first rename, which the program stumbles over."""
    subject = toy(tmp_path, STUMBLES)
    baseline = baseline_of(subject)
    place = next(p for p in baseline.places if p.startswith("rename"))
    case = kill_case(subject.name, "kill", TriggerKind.CALL, place)
    outcome = tasks.case_task(subject, baseline, case)
    assert outcome.verdict == FAIL

    def again(kept: str) -> "Future[KeptRun]":
        future: Future[KeptRun] = Future()
        future.set_result(rerun_case(subject, baseline, case, tasks.scratch(), Path(kept)))
        return future

    violation = Violation(case=case.id, layer="kill", invariant="resumable", message="it stumbles")
    assert (
        bundle_case(subject, outcome, directory, rerun=again, violations=[violation], versions={})
        == FAIL
    )
    return directory


def rechecked(path: Path) -> Rechecked:
    [one] = recheck([path], executor=InlineExecutor(), fork=False)
    return one


def test_violated_until_the_program_is_mended(tmp_path: Path) -> None:
    bundle = stumbling_bundle(tmp_path / "failures" / "one", tmp_path)
    one = rechecked(bundle)
    assert (one.verdict, one.before) == ("violated", ("resumable",))
    assert [f.invariant for f in one.now] == ["resumable"]
    assert "what is state.json.tmp?" in one.now[0].message

    toy(tmp_path, CORRECT)
    assert rechecked(bundle).verdict == "holds"


def test_the_command_says_it_by_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = stumbling_bundle(tmp_path / "failures" / "one", tmp_path)
    assert main(["recheck", "--no-fork", str(tmp_path / "failures")]) == 1
    said = capsys.readouterr().out
    assert said.startswith("STILL VIOLATED  toy/kill@rename-state.json")
    assert said.endswith("1 stored state: 1 still violated, 0 hold, 0 not judged\n")
    (bundle / "history.json").unlink()
    assert main(["recheck", "--no-fork", str(bundle)]) == 3
    assert "no history.json" in capsys.readouterr().out


def lost_bundle(tmp_path: Path, subject: Subject, *, acknowledged: int) -> Path:
    """A bundle whose crash left nothing, after the program had acknowledged a step."""
    case = kill_case(subject.name, "kill", TriggerKind.CALL, "rename-state.json#2")
    shown = [Event("loss", 1, "0.875")] + [Event("ack", n) for n in range(1, acknowledged + 1)]
    crashed = Step(
        fault=case.faults[0],
        fault_seen=True,
        resuming=False,
        exit_code=None,
        signal=9,
        timed_out=False,
        events=tuple(shown),
        output="",
        calls_since_ack=4,
    )
    resumed = Step(
        fault=None,
        fault_seen=False,
        resuming=True,
        exit_code=0,
        signal=None,
        timed_out=False,
        events=(),
        output="",
    )
    tree = tmp_path / "nothing"
    tree.mkdir()
    return write_bundle(
        tmp_path / "bundle",
        case,
        subject=as_json(subject),
        attempts=[],
        verdict=FAIL,
        violations=[],
        versions={},
        tree=tree,
        history=(crashed, resumed),
    )


def test_what_had_been_acknowledged_is_judged_from_the_stored_history(tmp_path: Path) -> None:
    subject = toy(tmp_path, CORRECT)
    path = lost_bundle(tmp_path, subject, acknowledged=1)
    assert [f.invariant for f in rechecked(path).now] == ["no-lost-ack", "no-silent-restart"]


def test_a_crash_before_the_first_acknowledgement_loses_nothing(tmp_path: Path) -> None:
    path = lost_bundle(tmp_path, toy(tmp_path, CORRECT), acknowledged=0)
    assert rechecked(path).verdict == "holds"


def test_a_history_survives_the_bundle(tmp_path: Path) -> None:
    path = lost_bundle(tmp_path, toy(tmp_path, CORRECT), acknowledged=1)
    crashed, resumed = read_bundle(path).history
    assert crashed.events == (Event("loss", 1, "0.875"), Event("ack", 1))
    assert (crashed.calls_since_ack, resumed.resuming) == (4, True)


def test_a_program_that_is_gone_is_not_judged(tmp_path: Path) -> None:
    subject = toy(tmp_path, CORRECT)
    path = lost_bundle(tmp_path, subject, acknowledged=1)
    (tmp_path / "toy.py").unlink()
    one = rechecked(path)
    assert one.verdict == "not judged"
    assert "the uninterrupted run failed" in one.problem


def test_bundles_are_found_below_a_directory_but_not_within_bundles(tmp_path: Path) -> None:
    for place in ("failures/b", "failures/a", "failures/a/state/x", "previous/0001/failures/c"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "case.json").touch()
    assert bundles_below(tmp_path) == [tmp_path / "failures/a", tmp_path / "failures/b"]
    assert bundles_below(tmp_path / "failures/b") == [tmp_path / "failures/b"]
    shutil.rmtree(tmp_path / "failures")
    with pytest.raises(UsageError, match="holds no bundle"):
        bundles_below(tmp_path)
    with pytest.raises(UsageError, match="neither a bundle nor a directory"):
        bundles_below(tmp_path / "missing")


HOLDS = Rechecked(Path("b"), "toy/kill@x-00000000", ("resumable",))
VIOLATED = Rechecked(Path("b"), "toy/kill@y-00000000", (), (Finding("no-lost-ack", "gone"),))
NOT_JUDGED = Rechecked(Path("b"), "toy/kill@z-00000000", (), problem="first\nsecond")


@pytest.mark.parametrize(
    ("done", "code"),
    [
        ([HOLDS], 0),
        ([HOLDS, NOT_JUDGED], 3),
        ([NOT_JUDGED, VIOLATED, HOLDS], 1),
    ],
)
def test_a_violation_wins_over_what_could_not_be_judged(done: list[Rechecked], code: int) -> None:
    assert exit_code(done) == code


def test_the_table() -> None:
    assert lines_of(VIOLATED) == [
        "STILL VIOLATED  toy/kill@y-00000000   was nothing",
        "    no-lost-ack: gone",
    ]
    assert lines_of(NOT_JUDGED)[1:] == ["    first", "    second"]
    assert (
        summary_of([HOLDS, VIOLATED, NOT_JUDGED])
        == "3 stored states: 1 still violated, 1 hold, 1 not judged"
    )
