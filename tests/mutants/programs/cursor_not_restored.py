"""Broken: the data start from their first row again after a resume."""

import json
import os
import sys

import toy

STEPS, EVERY = 10, 3
KEPT = ("step", "weights", "momentum", "generator", "rate")


def checkpoint(root, state):
    body = json.dumps({key: state[key] for key in KEPT}).encode()
    partial, whole = os.path.join(root, "ckpt~"), os.path.join(root, "ckpt")
    with open(partial, "wb", buffering=0) as file:
        file.write(body)
        os.fsync(file)
    os.rename(partial, whole)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    os.fsync(folder)
    os.close(folder)


def restore(root):
    state = toy.fresh()
    try:
        with open(os.path.join(root, "ckpt"), "rb") as file:
            state.update(json.load(file))
    except FileNotFoundError:
        pass
    return state


root = sys.argv[1]
state = restore(root)
while state["step"] < STEPS:
    loss = toy.advance(state)
    print(f"step={state['step']} loss={loss!r}", flush=True)
    if state["step"] % EVERY == 0 or state["step"] == STEPS:
        checkpoint(root, state)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "weights.json"), "w") as file:
    json.dump(state["weights"], file)
