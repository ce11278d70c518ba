"""Broken: model and optimizer are two files, each replaced on its own: a kill pairs two steps."""

import os
import sys

import numpy as np

ROOT = sys.argv[1]


def replace(name: str, **arrays: np.ndarray) -> None:
    target = os.path.join(ROOT, name)
    with open(target + ".tmp", "wb") as file:
        np.savez(file, **arrays)
        file.flush()
        os.fsync(file.fileno())
    os.replace(target + ".tmp", target)


def sync_root() -> None:
    fd = os.open(ROOT, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def read(name: str) -> dict[str, np.ndarray] | None:
    path = os.path.join(ROOT, name)
    if not os.path.exists(path):
        return None
    with np.load(path) as arrays:
        return dict(arrays)


model = {"w": np.ones(3), "step": np.array(0)}
optimizer = {"m": np.zeros(3), "v": np.zeros(3)}
stored_model, stored_optimizer = read("model.npz"), read("optimizer.npz")
if stored_model is not None and stored_optimizer is not None:
    model, optimizer = stored_model, stored_optimizer

data = np.cos(np.arange(36.0)).reshape(12, 3)
for step in range(int(model["step"]), 12):
    error = float(data[step] @ model["w"] - 0.5)
    gradient = error * data[step]
    optimizer["m"] = 0.9 * optimizer["m"] + 0.1 * gradient
    optimizer["v"] = 0.99 * optimizer["v"] + 0.01 * gradient**2
    model["w"] = model["w"] - 0.05 * optimizer["m"] / (np.sqrt(optimizer["v"]) + 1e-8)
    model["step"] = np.array(step + 1)
    print(f"step={step} loss={error**2!r}", flush=True)  # counted from 0, as the data are
    if (step + 1) % 4 == 0:
        replace("optimizer.npz", **optimizer)
        replace("model.npz", **model)
        sync_root()
        print(f"saved step={step}", flush=True)
np.save(os.path.join(ROOT, "final.npy"), model["w"])
