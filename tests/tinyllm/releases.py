"""Releases for tests: a trained checkpoint, the files that go with it, and faults to put into them.

What a ``World`` holds is right: released as it is, the gate opens. A test breaks one thing of it.
"""

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from safetensors.numpy import load_file, save_file

from tests.tinyllm import runs
from tests.tinyllm.checkpoints import rehash, silent
from tinyllm.errors import ReleaseRefused
from tinyllm.gate import Request
from tinyllm.release import Released, release

EXAMPLE = runs.SMOKE / "release"
STEP = "step-000003"
MODEL, VERSION = "smoke", "1.0"

# The files of a release with everything, by where they stand.
FILES = (
    "MODEL_CARD.md",
    "config.json",
    "evals/summary.json",
    "generation_config.json",
    "heads/tone.json",
    "ledger.json",
    "model.safetensors",
    "tokenizer.json",
    "tokenizer_config.json",
)


def trained(artifacts: Path) -> Path:
    """Train the example's checkpoint; ``artifacts``."""
    ended = runs.train(artifacts, EXAMPLE / "train.json")
    assert ended.code == 0, ended.stderr
    return artifacts


@dataclass(frozen=True)
class World:
    """One test's artifacts, and the inputs of a release in a directory beside them."""

    artifacts: Path
    inputs: Path
    request: Request

    @property
    def step_dir(self) -> Path:
        return self.artifacts / "runs" / "r" / "ckpt" / STEP

    @property
    def target(self) -> Path:
        return self.artifacts / "models" / self.request.model_id / self.request.version

    def asking(self, **changes: Any) -> "World":
        """The same with another request."""
        return replace(self, request=replace(self.request, **changes))

    def release(self, **changes: Any) -> Released:
        """Release it."""
        return release(replace(self.request, **changes), tell=silent)

    def words(self, *more: object) -> list[str]:
        """The command line that asks for the same."""
        request = self.request
        words = ["release", "--artifacts", request.artifacts, "--run-id", request.run_id]
        words += ["--model-id", request.model_id, "--version", request.version]
        words += ["--card", request.card, "--ledger", request.ledger, "--evals", request.evals]
        words += ["--dtype", request.dtype, "--group-size", request.group_size]
        words += [word for head in request.heads for word in ("--head", head)]
        if request.step is not None:
            words += ["--step", request.step]
        if request.chat_template is not None:
            words += ["--chat-template", request.chat_template]
        return [str(word) for word in (*words, *more)]

    def edit(self, file: str, change: Callable[[Any], Any]) -> None:
        """Change a JSON input; ``change`` gives the new document, or None when it changed it."""
        path = self.inputs / file
        document = json.loads(path.read_text())
        changed = change(document)
        path.write_text(json.dumps(document if changed is None else changed))


def world(source: Path, directory: Path) -> World:
    """A world of its own below ``directory``, made from trained artifacts."""
    artifacts, inputs = directory / "artifacts", directory / "inputs"
    shutil.copytree(source, artifacts)
    shutil.copytree(EXAMPLE, inputs)
    request = Request(
        artifacts=artifacts,
        run_id="r",
        model_id=MODEL,
        version=VERSION,
        card=inputs / "MODEL_CARD.md",
        ledger=inputs / "ledger.json",
        evals=inputs / "summary.json",
        heads=(inputs / "head.json",),
        chat_template=inputs / "chat_template.jinja",
    )
    return World(artifacts, inputs, request)


def problems(asked: World, **changes: Any) -> list[str]:
    """What the gate lists, each problem once, and that nothing at all was changed."""
    before = everything(asked.artifacts)
    with pytest.raises(ReleaseRefused) as refused:
        asked.release(**changes)
    assert everything(asked.artifacts) == before
    first, *lines, last = str(refused.value).splitlines()
    count = f"{len(lines)} problem{'s' if len(lines) > 1 else ''}"
    assert first.endswith(f" is not released, {count}:")
    assert last == "nothing was written"
    assert all(line.startswith("  - ") for line in lines)
    assert len(set(lines)) == len(lines)
    return [line.removeprefix("  - ") for line in lines]


def everything(directory: Path) -> dict[str, tuple[int, str]]:
    """Mode and content of every entry below ``directory``, by its path."""
    found = {}
    for path in sorted(directory.rglob("*")):
        status = path.lstat()
        content = ""
        if stat.S_ISREG(status.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        elif stat.S_ISLNK(status.st_mode):
            content = os.readlink(path)
        found[str(path.relative_to(directory))] = (status.st_mode, content)
    return found


def change_weights(asked: World, change: Callable[[dict[str, npt.NDArray[Any]]], None]) -> None:
    """Change the checkpoint's tensors, with a manifest that vouches for what they are now."""
    path = asked.step_dir / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    rehash(asked.step_dir)


def set_value(asked: World, name: str, element: int, value: float) -> None:
    """Put one value into one tensor of the checkpoint."""

    def change(tensors: dict[str, npt.NDArray[Any]]) -> None:
        tensors[name].reshape(-1)[element] = np.float32(value)

    change_weights(asked, change)


def writable(directory: Path) -> None:
    """Allow a test to damage a release: the modes as if they had never been taken away."""
    for path in [directory, *directory.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)
