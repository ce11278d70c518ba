"""A worker process: runs one task after another, as the harness sends them."""

import pickle
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any


def serve(connection: "Connection[Any, Any]") -> None:
    """Run each pickled ``(function, args, kwargs)`` and send ``(ok, value)``, until EOF.

    ``value`` is the result, or the exception; an exception that cannot be pickled is sent as a
    RuntimeError with its traceback.
    """
    while True:
        try:
            function, args, kwargs = pickle.loads(connection.recv_bytes())
        except (EOFError, OSError):
            return
        try:
            answer: tuple[bool, Any] = (True, function(*args, **kwargs))
        except Exception as error:
            error.add_note(f"in a worker:\n{traceback.format_exc()}")
            answer = (False, error)
        connection.send_bytes(_pickled(answer))
        sys.stdout.flush()
        sys.stderr.flush()


def _pickled(answer: tuple[bool, Any]) -> bytes:
    try:
        return pickle.dumps(answer)
    except Exception:
        words = f"{repr(answer[1])[:200]} cannot be sent from the worker:\n{traceback.format_exc()}"
        return pickle.dumps((False, RuntimeError(words)))
