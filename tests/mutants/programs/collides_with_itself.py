"""Broken: a step directory that a crash left behind makes the same save fail after the resume."""

import json
import os
import sys

import toy

root = sys.argv[1]


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def save(state: dict) -> None:
    directory = os.path.join(root, f"step-{state['step']:06d}")
    os.mkdir(directory)
    write(os.path.join(directory, "state.json"), json.dumps(state))
    sync(directory)
    sync(root)
    write(os.path.join(root, "LATEST.tmp"), os.path.basename(directory))
    os.rename(os.path.join(root, "LATEST.tmp"), os.path.join(root, "LATEST"))
    sync(root)


state = toy.fresh()
if os.path.exists(os.path.join(root, "LATEST")):
    with open(os.path.join(root, "LATEST")) as file:
        name = file.read()
    with open(os.path.join(root, name, "state.json")) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
write(os.path.join(root, "final.json"), json.dumps(state["weights"]))
