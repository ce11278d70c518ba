"""``durability nightly``: random and long; history kept."""

import argparse
import secrets
import sys
from functools import partial
from pathlib import Path
from typing import Any

from harness import history
from harness.commands.common import add_common, at_least_one, expanded, fresh_out, options_of
from harness.commands.gate import smoke_configs
from harness.errors import UsageError
from harness.layers import Bounds
from harness.nightly import drive
from harness.results import Result
from harness.session import Request, run
from harness.subjects import discover

DEFAULT_FAULTS = ("point", "kill", "double", "signal", "error", "power")
BUDGET_S = 7200.0


def add_parser(subparsers: Any) -> None:
    """Add ``nightly``."""
    parser = subparsers.add_parser(
        "nightly",
        help="random and long; history kept",
        description="Hurt random subjects at random until the budget is used up: kills at places "
        "and after times, chains of kills, signals, errors, and the crash states of random "
        "stretches under random models. Random train specs are made of each given one.",
    )
    parser.add_argument(
        "subjects",
        nargs="*",
        type=Path,
        metavar="CONFIG | SUBJECT",
        help="train specs (.json), subject files (.toml) or directories (default: smoke_configs/)",
    )
    add_common(parser, command="nightly", default_faults=DEFAULT_FAULTS)
    parser.add_argument(
        "--rounds",
        type=at_least_one,
        metavar="N",
        help="stop after N rounds: with the same seed the same cases, however long they take",
    )
    parser.set_defaults(run=run_nightly, budget=BUDGET_S, seed=None)


def run_nightly(arguments: argparse.Namespace) -> int:
    """Run until the budget is used up; the exit code."""
    if arguments.seed is None:
        arguments.seed = secrets.randbits(31)
    options = options_of(arguments, default_faults=DEFAULT_FAULTS)
    paths = arguments.subjects or [smoke_configs()]
    subjects = discover(paths)
    if not subjects:
        raise UsageError("no configuration was found")
    out = fresh_out(arguments.out)
    database = out / history.NAME
    print(f"durability: seed {arguments.seed}", file=sys.stderr, flush=True)
    for refused in history.update(database, history.stored_results(out)):
        print(f"durability: {refused}", file=sys.stderr)
    code = run(
        Request(
            command="nightly",
            subjects=tuple(subjects),
            options=options,
            out=out,
            bounds=lambda _: Bounds(),
            named=expanded(arguments.faults or (), models=arguments.models),
            with_canary=True,
            arguments=_with_seed(tuple(arguments.words), arguments.seed),
            drive=partial(drive, specs=specs_of(paths), rounds=arguments.rounds),
            label=", ".join(s.name for s in subjects),
            remarks=partial(_remarks, database, seed=arguments.seed),
        )
    )
    history.update(database, history.stored_results(out))
    return code


def specs_of(paths: list[Path]) -> tuple[Path, ...]:
    """The train specs among the paths and in the directories among them, in order."""
    found: list[Path] = []
    for path in paths:
        found += sorted(path.glob("*.json")) if path.is_dir() else [path]
    return tuple(
        p.resolve() for p in found if p.suffix == ".json" and not p.name.startswith("tokenizer")
    )


def _with_seed(words: tuple[str, ...], seed: int) -> tuple[str, ...]:
    """The command line that draws the same again."""
    if any(word == "--seed" or word.startswith("--seed=") for word in words):
        return words
    return (*words, "--seed", str(seed))


def _remarks(database: Path, result: Result, *, seed: int) -> list[str]:
    """The seed, and what earlier nights knew of each signature."""
    return [f"seed {seed}", *history.notes(database, result)]
