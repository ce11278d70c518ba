"""Running a function of this process as the program of an attempt, in a forked child.

The child is a copy of the process that forks: modules, closures, descriptors and signal handlers
are those of the parent, other threads are not there. It ends when the function and the threads
that it started have ended, without exit handlers: those are the parent's. A line printed by the
function is written at once, as one call, so that its place among the operations is the place of
the ``print``.

Not covered: failpoints (there is no control channel), and what a thread of the parent held locked
at the moment of the fork.
"""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from io import BufferedReader, BufferedWriter, FileIO, TextIOWrapper
from typing import NoReturn, TextIO

_parents_streams: list[object] = []


def run(function: Callable[[], object]) -> NoReturn:
    """Call ``function`` and end this process: 0, the status of SystemExit, or 1 with a traceback.

    Descriptors 0 to 2, session and the supervisor's filter are the caller's part and in place.
    """
    status = 70
    try:
        # Destroyed, they would flush into descriptors that are not theirs any more.
        _parents_streams.extend([sys.stdin, sys.stdout, sys.stderr])
        sys.stdin, sys.stdout, sys.stderr = _stream(0, "r"), _stream(1, "w"), _stream(2, "w")
        status = _called(function)
        threading._shutdown()  # type: ignore[attr-defined]
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:
        os.write(2, traceback.format_exc().encode(errors="replace"))
        status = status or 1
    finally:
        os._exit(status)


def _stream(fd: int, mode: str) -> TextIO:
    raw = FileIO(fd, mode, closefd=False)
    buffered = BufferedReader(raw) if mode == "r" else BufferedWriter(raw)
    return TextIOWrapper(buffered, "utf-8", errors="backslashreplace", line_buffering=True)


def _called(function: Callable[[], object]) -> int:
    try:
        function()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        traceback.print_exception(error.with_traceback(trace))
        return 1
    return 0
