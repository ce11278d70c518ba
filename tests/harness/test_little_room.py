"""A machine with little room is told from a program that takes too much."""

import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from harness import uninterrupted
from harness.baseline import run_baseline
from harness.errors import CannotJudge
from harness.subjects import Subject, checked

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

PROGRAM = """
import os, sys, time
with open(os.path.join(sys.argv[1], "state"), "wb") as file:
    for _ in range(100):
        file.write(os.urandom(1 << 20))
time.sleep(60)  # long enough to be looked at, and never waited for
"""


def test_what_stops_a_program_on_a_small_disk_is_no_fault_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    words = (sys.executable, str(script), "{root}")
    subject = checked(Subject(name="large", train=words, resume=words, cwd="/"), where="here")
    monkeypatch.setattr(uninterrupted, "_room_bytes", lambda _: 20 << 20)
    said = r"more than 5,242,880 bytes in the tree\. One tree may have no more here"
    with pytest.raises(CannotJudge, match=said):
        run_baseline(subject, tmp_path / "work")


def test_a_program_that_fails_where_there_is_no_room_is_not_blamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "program.py"
    script.write_text("raise OSError(28, 'No space left on device')")
    words = (sys.executable, str(script), "{root}")
    subject = checked(Subject(name="large", train=words, resume=words, cwd="/"), where="here")
    monkeypatch.setattr(uninterrupted, "_room_bytes", lambda _: 4096)
    with pytest.raises(CannotJudge, match=r"hardly any room below(.|\n)*No space left on device"):
        run_baseline(subject, tmp_path / "work")
