"""``durability gate``: the CI gate over tinyllm's configurations."""

import argparse
from pathlib import Path
from typing import Any

from harness.commands.common import add_common, expanded, fresh_out, options_of
from harness.errors import UsageError
from harness.layers import EXHAUSTIVE, gate_bounds
from harness.session import Request, run
from harness.subjects import discover

DEFAULT_FAULTS = ("point", "kill", "double", "power")
SMOKE_CONFIGS = Path("smoke_configs")


def add_parser(subparsers: Any) -> None:
    """Add ``gate``."""
    parser = subparsers.add_parser(
        "gate",
        help="the CI gate; without arguments all of smoke_configs/",
        description="Train each configuration uninterrupted twice, then kill, cut and resume it "
        "everywhere, and compare every loss and the last checkpoint bit for bit.",
    )
    parser.add_argument(
        "configs",
        nargs="*",
        type=Path,
        metavar="CONFIG",
        help="train specs (.json), subject files (.toml) or directories (default: smoke_configs/)",
    )
    add_common(parser, command="gate", default_faults=DEFAULT_FAULTS)
    parser.set_defaults(run=run_gate)


def smoke_configs() -> Path:
    """``smoke_configs/`` of the working directory, or else of the checkout this runs from."""
    beside = Path(__file__).resolve().parents[2] / SMOKE_CONFIGS
    for candidate in (SMOKE_CONFIGS, beside):
        if candidate.is_dir():
            return candidate
    raise UsageError(
        "there is no smoke_configs/ here; run this in a checkout, or name the configurations"
    )


def run_gate(arguments: argparse.Namespace) -> int:
    """Run the gate; the exit code."""
    options = options_of(arguments, default_faults=DEFAULT_FAULTS)
    subjects = discover(arguments.configs or [smoke_configs()])
    if not subjects:
        raise UsageError("no configuration was found")
    return run(
        Request(
            command="gate",
            subjects=tuple(subjects),
            options=options,
            out=fresh_out(arguments.out),
            bounds=(lambda _: EXHAUSTIVE) if arguments.exhaustive else gate_bounds,
            named=expanded(arguments.faults or (), models=arguments.models),
            with_canary=True,
            arguments=tuple(arguments.words),
        )
    )
