"""``durability check``: the same for any program, from a subject file or a command line."""

import argparse
import shlex
from pathlib import Path
from typing import Any

from harness.commands.common import add_common, duration, expanded, fresh_out, options_of
from harness.errors import UsageError
from harness.layers import EXHAUSTIVE, Bounds
from harness.session import Request, run
from harness.subjects import Subject, discover, subject_from_command

DEFAULT_FAULTS = ("kill", "double", "signal", "power")


def add_parser(subparsers: Any) -> None:
    """Add ``check``."""
    parser = subparsers.add_parser(
        "check",
        help="check any program: a subject file, or -- COMMAND {root}",
        description="Check any program, in any language, unmodified, without root. Describe it in "
        "a subject file, or give its command after --, with {root} where it takes its output "
        "directory.",
        usage="%(prog)s [options] SUBJECT.toml\n       %(prog)s [options] -- COMMAND {root} ...",
    )
    parser.add_argument("target", nargs="*", metavar="SUBJECT.toml", help="a subject file")
    described = parser.add_argument_group("the subject, when it is given as a command")
    described.add_argument("--name", help="its name (default: from the command)")
    described.add_argument("--resume", metavar="CMD", help="resumes; default: the same command")
    described.add_argument("--loss-regex", metavar="R", help="with groups step and loss")
    described.add_argument(
        "--loss-from", metavar="WHERE", help="stdout (default), stderr or a file below {root}"
    )
    described.add_argument("--ack-regex", metavar="R", help="with the group step")
    described.add_argument(
        "--ack-from", metavar="WHERE", help="stdout (default), stderr or a file below {root}"
    )
    described.add_argument(
        "--final", action="append", default=[], metavar="GLOB", help="final files below {root}"
    )
    described.add_argument(
        "--compare", choices=("bytes", "tensors"), help="how final files are (default: bytes)"
    )
    described.add_argument(
        "--preload", action="append", default=[], metavar="MODULE", help="imported before forking"
    )
    described.add_argument("--timeout", type=duration, help="of one attempt")
    add_common(parser, command="check", default_faults=DEFAULT_FAULTS)
    parser.set_defaults(run=run_check)


def run_check(arguments: argparse.Namespace) -> int:
    """Run the check; the exit code."""
    options = options_of(arguments, default_faults=DEFAULT_FAULTS)
    subject = _subject(arguments)
    bounds = EXHAUSTIVE if arguments.exhaustive else Bounds()
    return run(
        Request(
            command="check",
            subjects=(subject,),
            options=options,
            out=fresh_out(arguments.out),
            bounds=lambda _: bounds,
            named=expanded(arguments.faults or (), models=arguments.models),
            arguments=tuple(arguments.words),
        )
    )


def _subject(arguments: argparse.Namespace) -> Subject:
    target: list[str] = arguments.target
    if not target:
        raise UsageError("name a subject file, or give a command after --")
    described = (
        arguments.name,
        arguments.resume,
        arguments.loss_regex,
        arguments.ack_regex,
        arguments.loss_from,
        arguments.ack_from,
        arguments.compare,
        arguments.timeout,
    )
    if len(target) == 1 and target[0].endswith((".toml", ".json")):
        if any(d is not None for d in described) or arguments.final or arguments.preload:
            raise UsageError(
                f"{target[0]} describes the subject; --name, --resume, --loss-regex, --loss-from, "
                "--ack-regex, --ack-from, --final, --compare, --preload and --timeout go with a "
                "command after --"
            )
        [subject] = discover([Path(target[0])])
        return subject
    if any(word.endswith(".toml") for word in target[:1]):
        raise UsageError(
            f"{target[0]}: a subject file stands alone; it holds the command. Leave out "
            f"{shlex.join(target[1:])!r}"
        )
    if len(target) == 1 and Path(target[0]).is_dir():
        raise UsageError(
            f"{target[0]} is a directory; name one subject file, such as "
            f"{Path(target[0]) / 'subject.toml'}"
        )
    try:
        resume = shlex.split(arguments.resume) if arguments.resume else None
    except ValueError as error:
        raise UsageError(f"--resume {arguments.resume!r}: {error}") from error
    return subject_from_command(
        target,
        resume=resume,
        loss_regex=arguments.loss_regex,
        ack_regex=arguments.ack_regex,
        losses_from=arguments.loss_from or "stdout",
        acks_from=arguments.ack_from or "stdout",
        final=tuple(arguments.final),
        compare=arguments.compare or "bytes",
        preload=tuple(arguments.preload),
        timeout_s=arguments.timeout,
        name=arguments.name,
    )
