"""Not traceable: the weights live in a file that is mapped for writing."""

import os
import sys

import numpy as np

root = sys.argv[1]
path = os.path.join(root, "weights.dat")
new = not os.path.exists(path)
state = np.memmap(path, dtype=np.float64, mode="w+" if new else "r+", shape=(6,))
x = np.sin(np.arange(40.0)).reshape(8, 5)
while state[0] < 8:
    row = x[int(state[0])]
    error = float(row @ state[1:] - row.sum() / 3)
    state[1:] -= 0.3 * error * row
    state[0] += 1
    print(f"step={int(state[0])} loss={error * error!r}", flush=True)
    if state[0] % 4 == 0:
        state.flush()
        print(f"saved step={int(state[0])}", flush=True)
