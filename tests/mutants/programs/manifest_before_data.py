"""Broken under power loss: the mark "complete" is durable before the data that it vouches for."""

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
    directory = root / f"{state['step']:04d}"
    directory.mkdir(exist_ok=True)
    data, mark = directory / "state.json", directory / "COMPLETE"
    data.write_text(json.dumps(state))
    mark.write_text(f"{state['step']}\n")
    sync(mark)
    sync(directory)
    sync(root)
    sync(data)


complete = sorted(p.parent for p in root.glob("[0-9]*/COMPLETE"))
state = json.loads((complete[-1] / "state.json").read_text()) if complete else toy.fresh()
while state["step"] < 9:
    loss = toy.advance(state)
    print(f"epoch 1, step={state['step']} loss={loss!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
(root / "final.json").write_text(json.dumps(state["weights"]))
