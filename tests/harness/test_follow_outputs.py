"""When it takes more than reading the pipes before each call to know what was told when."""

import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.faults import ActionKind, Fault, TriggerKind
from harness.baseline import Baseline, run_baseline
from harness.runner import settings
from harness.subjects import Pattern, Subject, checked

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

SAVES = """
import os, sys
for step in (1, 2):
    print("loss", step, 0.5, flush=True)
    with open(os.path.join(sys.argv[1], "state"), "w") as file:
        file.write(str(step))
    print("saved", step, file=sys.{stream}, flush=True)
"""
THREAD = "\nimport threading; threading.Thread(target=os.write, args=(1, b'bye')).start()\n"
REDIRECTS = """
fd = os.open(os.path.join(sys.argv[1], "log"), os.O_WRONLY | os.O_CREAT)
os.dup2(fd, 2)
os.write(2, b"from here on in a file")
"""


def baseline_of(tmp_path: Path, source: str, *, acks: str = "stdout") -> tuple[Subject, Baseline]:
    script = tmp_path / "program.py"
    script.write_text(source.replace("{stream}", acks))
    words = (sys.executable, str(script), "{root}")
    subject = checked(
        Subject(
            name="program",
            train=words,
            resume=words,
            cwd="/",
            losses=Pattern("stdout", r"loss (?P<step>\d+) (?P<loss>\S+)"),
            acknowledged=Pattern(acks, r"saved (?P<step>\d+)"),
        ),
        where="here",
    )
    return subject, run_baseline(subject, tmp_path / "work")[0]


def test_one_thread_that_tells_all_on_one_stream_is_not_followed(tmp_path: Path) -> None:
    subject, found = baseline_of(tmp_path, SAVES)
    assert not found.follow_outputs
    assert not settings(subject, found, root=tmp_path, fault=None).follow_outputs
    at_output = Fault(TriggerKind.CALL, found.outputs[0], ActionKind.SIGNAL, "SIGTERM")
    assert settings(subject, found, root=tmp_path, fault=at_output).follow_outputs
    assert settings(subject, found, root=tmp_path, fault=None, record_to="x").follow_outputs


@pytest.mark.parametrize(
    ("source", "acks"),
    [(SAVES, "stderr"), (SAVES + THREAD, "stdout"), (SAVES + REDIRECTS, "stdout")],
    ids=["losses and acknowledgements on two streams", "two threads", "a log instead of stderr"],
)
def test_others_are_followed(tmp_path: Path, source: str, acks: str) -> None:
    subject, found = baseline_of(tmp_path, source, acks=acks)
    assert found.follow_outputs
    assert settings(subject, found, root=tmp_path, fault=None).follow_outputs
