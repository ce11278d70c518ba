"""Broken: the old directory is deleted under its own name, and half of it is then resumed from."""

import json
import os
import shutil
import sys
from pathlib import Path

import toy

root = Path(sys.argv[1])
live, staged, building = (root / f"checkpoint{end}" for end in ("", ".new", ".building"))


def put(path: Path, value: object) -> None:
    with path.open("w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


def sync(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save(state: dict) -> None:
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    put(building / "model.json", [state["step"], state["weights"]])
    put(building / "optimizer.json", [state["momentum"], state["rate"]])
    put(building / "data.json", [state["cursor"], state["generator"]])
    sync(building)
    shutil.rmtree(staged, ignore_errors=True)  # of a save that a crash cut short
    building.rename(staged)
    sync(root)
    if live.exists():
        shutil.rmtree(live)
    staged.rename(live)
    sync(root)


def load() -> dict:
    source = live if live.exists() else staged
    state = toy.fresh()
    if not (source / "model.json").exists():
        return state
    state["step"], state["weights"] = json.loads((source / "model.json").read_text())
    if (source / "optimizer.json").exists():  # older runs had none
        state["momentum"], state["rate"] = json.loads((source / "optimizer.json").read_text())
    if (source / "data.json").exists():
        state["cursor"], state["generator"] = json.loads((source / "data.json").read_text())
    return state


state = load()
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
        print(f"saved step={state['step']}", flush=True)
put(root / "final.json", state["weights"])
