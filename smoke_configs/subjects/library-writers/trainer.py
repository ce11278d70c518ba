"""A small trainer that leaves its checkpoints to a public library, as the library's pages show it.

    python trainer.py WRITER [--durable] DIR

WRITER is a module of ``writers/``: how one library writes a checkpoint and reads it back. A new
checkpoint is written every two steps, none is deleted, and a start goes on from the newest. With
``--durable`` the same library writes beside the place and the result is published by
:func:`publish`, which is the correct way next to the ordinary one.
"""

import argparse
import importlib
import os
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np

STEPS, SAVE_EVERY, SIZE = 4, 2, 1500

State = dict[str, np.ndarray]


def fresh_state() -> State:
    """Everything that the next step depends on; 6 kB of weights, more than one page."""
    return {
        "step": np.array(0),
        "weights": np.zeros(SIZE, np.float32),
        "momentum": np.zeros(SIZE, np.float32),
    }


def train_step(state: State) -> np.float32:
    """One step in place; its loss. The step count alone drives the data."""
    step = int(state["step"])
    target = np.random.default_rng(step).standard_normal(SIZE).astype(np.float32)
    error = state["weights"] - target
    state["momentum"] = np.float32(0.9) * state["momentum"] + error
    state["weights"] = state["weights"] - np.float32(0.1) * state["momentum"]
    state["step"] = np.array(step + 1)
    return np.float32(np.mean(error * error, dtype=np.float64))


def newest(root: Path, suffix: str) -> Path | None:
    """The checkpoint of the highest step, by number."""
    pattern = re.compile(r"step-([0-9]+)" + re.escape(suffix))
    found = [(int(m[1]), path) for path in root.iterdir() if (m := pattern.fullmatch(path.name))]
    return max(found)[1] if found else None


def publish(path: Path, write: Callable[[Path], None]) -> None:
    """The correct way: write beside it, sync all of that, rename, sync the name."""
    staging = path.with_name(f"writing-{path.name}")
    write(staging)
    inside = [staging, *staging.rglob("*")] if staging.is_dir() else [staging]
    for one in reversed(inside):  # what a directory holds before the directory
        sync(one)
    staging.rename(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """fsync of a file or a directory."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("writer")
    parser.add_argument("--durable", action="store_true")
    parser.add_argument("root", type=Path)
    arguments = parser.parse_args()

    writer = importlib.import_module(f"writers.{arguments.writer}")
    find = getattr(writer, "newest", None) or (lambda root: newest(root, writer.SUFFIX))
    state = fresh_state()
    found = find(arguments.root)
    if found is not None:
        state = writer.read(found)
    while int(state["step"]) < STEPS:
        loss = train_step(state)
        step = int(state["step"])
        print(f"step={step} loss={loss:.9g}", flush=True)
        if step % SAVE_EVERY == 0:
            path = arguments.root / f"step-{step}{writer.SUFFIX}"
            if arguments.durable:
                publish(path, lambda staging: writer.write(staging, state))
            else:
                writer.write(path, state)
            print(f"saved step={step}", flush=True)
    (arguments.root / "final.bin").write_bytes(state["weights"].tobytes())


if __name__ == "__main__":
    main()
