"""A sound trainer that starts a monitor process and forgets it: the child outlives the run."""

import json
import os
import subprocess
import sys

import toy

root = sys.argv[1]
subprocess.Popen(
    ["sleep", "60"],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.DEVNULL,
    stderr=subprocess.DEVNULL,
    start_new_session=True,
)
path = os.path.join(root, "state.json")
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 4:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 2 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
os._exit(0)  # Popen would warn that its child still runs
