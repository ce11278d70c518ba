"""How large the benchmarks are: as the targets are stated, quick, or tiny for the tests."""

from dataclasses import dataclass
from pathlib import Path

GB = 10**9


@dataclass(frozen=True, slots=True)
class Sizes:
    """What is measured how often.

    ``checkpoint_bytes`` is the size of the large checkpoint, ``rounds`` how often a pair is
    measured, ``cases`` how many kill-and-resume cases of each kind run both ways, ``cuts`` how
    often a real file system loses power, ``files`` how many files the smaller of two checkpoints
    has, ``busy_s`` about how long the program computes that makes no calls.
    """

    checkpoint_bytes: int
    rounds: int
    cases: int
    cuts: int
    files: int
    busy_s: float


FULL = Sizes(checkpoint_bytes=GB, rounds=5, cases=24, cuts=20, files=4, busy_s=2.0)
QUICK = Sizes(checkpoint_bytes=GB // 16, rounds=3, cases=8, cuts=6, files=2, busy_s=0.5)


@dataclass(frozen=True, slots=True)
class Setting:
    """Where a benchmark works: ``scratch`` is an empty directory on the disk that is measured.

    ``configs`` is the directory of the smoke configurations, ``gate_result`` the last result of the
    gate (None: there is none), ``jobs`` the number of workers where several are used.
    """

    sizes: Sizes
    scratch: Path
    configs: Path
    gate_result: Path | None
    jobs: int
