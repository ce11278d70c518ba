"""The benchmarks by name, each a function from a setting to its figures."""

from collections.abc import Callable

from harness.benchmarks.checkpoint import checkpoint
from harness.benchmarks.figures import Figure
from harness.benchmarks.gate import gate
from harness.benchmarks.kills import kills
from harness.benchmarks.power import growth, memory, power
from harness.benchmarks.realfs import realfs
from harness.benchmarks.recording import recording
from harness.benchmarks.release import release
from harness.benchmarks.sizes import Setting

Benchmark = Callable[[Setting], list[Figure]]

ALL: dict[str, Benchmark] = {
    "checkpoint": checkpoint,
    "release": release,
    "kills": kills,
    "recording": recording,
    "power": power,
    "power-files": growth,
    "power-memory": memory,
    "realfs": realfs,
    "gate": gate,
}
