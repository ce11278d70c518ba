"""Broken where two renames may swap: one directory sync follows the data's and the pointer's."""

import json
import os
import sys

import toy

root = sys.argv[1]


def put(name: str, text: str) -> None:
    temporary = os.path.join(root, f"{name}.tmp")
    with open(temporary, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(root, name))


state = toy.fresh()
if os.path.exists(os.path.join(root, "LATEST")):
    with open(os.path.join(root, "LATEST")) as file:
        newest = file.read().strip()
    with open(os.path.join(root, newest)) as file:
        state = json.load(file)
directory = os.open(root, os.O_RDONLY)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        put(f"data-{state['step']}", json.dumps(state))
        put("LATEST", f"data-{state['step']}\n")
        os.fsync(directory)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
