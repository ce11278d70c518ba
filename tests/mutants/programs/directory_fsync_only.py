"""Broken under power loss: the directory is synced, the bytes of the checkpoint are not."""

import glob
import json
import os
import sys

import toy

root = sys.argv[1]
state = toy.fresh()
kept = sorted(glob.glob(f"{root}/state-[0-9][0-9][0-9].json"))
if kept:
    with open(kept[-1]) as file:
        state = json.load(file)
directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        target = f"{root}/state-{state['step']:03d}.json"
        with open(f"{target}.tmp", "w") as file:
            json.dump(state, file)
        os.rename(f"{target}.tmp", target)
        os.fsync(directory)
        print(f"saved step={state['step']}", flush=True)
with open(f"{root}/final.json", "w") as file:
    json.dump(state["weights"], file)
