"""The doctor says what can run, by the same words by which a run skips it, and cleans up."""

import argparse
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fault_injection import filesystems, leftovers, loopdev, seccomp, volumes
from harness import doctor

LAYERS = [
    *("point", "kill", "double", "power"),
    *("power/posix", "power/ext4", "power/xfs", "power/btrfs"),
    *("error", "corrupt", "signal", "realfs/ext4", "realfs/xfs", "realfs/btrfs", "realfs"),
]
HOLD = (
    "import sys, time; from fault_injection import leftovers;"
    " print(leftovers.create_workspace(), flush=True); time.sleep(60)"
)


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test alone."""
    monkeypatch.setenv(leftovers.ENV_HOME, str(tmp_path))
    return tmp_path


def _doctor(*words: str) -> int:
    parser = argparse.ArgumentParser()
    doctor.add_parser(parser.add_subparsers())
    arguments = parser.parse_args(["doctor", *words])
    return int(arguments.run(arguments))


def _pretend(
    monkeypatch: pytest.MonkeyPatch, *, supervised: str | None, real: dict[str, str | None]
) -> None:
    monkeypatch.setattr(seccomp, "unavailable", lambda: supervised)
    monkeypatch.setattr(volumes, "unavailable", lambda file_system: real[file_system])


def test_what_can_run_has_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, supervised=None, real=dict.fromkeys(("ext4", "xfs", "btrfs")))
    assert doctor.layers() == dict.fromkeys(LAYERS)
    assert doctor.reasons() == {}


def test_what_cannot_run_is_named_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "mkfs.xfs not found; install xfsprogs"
    _pretend(
        monkeypatch, supervised="no seccomp", real={"ext4": None, "xfs": missing, "btrfs": None}
    )
    supervised = ["kill", "double", "power", *LAYERS[4:8], "error"]
    assert doctor.reasons() == dict.fromkeys(supervised, "no seccomp") | {"realfs/xfs": missing}


def test_realfs_as_a_whole_is_missing_when_every_file_system_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _pretend(
        monkeypatch, supervised=None, real=dict.fromkeys(("ext4", "xfs", "btrfs"), "needs root")
    )
    assert doctor.reasons() == dict.fromkeys(LAYERS[-4:], "needs root")


def test_only_what_is_wanted_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_to_be_called(*_: object) -> str:
        raise AssertionError("tried without being wanted")

    monkeypatch.setattr(seccomp, "unavailable", lambda: "no seccomp")
    monkeypatch.setattr(volumes, "unavailable", not_to_be_called)
    assert doctor.reasons(["point", "kill", "power/xfs"]) == {
        "kill": "no seccomp",
        "power/xfs": "no seccomp",
    }
    monkeypatch.setattr(seccomp, "unavailable", not_to_be_called)
    monkeypatch.setattr(volumes, "unavailable", lambda file_system: f"no {file_system}")
    assert doctor.reasons(["realfs/xfs", "signal"]) == {"realfs/xfs": "no xfs"}
    assert doctor.reasons(["realfs"]) == {"realfs": "no ext4; no xfs; no btrfs"}


def test_the_reasons_here_are_those_of_a_real_trial() -> None:
    assert doctor.layers()["kill"] == seccomp.unavailable()
    assert doctor.layers()["realfs/ext4"] == volumes.unavailable("ext4")


def test_each_missing_thing_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(filesystems.shutil, "which", lambda *_, **__: None)
    monkeypatch.setattr(loopdev, "unavailable", lambda: "no loop devices")
    monkeypatch.setattr(seccomp, "unavailable", lambda: "no seccomp")
    monkeypatch.setattr(doctor.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(doctor.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(doctor.os.path, "isdir", lambda _: False)
    missing = {check.name: check.missing for check in doctor.checks() if check.missing}
    assert missing == {
        "torch": "only tinyllm needs it: pip install torch",
        "seccomp": "no seccomp",
        "user": "realfs needs root",
        "loop devices": "no loop devices",
        "mkfs.ext4": "mkfs.ext4 not found; install e2fsprogs",
        "mkfs.xfs": "mkfs.xfs not found; install xfsprogs",
        "mkfs.btrfs": "mkfs.btrfs not found; install btrfs-progs",
        "tmpfs": "no /dev/shm: crash states are laid out on the disk, slower",
        "C compiler": "only the tests with C programs need it: install gcc",
    }


def test_the_page_names_machine_layers_and_leftovers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, supervised=None, real={"ext4": None, "xfs": "needs root", "btrfs": None})
    assert _doctor() == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if not line.startswith(" ")] == [
        *("This machine", "", "Fault layers", "", "Left behind by killed runs")
    ]
    assert "  point         can run" in lines
    assert "  realfs/xfs    SKIPPED  needs root" in lines
    assert lines[-1] == "  nothing"


def _leave_a_workspace() -> str:
    with subprocess.Popen([sys.executable, "-c", HOLD], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        path = process.stdout.readline().decode().strip()
        process.send_signal(signal.SIGKILL)
    return os.path.dirname(path)


def test_leftovers_are_shown_then_cleaned(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, supervised=None, real=dict.fromkeys(("ext4", "xfs", "btrfs")))
    directory = _leave_a_workspace()
    assert _doctor() == 0
    said = capsys.readouterr().out.splitlines()[-2:]
    assert said == [
        f"  directory {directory} of the dead run {os.path.basename(directory)}",
        "  remove it with: durability doctor --clean",
    ]
    assert os.path.isdir(directory)
    assert _doctor("--clean") == 0
    assert capsys.readouterr().out.splitlines()[-1] == "  removed: all 1"
    assert os.listdir(runtime) == []


def test_what_cannot_be_removed_is_said_and_is_not_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, supervised=None, real=dict.fromkeys(("ext4", "xfs", "btrfs")))
    monkeypatch.setattr(leftovers, "clean", lambda _: ("x: it is stuck",))
    assert _doctor("--clean") == 3
    assert capsys.readouterr().out.splitlines()[-1] == "  PROBLEM  x: it is stuck"


def test_json_says_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, supervised=None, real={"ext4": "needs root", "xfs": None, "btrfs": None})
    directory = _leave_a_workspace()
    assert _doctor("--json", "--clean") == 0
    said = json.loads(capsys.readouterr().out)
    assert said["format"] == "durability-doctor/1"
    assert said["layers"] == dict.fromkeys(LAYERS) | {"realfs/ext4": "needs root"}
    assert said["leftovers"] == [
        {"kind": "directory", "what": directory, "owner": os.path.basename(directory)}
    ]
    assert (said["cleaned"], said["problems"]) == (True, [])
    assert [check["name"] for check in said["checks"]] == [
        *("system", "python", "torch", "seccomp", "user", "loop devices"),
        *("mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "tmpfs", "C compiler"),
    ]


def test_a_home_that_is_not_ours_is_a_problem_and_not_a_stack_trace(
    runtime: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _pretend(monkeypatch, supervised=None, real=dict.fromkeys(("ext4", "xfs", "btrfs")))
    (runtime / f"durability-{os.geteuid()}").write_text("")
    assert _doctor() == 0
    assert "is not a directory of user" in capsys.readouterr().out.splitlines()[-1]
    assert _doctor("--clean") == 3
