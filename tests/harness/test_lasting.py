"""Processes that outlive every run cost the time of waiting for them once, not in every case."""

import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from harness.baseline import run_baseline
from harness.runner import settings
from harness.subjects import Pattern, Subject, checked

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

PROGRAM = """
import os, subprocess, sys
with open(os.path.join(sys.argv[1], "state"), "w") as file:
    file.write("1")
print("loss 1 0.5", flush=True)
subprocess.Popen(["sh", "-c", "sleep 600; :", sys.argv[1]], stdout=subprocess.DEVNULL)
"""


def test_what_outlived_the_baseline_is_known_to_later_runs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    words = (sys.executable, str(script), "{root}")
    losses = Pattern("stdout", r"loss (?P<step>\d+) (?P<loss>\S+)")
    subject = Subject(name="leaves", train=words, resume=words, cwd="/", losses=losses)
    found, _ = run_baseline(checked(subject, where="here"), tmp_path / "work")
    assert found.lasting == ("sh -c sleep 600; : {root}", "sleep 600")
    later = settings(subject, found, root=tmp_path / "elsewhere", fault=None)
    assert later.lasting == found.lasting
