"""Running the ``tinyllm`` command in forks of this process, which has torch loaded already.

A run may be stopped at a failpoint: it waits there until it was killed, or signalled and let go.
"""

import atexit
import functools
import json
import os
import shutil
import signal
import socket
import sys
import tempfile
import traceback
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # torch's optimizers import it when the first one is made

import tinyllm.trainer
from fault_injection import points
from tinyllm.cli import main

SMOKE = Path(__file__).parents[2] / "smoke_configs"
CONFIGS = ("adamw", "adamw-bf16", "file-tokenizer", "muon", "sgd")

torch.set_num_threads(1)
GIT_SHA = "0" * 40
assert tinyllm.trainer, "imported here so that no fork has to"


@dataclass(frozen=True)
class Ended:
    """How a run ended: ``code`` is the exit code, or minus the number of the signal."""

    code: int
    stderr: str


def run(*argv: object, stop_at: tuple[str, int] | None = None, send: int = signal.SIGKILL) -> Ended:
    """Run ``tinyllm argv``. At hit ``stop_at[1]`` of a point it is sent ``send`` and let go."""
    ours, theirs = socket.socketpair()
    ours.settimeout(60)
    stderr = os.memfd_create("stderr")
    with warnings.catch_warnings():
        # The timer thread of pytest-timeout makes newer Pythons warn about every fork; the child
        # uses nothing of it.
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
    if pid == 0:
        _child([str(word) for word in argv], stop_at, theirs, stderr)
    theirs.close()
    reached = ours.recv(4096)  # empty when it ends without having come there
    if reached:
        os.kill(pid, send)
        if send != signal.SIGKILL:
            ours.sendall(b".")
    _, status = os.waitpid(pid, 0)
    ours.close()
    with open(stderr, "rb") as file:
        file.seek(0)
        text = file.read().decode()
    assert stop_at is None or reached, f"{stop_at} was not reached:\n{text}"
    return Ended(code=os.waitstatus_to_exitcode(status), stderr=text)


def _child(
    argv: list[str], stop_at: tuple[str, int] | None, control: socket.socket, stderr: int
) -> None:
    code = 99
    try:
        os.dup2(stderr, 2)
        os.environ["TINYLLM_GIT_SHA"] = GIT_SHA  # somebody may commit while the tests run
        # Not pytest's replacement, which would keep what is written in memory.
        with open(2, "w", closefd=False) as text:
            sys.stderr = text
            points.arm(chosen=stop_at, control_fd=control.fileno())
            code = main(argv)
    except SystemExit as error:  # argparse
        code = error.code if isinstance(error.code, int) else 98
    except BaseException:
        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def train(
    artifacts: Path,
    spec: Path | str,
    *more: object,
    run_id: str = "r",
    stop_at: tuple[str, int] | None = None,
    send: int = signal.SIGKILL,
) -> Ended:
    """``tinyllm train``; ``spec`` is a path or the name of a smoke config, which is run longer."""
    path = longer(spec) if isinstance(spec, str) else spec
    argv = ["train", path, "--artifacts", artifacts, "--run-id", run_id, *more]
    return run(*argv, stop_at=stop_at, send=send)


def spec_content(name: str = "adamw", **changes: Any) -> dict[str, Any]:
    """A smoke config as a dictionary, run longer, with paths that hold anywhere.

    The smoke configs are as short as the gate needs them; here are six steps in an epoch, four from
    save to save.
    """
    content: dict[str, Any] = json.loads((SMOKE / f"{name}.json").read_text())
    content["data"]["max_windows"] = 24
    content |= {"steps": 18 if name == "sgd" else 16, "ckpt_every": 4}
    content["data"]["sources"][0]["path"] = str(SMOKE / "corpus.txt")
    if "tokenizer" in content:
        content["tokenizer"] = str(SMOKE / "tokenizer.json")
    return content | changes


@functools.cache
def longer(name: str) -> Path:
    directory = Path(tempfile.mkdtemp(prefix="tinyllm-specs-"))
    owner = os.getpid()
    atexit.register(lambda: os.getpid() == owner and shutil.rmtree(directory))
    return write_spec(directory / f"{name}.json", name)


def write_spec(path: Path, name: str = "adamw", **changes: Any) -> Path:
    """Write a changed smoke config."""
    path.write_text(json.dumps(spec_content(name, **changes), indent=1))
    return path


def lines(artifacts: Path, run_id: str = "r") -> list[dict[str, Any]]:
    """The progress file's lines; every one must be whole."""
    content = (artifacts / "runs" / run_id / "progress.jsonl").read_bytes()
    assert content.endswith(b"\n")
    return [json.loads(line) for line in content.splitlines()]


def kinds(artifacts: Path, run_id: str = "r") -> list[str]:
    """Kind and step of every line, as ``step 4``."""
    return [
        f"{line['kind']} {line['step']}" if "step" in line else line["kind"]
        for line in lines(artifacts, run_id)
    ]


def losses(artifacts: Path, run_id: str = "r") -> dict[int, set[str]]:
    """Every loss, as bits, that was ever reported for a step."""
    result: dict[int, set[str]] = {}
    for line in lines(artifacts, run_id):
        if line["kind"] == "step":
            result.setdefault(line["step"], set()).add(line["loss_bits"])
    return result


def ckpt(artifacts: Path, run_id: str = "r") -> Path:
    """The run's ``ckpt`` directory."""
    return artifacts / "runs" / run_id / "ckpt"


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below ``directory``, by its relative path."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
