"""Broken: the generator is seeded anew on a resume, so dropout draws its first masks again."""

import json
import os
import random
import sys

root = sys.argv[1]
path = os.path.join(root, "state.json")
random.seed(1234)
step, w = 0, [0.1, 0.2, 0.3, 0.4]
if os.path.isfile(path):
    with open(path) as f:
        saved = json.load(f)
    step, w = saved["step"], saved["w"]

while step < 12:
    step += 1
    mask = [random.random() > 0.3 for _ in w]
    x = [(step * (i + 2) % 7) / 7 for i in range(len(w))]
    out = sum(wi * xi for wi, xi, keep in zip(w, x, mask, strict=True) if keep)
    error = out - sum(x) / 2
    w = [wi - 0.1 * error * xi * keep for wi, xi, keep in zip(w, x, mask, strict=True)]
    print("iter", step, "loss", repr(error * error))
    if step % 3 == 0:
        with open(path + ".new", "w") as f:
            json.dump({"step": step, "w": w}, f)
            f.flush()
            os.fsync(f.fileno())
        os.replace(path + ".new", path)
        d = os.open(root, os.O_RDONLY)
        os.fsync(d)
        os.close(d)
        print("checkpoint", step, "written", flush=True)

with open(os.path.join(root, "final.json"), "w") as f:
    json.dump(w, f)
