"""``durability gate``: the CI gate over tinyllm's configurations."""

import argparse
from pathlib import Path
from typing import Any

from harness.commands.common import add_common, expanded, fresh_out, options_of
from harness.errors import UsageError
from harness.layers import EXHAUSTIVE, RELEASE, Bounds, gate_bounds
from harness.session import Request, run
from harness.subjects import Subject, discover

DEFAULT_FAULTS = ("point", "kill", "double", "power")
SMOKE_CONFIGS = Path("smoke_configs")
RELEASE_SUBJECT = Path("subjects") / "release" / "subject.toml"


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
        help="train specs (.json), subject files (.toml) or directories (default: smoke_configs/, "
        "and the failpoints of a release)",
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
    with_release = not arguments.configs and "point" in options.faults
    released = _release_of(smoke_configs()) if with_release else []

    def bounds(subject: Subject) -> Bounds:
        if subject in released:
            return RELEASE
        return EXHAUSTIVE if arguments.exhaustive else gate_bounds(subject)

    return run(
        Request(
            command="gate",
            subjects=(*subjects, *released),
            options=options,
            out=fresh_out(arguments.out),
            bounds=bounds,
            named=expanded(arguments.faults or (), models=arguments.models),
            with_canary=True,
            arguments=tuple(arguments.words),
        )
    )


def _release_of(configs: Path) -> list[Subject]:
    """The release as a program under test, where the configurations have one beside them."""
    path = configs / RELEASE_SUBJECT
    return discover([path]) if path.is_file() else []
