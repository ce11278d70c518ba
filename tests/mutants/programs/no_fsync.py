"""Broken under power loss: the rename is atomic, but nothing is ever synced."""

import json
import os
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "state.json")
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
        os.replace(path + ".tmp", path)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
