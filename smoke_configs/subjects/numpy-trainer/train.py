"""A small numpy trainer whose checkpoints survive a kill and a power loss: the example to copy.

    python train.py --out DIR

It fits a line to noisy points with momentum, saves every few steps, and goes on from whatever
checkpoint is in DIR. What matters is :func:`save` and the order of its lines.
"""

import argparse
import os
from pathlib import Path

import numpy as np

STEPS, SAVE_EVERY, BATCH = 12, 4, 8


def fresh_state() -> dict[str, np.ndarray]:
    """Everything that the next step depends on. What is not in here is lost in a crash."""
    return {
        "step": np.array(0),
        "weights": np.zeros(4, np.float32),
        "momentum": np.zeros(4, np.float32),
        "order": np.random.default_rng(1).permutation(128),  # the shuffled epoch
        "noise_seed": np.array(2),
    }


def train_step(state: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray) -> np.float32:
    """One step in place; its loss. The step count drives the data, the noise and the schedule."""
    step = int(state["step"])
    rows = state["order"][step * BATCH : (step + 1) * BATCH]
    # A generator keyed by the step needs no state of its own in the checkpoint.
    noise = np.random.default_rng([int(state["noise_seed"]), step]).standard_normal(BATCH)
    error = x[rows] @ state["weights"] - y[rows] + np.float32(0.01) * noise.astype(np.float32)
    rate = np.float32(0.1 * (1 - step / STEPS))
    state["momentum"] = np.float32(0.9) * state["momentum"] + x[rows].T @ error / BATCH
    state["weights"] = state["weights"] - rate * state["momentum"]
    state["step"] = np.array(step + 1)
    return (error @ error) / np.float32(BATCH)


def save(out: Path, state: dict[str, np.ndarray]) -> None:
    """Replace the checkpoint so that a crash at any instant leaves the old one or the new one."""
    temporary = out / "checkpoint.npz.tmp"
    with temporary.open("wb") as file:
        np.savez(file, **state)
        file.flush()  # from this program's buffer to the kernel,
        os.fsync(file.fileno())  # and from the kernel to the disk: before the rename
    temporary.rename(out / "checkpoint.npz")  # one atomic step from the old to the new
    directory = os.open(out, os.O_RDONLY)
    os.fsync(directory)  # the new name itself: before anybody is told
    os.close(directory)
    print(f"saved step={int(state['step'])}", flush=True)  # flush: it must be true when it is said


def load(out: Path) -> dict[str, np.ndarray]:
    """The checkpoint; a fresh state only where there is none. A damaged one is an error."""
    path = out / "checkpoint.npz"
    if not path.exists():
        return fresh_state()
    with np.load(path) as stored:
        return dict(stored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    out = parser.parse_args().out

    generator = np.random.default_rng(0)
    x = generator.standard_normal((128, 4)).astype(np.float32)
    y = x @ np.array([1.0, -2.0, 0.5, 3.0], np.float32)

    state = load(out)
    while int(state["step"]) < STEPS:
        loss = train_step(state, x, y)
        print(f"step={int(state['step'])} loss={loss:.9g}", flush=True)  # 9 digits tell float32
        if int(state["step"]) % SAVE_EVERY == 0 or int(state["step"]) == STEPS:
            save(out, state)
    # Written again by every start that finds nothing left to do, so that no crash can lose it.
    # (Not with tofile, which does not tell that the disk is full.)
    (out / "final.bin").write_bytes(state["weights"].tobytes())


if __name__ == "__main__":
    main()
