"""``tinyllm release``: the command line of :mod:`tinyllm.release`.

Exit codes: 0 released, 2 the command line, 3 another release of the model is under way, 5 storage
failed, 6 the gate refused, 130 and 143 stopped by SIGINT or SIGTERM (nothing is left, unless the
signal came after the last fsync: then the release is complete). torch is not imported.
"""

import argparse
import contextlib
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

from tinyllm.forms import DEFAULT_GROUP_SIZE, DTYPES, GROUP_SIZES
from tinyllm.signals import SIGNALS


def add_parsers(subparsers: Any) -> None:
    """Add ``release``; it sets ``command``, a function of the parsed arguments to an exit code."""
    parser = subparsers.add_parser(
        "release",
        help="turn a checkpoint into a model that can be served",
        description="Release one checkpoint as models/MODEL_ID/VERSION. The gate lists everything "
        "that is wrong (exit 6) and leaves nothing behind. See docs/released-models.md.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--artifacts",
        metavar="DIR",
        type=Path,
        default=Path("artifacts"),
        help="where runs/ and models/ are (default: ./artifacts)",
    )
    parser.add_argument("--run-id", metavar="R", required=True, help="the run below runs/")
    parser.add_argument("--step", metavar="N", type=int, help="default: the one LATEST names")
    parser.add_argument("--model-id", metavar="M", required=True)
    parser.add_argument("--version", metavar="V", required=True)
    parser.add_argument("--card", metavar="FILE", type=Path, required=True, help="MODEL_CARD.md")
    parser.add_argument("--ledger", metavar="FILE", type=Path, required=True, help="ledger.json")
    parser.add_argument(
        "--evals", metavar="FILE", type=Path, required=True, help="the summary of the evaluations"
    )
    parser.add_argument("--dtype", choices=DTYPES, default="f32", help="default: f32")
    parser.add_argument(
        "--group-size",
        type=int,
        choices=GROUP_SIZES,
        default=DEFAULT_GROUP_SIZE,
        help=f"int4: weights that share a scale (default: {DEFAULT_GROUP_SIZE})",
    )
    parser.add_argument(
        "--head", metavar="FILE", type=Path, action="append", default=[], help="a linear head"
    )
    parser.add_argument(
        "--chat-template", metavar="FILE", type=Path, help="a Jinja template of a conversation"
    )
    parser.set_defaults(command=release_command)


def release_command(arguments: argparse.Namespace) -> int:
    """``tinyllm release``."""
    from tinyllm.gate import Request
    from tinyllm.release import release

    request = Request(
        artifacts=arguments.artifacts,
        run_id=arguments.run_id,
        step=arguments.step,
        model_id=arguments.model_id,
        version=arguments.version,
        card=arguments.card,
        ledger=arguments.ledger,
        evals=arguments.evals,
        dtype=arguments.dtype,
        group_size=arguments.group_size,
        heads=tuple(arguments.head),
        chat_template=arguments.chat_template,
    )
    try:
        with _undone_by_signals():
            done = release(request, tell=_tell)
    except _Stopped as stopped:
        return 128 + stopped.signum
    size = sum(entry.size for entry in done.manifest.files.values())
    with contextlib.suppress(OSError):  # that nobody may be there to read it is no error
        for error in done.errors:
            print(f"{error.name}: {error.stored_as}, relative error {error.relative_error:.3e}")
        print(
            f"released {done.path}: step {done.step}, {arguments.dtype}, "
            f"{len(done.manifest.files)} files, {size} bytes",
            flush=True,
        )
    return 0


def _tell(path: str, reason: str) -> None:
    with contextlib.suppress(OSError):
        print(f"tinyllm: {path}: {reason}", file=sys.stderr, flush=True)


class _Stopped(BaseException):
    """A signal came: what was begun is undone on the way out."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


@contextlib.contextmanager
def _undone_by_signals() -> Iterator[None]:
    """The first SIGTERM or SIGINT raises; later ones would only disturb the undoing.

    A signal that was ignored when the program started stays ignored.
    """
    before = {
        each: signal.getsignal(each)
        for each in SIGNALS
        if signal.getsignal(each) is not signal.SIG_IGN
    }

    def stop(signum: int, _frame: FrameType | None) -> NoReturn:
        for each in before:
            signal.signal(each, signal.SIG_IGN)
        raise _Stopped(signum)

    for each in before:
        signal.signal(each, stop)
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
