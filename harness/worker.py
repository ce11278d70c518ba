"""A worker process: runs one task after another, as the harness sends them."""

import os
import pickle
import sys
import tempfile
import traceback
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from harness.errors import no_room
from harness.scratch import ENV_TEMPORARY, empty_temporary


def serve(connection: "Connection[Any, Any]") -> None:
    """Run each pickled ``(function, args, kwargs)`` and send ``(ok, value)``, until EOF.

    ``value`` is the result, or the exception; an exception that cannot be pickled is sent as a
    RuntimeError with its traceback.
    """
    if temporary := os.environ.get(ENV_TEMPORARY):
        # TMPDIR is for the programs under test, and is emptied; what is ours lies beside it.
        tempfile.tempdir = str(Path(temporary).parents[1])
    while True:
        try:
            function, args, kwargs = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            empty_temporary()
            answer: tuple[bool, Any] = (True, function(*args, **kwargs))
        except OSError as error:
            answer = (False, no_room(error) or _noted(error))
        except Exception as error:
            answer = (False, _noted(error))
        connection.send_bytes(_pickled(answer))
        sys.stdout.flush()
        sys.stderr.flush()


def _noted(error: Exception) -> Exception:
    error.add_note(f"in a worker:\n{traceback.format_exc()}")
    return error


def _pickled(answer: tuple[bool, Any]) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception:
        words = f"{repr(answer[1])[:200]} cannot be sent from the worker:\n{traceback.format_exc()}"
        return pickle.dumps((False, RuntimeError(words)))
