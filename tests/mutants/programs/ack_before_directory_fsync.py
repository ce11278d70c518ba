"""Broken under power loss: everything is synced, but the words are out before the last sync."""

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
directory = os.open(root, os.O_RDONLY)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        print(f"saved step={state['step']}", flush=True)
        os.fsync(directory)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
