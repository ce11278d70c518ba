"""Broken: the only checkpoint is overwritten in place, so a kill in between leaves half of one."""

import json
import os
import sys

import toy

STEPS, EVERY = 12, 3
root = sys.argv[1]
path = os.path.join(root, "checkpoint.json")

if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
else:
    state = toy.fresh()

while state["step"] < STEPS:
    loss = toy.advance(state)
    print(f"step={state['step']} loss={loss!r}")
    if state["step"] % EVERY == 0:
        with open(path, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)

with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
