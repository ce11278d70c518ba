"""The ``durability`` command.

Exit codes: 0 every invariant held; 1 violations; 2 usage or configuration; 3 the harness could not
judge; 130 interrupted. A violation is never shown as a stack trace; an error of the harness always
is, as Python prints it, with exit code 70.
"""

import argparse
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata

from fault_injection.processes import DidNotDie
from harness import commands
from harness.errors import CannotJudge, HarnessError

INTERNAL_ERROR = 70


def build_parser() -> argparse.ArgumentParser:
    """The parser with every sub-command."""
    parser = argparse.ArgumentParser(
        prog="durability",
        description="Kill, cut and corrupt a training run, resume it, and prove bit for bit that "
        "nothing was lost.",
        epilog="Exit: 0 every invariant held, 1 violations, 2 usage, 3 could not judge, "
        "130 interrupted.",
    )
    parser.add_argument(
        "--version", action="version", version=f"durability {metadata.version('durability')}"
    )
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for module in commands.in_order():
        module.add_parser(subparsers)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    arguments = build_parser().parse_args(words)
    arguments.words = words
    try:
        with _ended_in_order():
            return int(arguments.run(arguments))
    except HarnessError as error:
        print(f"durability: {error}", file=sys.stderr)
        return error.exit_code
    except DidNotDie as error:
        print(f"durability: nothing can be said: {error}", file=sys.stderr)
        return CannotJudge.exit_code
    except KeyboardInterrupt:
        print("durability: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception:
        sys.excepthook(*sys.exc_info())
        print("durability: this is an error of the harness, not a verdict", file=sys.stderr)
        return INTERNAL_ERROR


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """SIGTERM ends a command as Ctrl-C does, so that it leaves nothing behind."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python handles signals in the main thread only
        return

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


if __name__ == "__main__":
    sys.exit(main())
