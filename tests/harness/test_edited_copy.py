"""The gate runs the tinyllm beside it: one protocol step taken out of a copy is found and named."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]

# A line of tinyllm/writer.py, what stands there instead, layer, model, one of what must be named.
STEPS = {
    "the step's name is not synced": (
        "        sync_step_name(save)\n",
        "",
        "power",
        "posix",
        {"pointer-complete"},
    ),
    "the pointer's name is not synced": (
        "    sync_pointer(save)\n",
        "",
        "power",
        "xfs",
        {"no-lost-ack", "ack-after-durable"},
    ),
    "the pointer before the step": (
        "            publish_step(save)\n",
        "            publish_pointer(save, save.name)\n            publish_step(save)\n",
        "kill",
        "xfs",
        {"pointer-complete"},
    ),
}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for name in ("tinyllm", "harness", "fault_injection", "smoke_configs"):
        shutil.copytree(
            REPOSITORY / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__")
        )
    return tmp_path


def gate(copy: Path, faults: str, models: str) -> tuple[int, set[str]]:
    """The exit code and the broken invariants of the copy's gate over one configuration."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "harness.cli", "gate", "smoke_configs/adamw.json"),
            *("--faults", faults, "--models", models, "--fail-fast", "--out", str(copy / "out")),
        ],
        cwd=copy,
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode in (0, 1), done.stderr
    found = json.loads((copy / "out" / "result.json").read_text())
    return done.returncode, {v["invariant"] for v in found["violations"]}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("step", STEPS)
def test_a_step_taken_out_of_the_writer_is_named(step: str, copy: Path) -> None:
    before, after, faults, models, named = STEPS[step]
    writer = copy / "tinyllm" / "writer.py"
    text = writer.read_text()
    assert text.count(before) == 1
    writer.write_text(text.replace(before, after))
    code, found = gate(copy, faults, models)
    assert code == 1
    assert found & named
