"""Broken: the optimizer's momentum is not in the checkpoint and begins at zero after a resume."""

import os
import sys

import numpy as np

root = sys.argv[1]
path = os.path.join(root, "model.npz")
generator = np.random.default_rng(7)
inputs = generator.standard_normal((48, 4))
targets = inputs @ np.array([1.0, -2.0, 0.5, 3.0])

weights, velocity, done = np.zeros(4), np.zeros(4), 0
if os.path.exists(path):
    with np.load(path) as stored:
        weights, done = stored["weights"], int(stored["done"])

for step in range(done + 1, 13):
    rows = slice(4 * (step - 1), 4 * step)
    error = inputs[rows] @ weights - targets[rows]
    velocity = 0.9 * velocity + inputs[rows].T @ error / 4
    weights = weights - 0.05 * velocity
    print(f"step={step} loss={float(error @ error) / 4!r}", flush=True)
    if step % 4 == 0:
        with open(path + ".tmp", "wb") as out:
            np.savez(out, weights=weights, done=step)
            out.flush()
            os.fsync(out.fileno())
        os.replace(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={step}", flush=True)

weights.tofile(os.path.join(root, "final.bin"))
