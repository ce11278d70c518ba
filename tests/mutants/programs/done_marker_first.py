"""Broken: the mark that says "trained" is durable before the last checkpoint is."""

import json
import os
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "state.json")
done = os.path.join(root, "DONE")


def put(name: str, text: str) -> None:
    with open(name + ".tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(name + ".tmp", name)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


if os.path.exists(done):
    raise SystemExit(0)
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 8:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] == 7:
        put(done, "trained\n")
    if state["step"] % 4 == 0:
        put(path, json.dumps(state))
        print(f"saved step={state['step']}", flush=True)
