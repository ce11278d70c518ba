"""What a campaign counts, passes over and cuts short, and that it says so."""

import errno
import json
import os
import shutil
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fault_injection import seccomp
from fault_injection.faults import TriggerKind
from harness import cli, session
from harness.benchmarks.quiet import Quiet
from harness.campaign import Campaign, Options, may_name
from harness.cases import kill_case
from harness.results import INCONCLUSIVE, PASS
from harness.runner import Outcome
from tests.fault_injection.realfs_support import require
from tests.harness.test_check_command import NO_DIRECTORY_FSYNC, RIGHT, check, described

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

# Nothing is synced before the words: every file of a save may be lost, and any that is fails.
MANY_UNSYNCED = """
    import json, os, sys
    root = sys.argv[1]
    state = {"step": 0, "w": 1.0}
    if os.path.exists(os.path.join(root, "state.json")):
        for number in range(3):
            assert open(os.path.join(root, f"part-{number}")).read() == "whole"
        state = json.load(open(os.path.join(root, "state.json")))
    while state["step"] < 1:
        state = {"step": state["step"] + 1, "w": state["w"] * 0.5 + 0.25}
        print(f"step={state['step']} loss={state['w']!r}", flush=True)
        for number in range(3):
            with open(os.path.join(root, f"part-{number}"), "w") as file:
                file.write("whole")
        with open(os.path.join(root, "state.json"), "w") as file:
            json.dump(state, file)
        print(f"saved step={state['step']}", flush=True)
"""


class Answers(Executor):
    """Gives the outcomes that it has, one after another, whatever the task is."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = iter(outcomes)

    def submit(self, *_args: Any, **_named: Any) -> "Future[Any]":
        future: Future[Any] = Future()
        future.set_result(next(self._outcomes))
        return future


def test_a_second_kill_that_threads_never_come_to_is_said_and_not_counted() -> None:
    cases = [
        kill_case("s", "double", TriggerKind.CALL, f"write-a#{n}", "unlink-b#1") for n in range(3)
    ]
    outcomes = [Outcome(case, PASS, (), "", 0.0) for case in cases]
    outcomes[1] = replace(outcomes[1], verdict=INCONCLUSIVE, unreached=True)
    options = Options(faults=("double",), jobs=1)
    campaign = Campaign(options, Answers(outcomes), Quiet(), None)
    nothing: Any = None
    subject: Any = type("Named", (), {"name": "s"})
    counted = campaign.run_layer(subject, nothing, "double", cases)
    assert [o.case.id for o in counted] == [cases[0].id, cases[2].id]
    assert (campaign.layers["double"].cases, campaign.layers["double"].inconclusive) == (2, 0)
    assert [record.case for record in campaign.records] == [cases[0].id, cases[2].id]
    [note] = campaign.notes
    assert note.startswith("s double: 1 of 3 cases are not counted: threads took turns")


def test_plenty_of_failures_at_a_place_are_enough_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = described("--faults", "power", "--models", "posix")
    found = {}
    for name, more in (("some", ()), ("all", ("--exhaustive",))):
        (tmp_path / name).mkdir()
        code, found[name] = check(tmp_path / name, MANY_UNSYNCED, *options, *more)
        assert code == 1
    notes = {name: " ".join(result["notes"]) for name, result in found.items()}
    assert "had failed in ways already known (--exhaustive judges all)" in notes["some"]
    assert "already known" not in notes["all"]
    states = {name: r["layers"]["power/posix"]["states"] for name, r in found.items()}
    assert states["some"] < states["all"]
    told = [{v["invariant"] for v in result["violations"]} for result in found.values()]
    assert told[0] == told[1]
    # The verdict speaks of all that failed, though not each is told by itself.
    failed = found["all"]["layers"]["power/posix"]["failed"]
    assert failed > len({v["case"] for v in found["all"]["violations"]})
    assert f": {failed:,} of " in capsys.readouterr().out


def test_fail_fast_ends_the_power_layer_at_the_first_failure(tmp_path: Path) -> None:
    options = described("--faults", "power,signal", "--models", "posix", "--fail-fast")
    code, result = check(tmp_path, NO_DIRECTORY_FSYNC, *options)
    assert code == 1
    assert list(result["layers"]) == ["power/posix"]
    assert result["layers"]["power/posix"]["failed"] == 1
    assert any("--fail-fast after" in note for note in result["notes"])


def test_a_case_of_a_real_file_system_reproduces_on_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    require("ext4")
    options = described("--faults", "realfs/ext4", "--fail-fast")
    code, result = check(tmp_path, NO_DIRECTORY_FSYNC, *options)
    assert code == 1
    bundled = next(v for v in result["violations"] if v.get("bundle"))
    capsys.readouterr()
    assert cli.main(["reproduce", str(tmp_path / "out" / bundled["bundle"])]) == 1
    said = capsys.readouterr().out
    assert "ext4 lost power" in said
    assert f"reproduced: {bundled['case']}" in said


def test_a_program_that_goes_another_way_on_a_real_file_system_is_told_from_one_that_does_not_end(
    tmp_path: Path,
) -> None:
    require("ext4")
    asks = """
        import os, sys
        on_loop = os.major(os.stat(sys.argv[1]).st_dev) == 7
        with open(os.path.join(sys.argv[1], "on-loop" if on_loop else "other"), "w") as file:
            file.write("x")
    """
    code, result = check(tmp_path, asks, "--faults", "realfs/ext4")
    assert (code, result["verdict"]) == (3, "inconclusive")
    records = (tmp_path / "out" / "cases.jsonl").read_text().splitlines()
    said = [case["message"] for case in map(json.loads, records) if "create-other" in case["case"]]
    assert len(said) == 2  # cut at once, and committed first
    assert all("On ext4 the program made the call create-on-loop#1, which" in s for s in said)


def test_a_failure_that_there_is_no_room_to_keep_is_told_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_named: Any) -> None:
        raise shutil.Error([("state", "state", "[Errno 28] No space left on device")])

    monkeypatch.setattr(session, "write_bundles", full)
    code, result = check(
        tmp_path, NO_DIRECTORY_FSYNC, *described("--faults", "power", "--models", "posix")
    )
    assert code == 1
    assert any("not every failure could be kept (no space left" in n for n in result["notes"])


def test_results_that_there_is_no_room_to_write_are_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_args: Any, **_named: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session, "write_all", full)
    assert check(tmp_path, RIGHT, *described("--faults", "kill"))[0] == 3
    said = capsys.readouterr()
    assert "PASS" in said.out
    assert "no space left on the device, and the results above were not written" in said.err


def test_losses_that_go_back_are_no_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = RIGHT + '    print("best was step=1 loss=0.75", flush=True)\n'
    assert check(tmp_path, summary, *described())[0] == 2
    assert "found step 1 after step 4" in capsys.readouterr().err


def test_a_filter_finds_cases_that_build_on_others_which_it_does_not_name(tmp_path: Path) -> None:
    options = described("--faults", "kill,double", "--filter", "train/double@*#1+*")
    code, result = check(tmp_path, RIGHT, *options)
    assert code == 0
    assert list(result["layers"]) == ["double"]
    assert result["layers"]["double"]["cases"] > 0


@pytest.mark.parametrize(
    ("pattern", "layers"),
    [
        ("*rename-LATEST*", {"point", "kill", "double"}),
        ("*", {"point", "kill", "double"}),
        ("mine/d*", {"double"}),
        ("mine/double@*", {"double"}),
        ("other/*", set()),
        ("*/kill@rewind-*", {"kill"}),
        ("*power-posix*", set()),
        ("mine/power-posix@*", set()),
        ("1a2b3c4d", set()),
    ],
)
def test_which_layers_a_filter_may_mean(pattern: str, layers: set[str]) -> None:
    found = {layer for layer in ("point", "kill", "double") if may_name(pattern, "mine", layer)}
    assert found == layers
