"""Broken where a replacing rename does not flush: the new bytes are never synced, the name is.

A first checkpoint is written properly before training starts, so that every later save replaces
one that is there.
"""

import json
import os
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "checkpoint")
directory = os.open(root, os.O_RDONLY)


def save(state: dict, *, first: bool = False) -> None:
    with open(path + ".tmp", "w") as file:
        file.write(json.dumps(state))
        if first:
            file.flush()
            os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    os.fsync(directory)


if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
else:
    state = toy.fresh()
    save(state, first=True)
for step in range(state["step"] + 1, 10):
    print(f"step={step} loss={toy.advance(state)!r}", flush=True)
    if step % 3 == 0:
        save(state)
        print(f"saved step={step}", flush=True)
with open(os.path.join(root, "final"), "w") as file:
    file.write(json.dumps(state["weights"]))
