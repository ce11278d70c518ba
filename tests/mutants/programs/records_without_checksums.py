"""Broken where a file may grow before its bytes are there: the last record is taken as it stands.

Records are one page each and appended; the reader takes the last whole one. A file that came back
with its new length and zeros in it has a record that says: step 0, all weights zero.
"""

import os
import sys

import numpy as np

PAGE = 4096
root = sys.argv[1]
fd = os.open(os.path.join(root, "records"), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
directory = os.open(root, os.O_RDONLY)
os.fsync(directory)

step, weights = 0, np.full(511, 0.5)
count = os.fstat(fd).st_size // PAGE
os.ftruncate(fd, count * PAGE)
if count:
    record = np.frombuffer(os.pread(fd, PAGE, (count - 1) * PAGE))
    step, weights = int(record[0]), record[1:].copy()

while step < 9:
    row = np.cos(np.arange(511.0) * (step + 1))
    error = float(row @ weights) / 511 - 0.25
    weights -= 0.5 * error * row
    step += 1
    print(f"step={step} loss={error * error!r}", flush=True)
    if step % 3 == 0:
        os.write(fd, np.concatenate([[float(step)], weights]).tobytes())
        os.fsync(fd)
        print(f"saved step={step}", flush=True)
weights.tofile(os.path.join(root, "final.bin"))
