"""Broken under power loss: the step directories are sound, the bytes of LATEST are not synced."""

import json
import os
import sys
from pathlib import Path

import toy

root = Path(sys.argv[1])


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save(state: dict) -> None:
    directory = root / f"step-{state['step']}"
    directory.mkdir(exist_ok=True)
    (directory / "state.json").write_text(json.dumps(state))
    sync(directory / "state.json")
    sync(directory)
    sync(root)
    pointer = root / "LATEST.tmp"
    pointer.write_text(directory.name)
    pointer.replace(root / "LATEST")
    sync(root)


latest = root / "LATEST"
state = toy.fresh()
if latest.exists():
    state = json.loads((root / latest.read_text() / "state.json").read_text())
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
(root / "final.json").write_text(json.dumps(state["weights"]))
