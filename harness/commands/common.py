"""The options that the campaign commands share, and how they become a request."""

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

from fault_injection.filesystems import FILE_SYSTEMS
from harness.campaign import Options
from harness.cases import LAYERS
from harness.durable import fresh_directory
from harness.duration import parse_duration
from harness.errors import UsageError

MODELS = ("posix", "ext4", "xfs", "btrfs")


def duration(text: str) -> float:
    """argparse type for durations."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def at_least_one(text: str) -> int:
    """argparse type for counts."""
    if not (text.isascii() and text.isdigit() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def list_of(allowed: tuple[str, ...], what: str) -> Callable[[str], tuple[str, ...]]:
    """argparse type for comma-separated names, each one of ``allowed``."""

    def parse(text: str) -> tuple[str, ...]:
        names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        for name in names:
            if name not in allowed:
                raise argparse.ArgumentTypeError(
                    f"{name!r} is no {what}; there are {', '.join(allowed)}"
                )
        if not names:
            raise argparse.ArgumentTypeError(f"name at least one {what}: {', '.join(allowed)}")
        return names

    return parse


def add_common(
    parser: argparse.ArgumentParser, *, command: str, default_faults: tuple[str, ...]
) -> None:
    """Add the options that every campaign command has."""
    group = parser.add_argument_group("what is tried")
    named = LAYERS + tuple(f"realfs/{fs}" for fs in FILE_SYSTEMS)
    group.add_argument(
        "--faults",
        type=list_of(named, "fault layer"),
        metavar="LAYER,...",
        help=f"fault layers: {', '.join(LAYERS)} (default: {', '.join(default_faults)})",
    )
    group.add_argument(
        "--models",
        type=list_of(MODELS, "persistence model"),
        default=MODELS,
        metavar="MODEL,...",
        help=f"persistence models of the power layer: {', '.join(MODELS)} (default: all)",
    )
    group.add_argument("--filter", metavar="GLOB", help="only cases whose id matches")
    group.add_argument("--seed", type=int, default=0, help="of samples (default: 0)")
    group.add_argument("--fail-fast", action="store_true", help="stop at the first failing case")
    group.add_argument(
        "--exhaustive", action="store_true", help="every case of every layer, without bounds"
    )
    how = parser.add_argument_group("how it runs")
    how.add_argument(
        "--jobs",
        type=at_least_one,
        default=len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        metavar="N",
        help="worker processes (default: one a core)",
    )
    how.add_argument("--budget", type=duration, metavar="TIME", help="stop after this, e.g. 5m")
    how.add_argument(
        "--out",
        type=Path,
        default=Path("reports") / command,
        metavar="DIR",
        help=f"where results go (default: reports/{command})",
    )
    how.add_argument(
        "--no-fork",
        action="store_true",
        help="start every attempt as a process of its own, never as a fork",
    )
    how.add_argument(
        "--no-equal-reads",
        action="store_true",
        help="run every crash state for real, also those that must run alike",
    )


def options_of(arguments: argparse.Namespace, *, default_faults: tuple[str, ...]) -> Options:
    """The options of a campaign from the parsed command line."""
    return Options(
        faults=expanded(arguments.faults or default_faults, models=arguments.models),
        models=arguments.models,
        jobs=arguments.jobs,
        budget_s=arguments.budget,
        seed=arguments.seed,
        filter=arguments.filter,
        fail_fast=arguments.fail_fast,
        exhaustive=arguments.exhaustive,
        fork=not arguments.no_fork,
        equal_reads=not arguments.no_equal_reads,
    )


def expanded(faults: tuple[str, ...], *, models: tuple[str, ...]) -> tuple[str, ...]:
    """Layers with ``power`` and ``realfs`` written out: ``power/posix``, ``realfs/ext4``, ..."""
    found: list[str] = []
    for name in faults:
        if name == "power":
            found += [f"power/{model}" for model in models]
        elif name == "realfs":
            found += [f"realfs/{fs}" for fs in FILE_SYSTEMS]
        else:
            found.append(name)
    return tuple(dict.fromkeys(found))


def fresh_out(path: Path) -> Path:
    """The output directory, made; what an earlier run left there is moved aside, never lost."""
    try:
        fresh = fresh_directory(path)
    except OSError as error:
        raise UsageError(f"--out {path}: cannot be written: {error}") from error
    for note in fresh.notes():
        print(f"durability: {note}", file=sys.stderr)
    return path
