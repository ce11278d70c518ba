"""Broken: the search for the newest checkpoint also matches a half-written temporary file."""

import os
import pickle
import re
import sys

import toy

root = sys.argv[1]


def newest() -> str | None:
    found = [(int(m[1]), name) for name in os.listdir(root) if (m := re.match(r"ckpt_(\d+)", name))]
    return max(found)[1] if found else None


name = newest()
if name is None:
    state = toy.fresh()
else:
    with open(os.path.join(root, name), "rb") as file:
        state = pickle.load(file)

while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        target = os.path.join(root, f"ckpt_{state['step']}.pkl")
        with open(target + ".tmp", "wb") as file:
            file.write(pickle.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        os.rename(target + ".tmp", target)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.pkl"), "wb") as file:
    file.write(pickle.dumps(state["weights"]))
