"""Record a program that writes a lot, and one that computes; alone and recorded in turn.

    python -m harness.benchmarks.programs.recording DIRECTORY SIZE_BYTES ROUNDS BUSY_S

Prints the seconds and this process's peak memory, which is the recorder's.
"""

import json
import os
import sys
from pathlib import Path

from fault_injection.attempt import Attempt, Command, Settings, run_attempt
from harness.benchmarks.figures import Pair, paired
from harness.benchmarks.memory import peak_bytes
from harness.scratch import emptied, removed

HERE = Path(__file__).resolve().parent
TIMEOUT_S = 1200.0
ROUNDS_A_SECOND = 12_000


def compare(directory: Path, program: str, word: str, *, rounds: int) -> Pair:
    """The program recorded, and alone: the seconds from its start to its end."""
    root, spool = directory / "root", directory / "spool"
    command = Command(
        argv=(sys.executable, str(HERE / program), str(root), word),
        cwd=str(directory),
        env=tuple(sorted(os.environ.items())),
    )

    def run(record: bool) -> None:
        attempt = run_attempt(
            command,
            Settings(
                root=str(root),
                timeout_s=TIMEOUT_S,
                supervise=record,
                record_to=str(spool) if record else None,
            ),
        )
        _require_success(attempt)

    def fresh() -> None:
        emptied(root)
        removed(spool)
        os.sync()

    return paired(lambda: run(True), lambda: run(False), rounds=rounds, before=fresh)


def _require_success(attempt: Attempt) -> None:
    if attempt.exit_code != 0 or attempt.untraceable:
        raise SystemExit(f"the program failed: {attempt.stderr!r} {attempt.untraceable}")


def main() -> None:
    directory, size_bytes = Path(sys.argv[1]), int(sys.argv[2])
    rounds, busy_s = int(sys.argv[3]), float(sys.argv[4])
    writes = compare(directory, "writes.py", str(size_bytes), rounds=rounds)
    peak = peak_bytes()
    busy = compare(
        directory, "computes.py", str(max(1, int(busy_s * ROUNDS_A_SECOND))), rounds=rounds
    )
    found = {
        "recorded_s": writes.first_s,
        "alone_s": writes.second_s,
        "peak_bytes": peak,
        "busy_recorded_s": busy.first_s,
        "busy_alone_s": busy.second_s,
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
