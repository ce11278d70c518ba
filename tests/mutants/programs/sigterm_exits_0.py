"""Correct: SIGTERM and SIGINT save at the end of the step and end with success; a start goes on."""

import json
import os
import signal
import sys

import toy

root = sys.argv[1]
asked: list[int] = []


def put(name: str, text: str) -> None:
    path = os.path.join(root, name)
    with open(path + ".tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
signal.signal(signal.SIGINT, lambda number, frame: asked.append(number))
state = toy.fresh()
if os.path.exists(os.path.join(root, "state.json")):
    with open(os.path.join(root, "state.json")) as file:
        state = json.load(file)
while state["step"] < 8:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 4 == 0 or asked:
        put("state.json", json.dumps(state))
        print(f"saved step={state['step']}", flush=True)
    if asked:
        raise SystemExit(0)
put("final.json", json.dumps(state["weights"]))
