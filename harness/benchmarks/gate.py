"""The gate's own wall time, by layer: of its last run, or of one made now."""

import subprocess
import sys
from pathlib import Path

from harness.benchmarks.children import BenchmarkFailed
from harness.benchmarks.figures import Figure, unmeasured
from harness.benchmarks.sizes import Setting
from harness.report.write import read_result
from harness.results import Result

TARGET_S = 240.0
TIMEOUT_S = 3600.0
WHAT = "the whole gate"


def gate(setting: Setting) -> list[Figure]:
    """From the result that the setting names."""
    if setting.gate_result is None or not setting.gate_result.is_file():
        return [
            unmeasured("gate", WHAT, "no result of a gate is here: run durability bench --gate")
        ]
    return [gate_figure(read_result(setting.gate_result))]


def gate_figure(result: Result) -> Figure:
    """The wall time, and which layers it went into."""
    layers = sorted(result.layers.items(), key=lambda item: -item[1].seconds)
    spent = ", ".join(f"{name} {count.seconds:.0f} s" for name, count in layers)
    return Figure(
        name="gate",
        what=f"{WHAT}: {sum(c.cases for c in result.layers.values()):,} cases",
        value=result.seconds,
        unit="s",
        target=TARGET_S,
        detail=f"by layer, the workers' time: {spent}; verdict {result.verdict}, "
        f"run at {result.started or 'an unknown time'}",
    )


def run_gate_now(out: Path, *, jobs: int) -> Path:
    """Run the gate into ``out``; its result. Raises :class:`BenchmarkFailed` when it made none."""
    words = ["gate", "--out", str(out), "--jobs", str(jobs)]
    finished = subprocess.run(
        [sys.executable, "-m", "harness.cli", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    result = out / "result.json"
    if not result.is_file():
        raise BenchmarkFailed(f"the gate made no result:\n{finished.stderr[-2000:]}")
    return result
