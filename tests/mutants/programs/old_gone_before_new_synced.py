"""Broken under power loss: the old file's removal is made durable before the new file's bytes."""

import json
import os
import sys

import toy

root = sys.argv[1]


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def stored() -> list[str]:
    return sorted(n for n in os.listdir(root) if n.startswith("step-") and n.endswith(".json"))


def save(state: dict) -> None:
    old = stored()
    new = os.path.join(root, f"step-{state['step']:06d}.json")
    with open(os.path.join(root, "partial"), "w") as file:
        json.dump(state, file)
    os.rename(os.path.join(root, "partial"), new)
    for name in old:
        os.unlink(os.path.join(root, name))
    sync(root)
    sync(new)


names = stored()
state = toy.fresh()
if names:
    with open(os.path.join(root, names[-1])) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
