"""Correct: the checkpoint is read through a read-only mapping, as safetensors does."""

import mmap
import os
import sys

import numpy as np

root = sys.argv[1]
path = os.path.join(root, "weights.bin")
x = np.sin(np.arange(60.0)).reshape(12, 5)
state = np.zeros(6)
if os.path.exists(path):
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
        state = np.frombuffer(view, np.float64).copy()
while state[5] < 12:
    row = x[int(state[5])]
    error = float(row @ state[:5] - row.sum() / 3)
    state[:5] -= 0.3 * error * row
    state[5] += 1
    print(f"step={int(state[5])} loss={error * error!r}", flush=True)
    if state[5] % 4 == 0:
        with open(path + ".tmp", "wb") as file:
            state.tofile(file)
            file.flush()
            os.fdatasync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={int(state[5])}", flush=True)
state[:5].tofile(os.path.join(root, "final.bin"))
