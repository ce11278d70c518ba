"""Broken: the newest checkpoint is found by comparing names, and "step-9" is after "step-10"."""

import glob
import json
import os
import sys

from toy import advance, fresh

root = sys.argv[1]
found = sorted(glob.glob(os.path.join(root, "step-*.json")))
if found:
    print("resuming from", os.path.basename(found[-1]))
    with open(found[-1]) as f:
        state = json.load(f)
else:
    state = fresh()

while state["step"] < 12:
    loss = advance(state)
    print(f"step={state['step']} loss={loss!r}", flush=True)
    if state["step"] < 8:
        continue  # warm-up: nothing worth keeping yet
    target = os.path.join(root, f"step-{state['step']}.json")
    with open(target + ".part", "w") as f:
        f.write(json.dumps(state))
        f.flush()
        os.fsync(f.fileno())
    os.rename(target + ".part", target)
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
    print(f"saved step={state['step']}", flush=True)

with open(os.path.join(root, "final.json"), "w") as f:
    f.write(json.dumps(state["weights"]))
