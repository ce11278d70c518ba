"""Measuring in a process of its own: a program of ``programs/`` that prints one JSON object.

What is measured for memory needs a fresh process, and what is measured for time should not share
one with the harness.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from harness.errors import HarnessError

PROGRAMS = "harness.benchmarks.programs"
TIMEOUT_S = 3600.0


class BenchmarkFailed(HarnessError):
    """A program under measurement failed; no figure comes of it."""

    exit_code = 3


def measured(program: str, *words: str | int | float | Path) -> dict[str, Any]:
    """Run a measuring program; what it printed last. Raises :class:`BenchmarkFailed`."""
    here = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join(filter(None, (here, os.environ.get("PYTHONPATH"))))
    try:
        finished = subprocess.run(
            [sys.executable, "-m", f"{PROGRAMS}.{program}", *(str(word) for word in words)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise BenchmarkFailed(f"{program} did not end within {TIMEOUT_S:g} s") from error
    lines = finished.stdout.splitlines()
    if finished.returncode != 0 or not lines:
        said = finished.stderr.strip().splitlines()[-12:]
        raise BenchmarkFailed(
            f"{program} ended with exit code {finished.returncode}:\n" + "\n".join(said)
        )
    found: dict[str, Any] = json.loads(lines[-1])
    return found
