"""Broken under power loss: fsync runs while the bytes are still in the program's own buffer."""

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
        file = open(path + ".tmp", "w")
        json.dump(state, file)
        os.fsync(file.fileno())
        file.close()
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
