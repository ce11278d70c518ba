"""A worker: a process without threads that forks attempts, started by the guardian."""

import importlib
import os
from multiprocessing.connection import Connection
from typing import Any

from fault_injection import forkstart, processes


def main(told: dict[str, Any]) -> None:
    """Import what is to be preloaded, then run the target until it returns or the harness is gone.

    ``told``: ``target`` ("module:function"), ``preload``, ``fd`` of the connection, ``parent``.
    """
    processes.die_with_parent(told["parent"])
    processes.become_subreaper()
    os.set_inheritable(told["fd"], False)
    for name in told["preload"]:
        importlib.import_module(name)
    module, _, function = told["target"].partition(":")
    target = getattr(importlib.import_module(module), function)
    forkstart.freeze()
    connection: Connection[Any, Any] = Connection(told["fd"])
    try:
        target(connection)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        pass  # the harness is gone
    finally:
        processes.kill_descendants()
        connection.close()
