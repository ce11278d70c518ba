"""Helpers for tests that run attempts: small programs, and a worker to fork them from."""

import os
import sys
import textwrap
import threading
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from fault_injection.attempt import Attempt, Command, Settings, run_attempt
from fault_injection.guardian import Worker

# What a program under test may rely on; nothing of the shell that runs the tests.
ENVIRONMENT = {"PATH": os.environ.get("PATH", os.defpath), "HOME": "/", "LC_ALL": "C.UTF-8"}


def command(*argv: str, cwd: Path | str = "/", env: dict[str, str] | None = None) -> Command:
    """A command with the tests' environment and ``env`` on top."""
    return Command(argv, str(cwd), tuple(sorted({**ENVIRONMENT, **(env or {})}.items())))


def script(directory: Path, source: str, name: str = "program.py") -> str:
    """Write a Python program; return its path."""
    path = directory / name
    path.write_text(textwrap.dedent(source))
    return str(path)


def python(directory: Path, source: str, *words: str, env: dict[str, str] | None = None) -> Command:
    """The command that runs ``source`` as a script in ``directory``."""
    return command(sys.executable, script(directory, source), *words, cwd=directory, env=env)


def serve(connection: "Connection[Any, Any]") -> None:
    """The target of the tests' worker: runs what it is sent until the connection closes.

    It had a thread of its own once, as a process that has been in use.
    """
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    while True:
        asked: tuple[Command, Settings] = connection.recv()
        try:
            connection.send(run_attempt(*asked))
        except Exception as error:
            connection.send(error)


@dataclass(frozen=True, slots=True)
class Remote:
    """Runs attempts in a worker that has nothing but this project loaded."""

    worker: Worker

    def run(self, asked: Command, settings: Settings) -> Attempt:
        """``run_attempt`` there."""
        self.worker.connection.send((asked, settings))
        if not self.worker.connection.poll(60):
            raise TimeoutError("the worker does not answer")
        answer = self.worker.connection.recv()
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, Attempt)
        return answer


def alive_with(mark: str) -> list[int]:
    """Pids of the living processes whose environment or command line holds ``mark``."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
            state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
        except OSError:
            continue
        if state not in (b"Z", b"X") and any(mark.encode() in text for text in texts):
            found.append(int(pid))
    return sorted(found)
