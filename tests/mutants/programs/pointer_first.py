"""Broken: LATEST is moved to the new checkpoint before that checkpoint is written."""

import json
import os
import sys

import toy

STEPS, EVERY = 9, 3


def write_durably(directory: str, name: str, text: str) -> None:
    temporary = os.path.join(directory, name + ".tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        os.write(fd, text.encode())
        os.fsync(fd)
    finally:
        os.close(fd)
    os.replace(temporary, os.path.join(directory, name))
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def main(root: str) -> int:
    latest = os.path.join(root, "LATEST")
    state = toy.fresh()
    if os.path.exists(latest):
        with open(latest) as file:
            name = file.read().strip()
        with open(os.path.join(root, name)) as file:
            state = json.load(file)
    for step in range(state["step"] + 1, STEPS + 1):
        print(f"step={step} loss={toy.advance(state)!r}", flush=True)
        if step % EVERY == 0:
            name = f"step-{step:04d}.json"
            write_durably(root, "LATEST", name + "\n")
            write_durably(root, name, json.dumps(state))
            print(f"saved step={step}", flush=True)
    write_durably(root, "final.json", json.dumps(state["weights"]))
    return 0


sys.exit(main(sys.argv[1]))
