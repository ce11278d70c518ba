"""Broken: a resume waits for a writer that is dead to take its marker away."""

import json
import os
import sys
import time

import toy

root = sys.argv[1]
path, marker = os.path.join(root, "state.json"), os.path.join(root, "publishing")

while os.path.exists(marker):
    time.sleep(0.05)

state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
directory = os.open(root, os.O_RDONLY)
while state["step"] < 4:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 2 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.mkdir(marker)
        os.rename(path + ".tmp", path)
        os.rmdir(marker)
        os.fsync(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
