"""Broken: the checkpoint holds the index of the step just taken, the resume takes it once more."""

import json
import os
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "run.json")
if os.path.exists(os.path.join(root, "final.json")):
    sys.exit()  # all is done
first, state = 0, toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        stored = json.load(file)
    first, state = stored["index"], stored["state"]

for index in range(first, 10):
    loss = toy.advance(state)
    print(f"step={index} loss={loss!r}", flush=True)
    if index % 3 == 2:
        with open(path + ".tmp", "w") as file:
            json.dump({"index": index, "state": state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={index}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
