"""Correct: temporary file, fsync, rename, fsync of the directory, and only then the words.

Its losses are printed without a flush, as most programs do: a kill loses some that were computed.
A loss that nobody saw is no fault.
"""

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
while state["step"] < 12:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}")
    if state["step"] % 3 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
