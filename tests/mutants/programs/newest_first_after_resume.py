"""Broken: what a resume lists it keeps in another order, and retention takes from the wrong end."""

import json
import os
import sys

import toy

STEPS, EVERY, KEEP = 15, 3, 2
root = sys.argv[1]
directory = os.open(root, os.O_RDONLY)
steps = {int(n.split(".")[0]): n for n in os.listdir(root) if n.split(".")[0].isdigit()}
kept = sorted(steps, reverse=True)  # the newest first, while below it is the last
if kept:
    with open(os.path.join(root, f"{kept[0]}.json")) as file:
        state = json.load(file)
else:
    state = toy.fresh()

resumed = bool(kept)
while state["step"] < STEPS:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % EVERY == 0:
        with open(os.path.join(root, "new"), "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(os.path.join(root, "new"), os.path.join(root, f"{state['step']}.json"))
        os.fsync(directory)
        print(f"saved step={state['step']}", flush=True)
        kept.insert(0, state["step"]) if resumed else kept.append(state["step"])
        if len(kept) > KEEP:
            os.unlink(os.path.join(root, f"{kept.pop(0)}.json"))
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
