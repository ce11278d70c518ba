"""The ``tinyllm`` command.

Exit codes: 0 done (or nothing to do), 2 the command line, the spec or a refused resume, 3 another
process trains this run, 4 nothing to resume from, 5 storage failed, 6 a release was refused, 7 a
value that should be saved is not finite, 8 a directory is no model that can be run, 130 and 143
stopped by SIGINT or SIGTERM.

torch is imported only by ``train``, ``generate`` and ``classify``; in ``train`` the signals are
watched from before that, since importing it takes longer than many a grace period's half.
"""

import argparse
import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from tinyllm import engine_cli, inspect, release_cli
from tinyllm.errors import StorageFailed, TinyllmError
from tinyllm.signals import stop_on_signals


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code. ``argv`` is without the program's name."""
    words = sys.argv[1:] if argv is None else argv
    arguments = _parser(words[0] if words else "").parse_args(words)
    command: Callable[[argparse.Namespace], int] = arguments.command
    try:
        return command(arguments)
    except TinyllmError as error:
        return _failed(str(error), error.exit_code)
    except OSError as error:  # of a call that has no words of its own
        where = f"{error.filename}: " if error.filename is not None else ""
        return _failed(f"{where}{error.strerror or error}", StorageFailed.exit_code)


def _failed(message: str, exit_code: int) -> int:
    """Say why; that nobody may be there to read it is no further error."""
    with contextlib.suppress(OSError):
        print(f"tinyllm: error: {message}", file=sys.stderr, flush=True)
    return exit_code


def _parser(first: str) -> argparse.ArgumentParser:
    """The parser; for ``train`` without the others, which are half of what a fork's start takes."""
    parser = argparse.ArgumentParser(
        prog="tinyllm",
        description="Train a small language model with checkpoints that survive a crash at any "
        "instant.",
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(title="commands", required=True, metavar="COMMAND")
    train = subparsers.add_parser(
        "train",
        help="train a run, or go on with one",
        description="Train the run that SPEC describes, or go on with it.",
        allow_abbrev=False,
    )
    train.add_argument("spec", metavar="SPEC", type=Path, help="the train spec, a JSON file")
    train.add_argument(
        "--artifacts",
        metavar="DIR",
        type=Path,
        default=Path("artifacts"),
        help="where runs/ and models/ are (default: ./artifacts)",
    )
    train.add_argument("--run-id", metavar="ID", required=True, help="the run's name below runs/")
    train.add_argument(
        "--resume",
        metavar="STEP_DIR",
        nargs="?",
        type=Path,
        const=True,
        help="go on from the checkpoint that LATEST names, or from STEP_DIR, a step directory of "
        "this run; a run without checkpoints starts from the first step",
    )
    train.add_argument(
        "--allow-spec-change",
        action="store_true",
        help="resume although the spec, the data or the tokenizer are not those of the checkpoint",
    )
    train.set_defaults(command=_train)
    if first != "train":
        inspect.add_parsers(subparsers)
        release_cli.add_parsers(subparsers)
        engine_cli.add_parsers(subparsers)
    return parser


def _train(arguments: argparse.Namespace) -> int:
    with stop_on_signals() as stop:
        from tinyllm.trainer import Request, train

        resume = arguments.resume
        return train(
            Request(
                spec_path=arguments.spec,
                artifacts=arguments.artifacts,
                run_id=arguments.run_id,
                resume=resume is not None,
                step_dir=resume if isinstance(resume, Path) else None,
                allow_spec_change=arguments.allow_spec_change,
            ),
            stop=stop,
        )
