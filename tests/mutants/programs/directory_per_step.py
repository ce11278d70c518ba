"""Correct: a directory a step, a manifest with hashes, a pointer, and retention of two.

A directory that no pointer names was never announced: it is moved aside before its name is used
again. What is deleted loses its name first.
"""

import hashlib
import json
import os
import shutil
import sys
from pathlib import Path

import toy

KEEP = 2
root = Path(sys.argv[1]) / "ckpt"


def sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def put(path: Path, text: str) -> str:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    return hashlib.sha256(text.encode()).hexdigest()


def discard(directory: Path) -> None:
    trash = root / "trash"
    shutil.rmtree(trash, ignore_errors=True)
    directory.rename(trash)
    shutil.rmtree(trash)


def save(state: dict) -> None:
    final, staged = root / f"step-{state['step']:06d}", root / "staged"
    shutil.rmtree(staged, ignore_errors=True)
    staged.mkdir()
    model = {"weights": state["weights"]}
    rest = {key: value for key, value in state.items() if key != "weights"}
    hashes = {name: put(staged / name, json.dumps(part)) for name, part in
              (("model.json", model), ("trainer.json", rest))}  # fmt: skip
    put(staged / "MANIFEST.json", json.dumps(hashes))
    sync(staged)
    if final.exists():
        discard(final)
    staged.rename(final)
    sync(root)
    put(root / "LATEST.tmp", final.name + "\n")
    (root / "LATEST.tmp").rename(root / "LATEST")
    sync(root)
    print(f"saved step={state['step']}", flush=True)
    for old in sorted(root.glob("step-*"))[:-KEEP]:
        discard(old)


def load() -> dict:
    if not (root / "LATEST").exists():
        return toy.fresh()
    directory = root / (root / "LATEST").read_text().strip()
    state = {}
    for name, digest in json.loads((directory / "MANIFEST.json").read_text()).items():
        data = (directory / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            sys.exit(f"{directory / name}: not what was saved")
        state |= json.loads(data)
    return state


root.mkdir(exist_ok=True)
sync(root.parent)
state = load()
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        save(state)
(root.parent / "final.json").write_text(json.dumps(state["weights"]))
