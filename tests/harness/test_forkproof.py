"""What forks cannot show, because they all hash alike, is looked for in processes."""

import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from harness.baseline import run_baseline
from harness.forkproof import proven
from harness.subjects import Pattern, Subject, checked

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

# The weights are saved as a list, in the order of a set of their names.
SAVES_A_SET = """
import json, os, sys
path = os.path.join(sys.argv[1], "state.json")
names = {f"layer-{n}" for n in range(12)}
weights, step = {name: float(name[6:]) for name in names}, 0
if os.path.exists(path):
    saved = json.load(open(path))
    weights, step = dict(zip(ORDER, saved["weights"])), saved["step"]
while step < 4:
    step += 1
    weights = {name: w * 0.5 + float(name[6:]) for name, w in weights.items()}
    print("loss", step, sum(w * int(name[6:]) for name, w in sorted(weights.items())), flush=True)
    with open(path + ".new", "w") as file:
        json.dump({"step": step, "weights": [weights[name] for name in ORDER]}, file)
    os.rename(path + ".new", path)
    print("saved", step, flush=True)
"""


def subject_of(tmp_path: Path, order: str, **env: str) -> Subject:
    script = tmp_path / "program.py"
    script.write_text(SAVES_A_SET.replace("ORDER", order))
    words = (sys.executable, str(script), "{root}")
    subject = Subject(
        name="program",
        train=words,
        resume=words,
        cwd="/",
        env=tuple(env.items()),
        losses=Pattern("stdout", r"loss (?P<step>\d+) (?P<loss>\S+)"),
        acknowledged=Pattern("stdout", r"saved (?P<step>\d+)"),
    )
    return checked(subject, where="here")


def test_a_program_that_is_right_in_forks_alone_runs_as_processes(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, "names")
    found, _ = run_baseline(subject, tmp_path / "work")
    assert found.fork
    settled = proven(subject, found, tmp_path / "work")
    assert not settled.fork
    assert "as a fork a resume is right, and as a process step" in settled.notes[-1]


def test_one_that_is_right_stays_a_fork(tmp_path: Path) -> None:
    subject = subject_of(tmp_path, "sorted(names)")
    found, _ = run_baseline(subject, tmp_path / "work")
    assert found.fork
    assert proven(subject, found, tmp_path / "work") == found


def test_where_all_hash_alike_nothing_is_tried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject = subject_of(tmp_path, "sorted(names)")
    found, _ = run_baseline(subject, tmp_path / "work")
    monkeypatch.setattr("harness.forkproof.run_case", None)  # it would fail
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    assert proven(subject, found, tmp_path / "work") == found
