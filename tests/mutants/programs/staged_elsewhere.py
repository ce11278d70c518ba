"""Broken where a rename across directories needs both synced: only the target's is."""

import json
import os
import sys

import toy

root = sys.argv[1]
staging, kept = os.path.join(root, "staging"), os.path.join(root, "kept")


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


for directory in (staging, kept):
    os.makedirs(directory, exist_ok=True)
sync(root)
target = os.path.join(kept, "state.json")
state = toy.fresh()
if os.path.exists(target):
    with open(target) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        source = os.path.join(staging, "state.json")
        with open(source, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(source, target)
        sync(kept)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
