"""Broken under power loss: the file gets its final name first and is synced under that name."""

import os
import pickle
import sys

import toy

root = sys.argv[1]


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def save(state: dict) -> None:
    target = os.path.join(root, f"model.{state['step']:05d}")
    with open(os.path.join(root, "model.tmp"), "wb") as file:
        pickle.dump(state, file)
    os.rename(os.path.join(root, "model.tmp"), target)
    sync(target)
    sync(root)


names = sorted(n for n in os.listdir(root) if n.startswith("model.") and n[6:].isdigit())
state = toy.fresh()
if names:
    with open(os.path.join(root, names[-1]), "rb") as file:
        state = pickle.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.pkl"), "wb") as file:
    pickle.dump(state["weights"], file)
