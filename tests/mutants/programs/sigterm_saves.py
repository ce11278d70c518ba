"""Correct: SIGTERM and SIGINT let the step end, save it and stop; the next start goes on there."""

import json
import os
import signal
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "state.json")
asked = 0


def ask(signum: int, frame: object) -> None:
    global asked
    asked = signum


def save(state: dict) -> None:
    with open(path + ".tmp", "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    print(f"saved step={state['step']}", flush=True)


signal.signal(signal.SIGTERM, ask)
signal.signal(signal.SIGINT, ask)
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 8:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 4 == 0 or asked:
        save(state)
    if asked:
        sys.exit(128 + asked)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
