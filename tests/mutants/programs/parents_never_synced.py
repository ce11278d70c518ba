"""Broken where a name needs its own directory's sync: the directories above are never synced."""

import json
import os
import sys

import toy

folder = os.path.join(sys.argv[1], "runs", "first", "ckpt")
os.makedirs(folder, exist_ok=True)
path = os.path.join(folder, "state.json")
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        fd = os.open(folder, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(sys.argv[1], "runs", "first", "final.json"), "w") as file:
    json.dump(state["weights"], file)
