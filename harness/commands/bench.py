"""``durability bench``: the harness's and the writer's own speed."""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from fault_injection import leftovers
from harness.benchmarks import ALL
from harness.benchmarks.figures import Figure, unmeasured
from harness.benchmarks.gate import run_gate_now
from harness.benchmarks.sizes import FULL, QUICK, Setting
from harness.commands.common import at_least_one
from harness.commands.gate import smoke_configs
from harness.durable import make_directory, write_durably
from harness.errors import CannotJudge, HarnessError, UsageError
from harness.session import versions
from harness.stored import encode_pretty

FORMAT = "durability-bench/1"
GATE_RESULT = Path("reports/gate/result.json")
OK, FAILED = 0, 3


def add_parser(subparsers: Any) -> None:
    """Add ``bench``."""
    parser = subparsers.add_parser(
        "bench",
        help="the harness's and the writer's own speed",
        description="Measure, as ratios within one run where that can be, and show the target "
        "beside each figure. Exit 0 whatever the figures are; 3 when something could not be run.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"only these: {', '.join(ALL)} (default: all)"
    )
    parser.add_argument("--quick", action="store_true", help="a sixteenth of the size")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.add_argument(
        "--gate",
        action="store_true",
        help=f"run the gate now for its time (default: the run in {GATE_RESULT})",
    )
    parser.add_argument(
        "--jobs",
        type=at_least_one,
        default=os.cpu_count() or 1,
        metavar="N",
        help="worker processes where several are used (default: one a core)",
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("reports/bench"),
        metavar="DIR",
        help="where bench.json goes, and on whose disk it measures (default: reports/bench)",
    )
    parser.set_defaults(run=run_bench)


def run_bench(arguments: argparse.Namespace) -> int:
    """Measure; 0, or 3 when a benchmark failed."""
    names = arguments.names or list(ALL)
    for name in names:
        if name not in ALL:
            raise UsageError(f"{name!r} is no benchmark; there are {', '.join(ALL)}")
    try:
        make_directory(arguments.out)
    except OSError as error:
        raise UsageError(f"--out {arguments.out}: cannot be written: {error}") from error
    began, started = time.monotonic(), datetime.now(UTC)
    figures: list[Figure] = []
    failures: list[str] = []
    for name in names:
        print(f"bench: {name} ...", file=sys.stderr, flush=True)
        try:
            found = _one(name, arguments)
        except HarnessError as error:
            failures.append(f"{name}: {error}")
            found = [unmeasured(name, "", f"failed: {error}")]
        figures += found
        # At once: an hour of measuring must not be lost to a Ctrl-C in its last minute.
        report = _report(figures, quick=arguments.quick, started=started, began_s=began)
        write_durably(arguments.out / "bench.json", encode_pretty(report))
        if not arguments.json:
            print("\n".join(table(found)), flush=True)
    if arguments.json:
        sys.stdout.write((arguments.out / "bench.json").read_text(encoding="utf-8"))
    else:
        print(f"results  {arguments.out / 'bench.json'}")
    for failure in failures:
        print(f"durability: {failure}", file=sys.stderr)
    return FAILED if failures else OK


def _report(
    figures: Sequence[Figure], *, quick: bool, started: datetime, began_s: float
) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "started": started.isoformat(timespec="seconds"),
        "seconds": round(time.monotonic() - began_s, 1),
        "quick": quick,
        "cores": os.cpu_count() or 1,
        "load": [round(load, 2) for load in os.getloadavg()],
        "versions": versions(),
        "figures": [{**asdict(figure), "met": figure.met} for figure in figures],
    }


def _one(name: str, arguments: argparse.Namespace) -> list[Figure]:
    """One benchmark in a scratch directory of its own, which is gone afterwards."""
    with leftovers.beside(str(arguments.out), ".bench-") as scratch:
        result: Path | None = GATE_RESULT if GATE_RESULT.is_file() else None
        if name == "gate" and arguments.gate:
            result = run_gate_now(Path(scratch) / "gate", jobs=arguments.jobs)
        setting = Setting(
            sizes=QUICK if arguments.quick else FULL,
            scratch=Path(scratch).resolve(),
            configs=smoke_configs(),
            gate_result=result,
            jobs=arguments.jobs,
        )
        try:
            return ALL[name](setting)
        except (OSError, RuntimeError) as error:
            raise CannotJudge(f"could not be run: {error}") from error


def table(figures: Sequence[Figure]) -> list[str]:
    """A block for each figure: the value, the target, whether it is met, and how it came about."""
    lines = []
    for figure in figures:
        lines.append(f"{figure.name:<18}{_value(figure):>14}   {_target(figure):<24}{figure.what}")
        if figure.detail:
            lines.append(f"{'':<18}{figure.detail}")
    return lines


def _value(figure: Figure) -> str:
    if figure.value is None:
        return "-"
    digits = 0 if figure.value >= 1000 else 2
    return f"{figure.value:,.{digits}f} {figure.unit}".strip()


def _target(figure: Figure) -> str:
    if figure.value is None:
        return "not measured"
    if figure.target is None:
        return ""
    side = "<=" if figure.at_most else ">="
    return f"{side} {figure.target:,g}  {'met' if figure.met else 'NOT MET'}"
