"""What a run that is interrupted leaves: all that ended by then, readable and counted."""

import json
import os
import shlex
import signal
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fault_injection import seccomp
from harness import cli, underway
from harness.progress import Shown
from tests.harness.test_check_command import IN_PLACE, RIGHT, described

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)


def check(tmp_path: Path, source: str, *options: str) -> int:
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    out = str(tmp_path / "out")
    words = ["--", "python", str(script), "{root}"]
    return cli.main(["check", "--jobs", "1", "--out", out, *options, *words])


def left(tmp_path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The result and the cases; the pages are there too."""
    out = tmp_path / "out"
    assert "interrupted" in (out / "summary.md").read_text()
    assert (out / "junit.xml").stat().st_size > 0
    lines = (out / "cases.jsonl").read_text().splitlines()
    return json.loads((out / "result.json").read_text()), [json.loads(line) for line in lines]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_cases_that_ended_are_written_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    advance = Shown.advance

    def interrupting(shown: Shown, *, failed: bool = False) -> None:
        advance(shown, failed=failed)
        if shown.done == 5:
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    monkeypatch.setattr(Shown, "advance", interrupting)
    assert check(tmp_path, RIGHT, *described("--faults", "kill,signal")) == 130
    assert signal.getsignal(number) is before
    result, cases = left(tmp_path)
    assert (result["interrupted"], result["verdict"]) == (True, "inconclusive")
    assert "interrupted" in result["reasons"]
    assert list(result["layers"]) == ["kill"]
    assert 5 <= len(cases) == result["layers"]["kill"]["cases"] < result["baseline"]["operations"]
    assert result["baseline"]["steps"] == 4
    [note] = [n for n in result["notes"] if "were not run" in n]
    assert note.endswith("the run was interrupted")


def test_what_failed_by_then_can_be_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Violations win over the interruption. The printed command finds the subject in the bundle."""
    advance = Shown.advance

    def interrupting(shown: Shown, *, failed: bool = False) -> None:
        advance(shown, failed=failed)
        if shown.failed == 1:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(Shown, "advance", interrupting)
    assert check(tmp_path, IN_PLACE, *described("--faults", "kill")) == 1
    result, cases = left(tmp_path)
    assert result["interrupted"] is True
    assert result["layers"]["kill"]["failed"] == 1
    assert [c["verdict"] for c in cases].count("fail") == 1
    monkeypatch.undo()
    [violation] = result["violations"]
    assert (tmp_path / "out" / violation["bundle"] / "case.json").is_file()
    capsys.readouterr()
    assert cli.main(shlex.split(violation["reproduce"])[1:]) == 1
    assert f"reproduced: {violation['case']}" in capsys.readouterr().out


def test_the_crash_states_judged_by_then_are_written_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fourth resume waits until the worker has been asked to stop."""
    blocked, go, resumes = tmp_path / "blocked", tmp_path / "go", tmp_path / "resumes"
    waits = f"""
    import time
    if sys.argv[2:]:
        with open({str(resumes)!r}, "ab") as file:
            file.write(b".")
        if os.path.getsize({str(resumes)!r}) == 4:
            open({str(blocked)!r}, "w").close()
            while not os.path.exists({str(go)!r}):
                time.sleep(0.01)
    """
    monkeypatch.setenv("PYTHONHASHSEED", "0")  # or some resumes are tried as processes first
    source = RIGHT.replace("    root =", waits.strip("\n") + "\n    root =", 1)
    working, ask_to_stop = Shown.working, underway.ask_to_stop
    said: list[str] = []

    def interrupting(shown: Shown, words: str) -> None:
        working(shown, words)
        said.append(words)
        if blocked.exists() and not go.exists():
            os.kill(os.getpid(), signal.SIGINT)

    def asking(directory: Path) -> None:
        ask_to_stop(directory)
        go.touch()

    monkeypatch.setattr(Shown, "working", interrupting)
    monkeypatch.setattr(underway, "ask_to_stop", asking)
    options = ("--faults", "power", "--models", "posix,xfs", "--no-equal-reads")
    resume = ("--resume", f"python {tmp_path / 'train.py'} {{root}} again")
    assert check(tmp_path, source, *described(*options, *resume)) == 130
    result, cases = left(tmp_path)
    assert result["interrupted"] is True
    assert list(result["layers"]) == ["power/posix"]
    judged = result["layers"]["power/posix"]["states"]
    assert judged == len(resumes.read_bytes())
    assert judged >= 4
    assert sum(int(c["evidence"].split()[0]) for c in cases) == judged
    assert [n for n in result["notes"] if f"after {judged} crash states" in n]
    assert said[0].endswith("states judged")


def test_a_task_counts_and_stops_where_it_is_asked_to(tmp_path: Path) -> None:
    path = underway.path_of(tmp_path / "under-way", "task")
    assert underway.counted(path) == 0
    assert underway.Told(path).count(7) is False
    assert underway.counted(path) == 7
    underway.ask_to_stop(tmp_path / "under-way")
    assert underway.Told(path).count(8) is True
    assert underway.Told().count(9) is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_every_command_ends_in_order(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: signal.Signals,
) -> None:
    """The matrix compiles into a directory: that must not stay."""
    monkeypatch.setenv("DURABILITY_RUNTIME_DIR", str(tmp_path))
    seen: list[Path] = []

    def interrupted(mutants_dir: Path, names: list[str], *, build: Path) -> list[Any]:
        del mutants_dir, names
        seen.append(build)
        assert build.is_dir()
        os.kill(os.getpid(), number)
        return []

    before = signal.getsignal(number)
    monkeypatch.setattr("harness.commands.matrix.chosen_mutants", interrupted)
    assert cli.main(["matrix", "--jobs", "1", "--out", str(tmp_path / "out")]) == 130
    assert signal.getsignal(number) is before
    assert "durability: interrupted" in capsys.readouterr().err
    assert [path.exists() for path in seen] == [False]
    assert [path.name for path in tmp_path.iterdir() if path.name != "out"] == []
