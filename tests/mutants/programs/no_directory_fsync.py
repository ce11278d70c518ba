"""Broken under power loss: the file is synced, but never the directory that holds its name."""

import os
import sys

import numpy as np

root = sys.argv[1]
path = os.path.join(root, "weights.bin")
x = np.sin(np.arange(60.0)).reshape(12, 5)
state = np.zeros(6)  # five weights, and the number of steps taken
if os.path.exists(path):
    state = np.fromfile(path)
while state[5] < 12:
    row = x[int(state[5])]
    error = float(row @ state[:5] - row.sum() / 3)
    state[:5] -= 0.3 * error * row
    state[5] += 1
    print(f"step={int(state[5])} loss={error * error!r}", flush=True)
    if state[5] % 4 == 0:
        with open(path + "~", "wb") as file:
            state.tofile(file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + "~", path)
        print(f"saved step={int(state[5])}", flush=True)
state[:5].tofile(os.path.join(root, "final.bin"))
