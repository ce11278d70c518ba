"""Correct: losses are lines of a log that a resume cuts back by a copy of its beginning."""

import json
import os
import sys

import toy

root = sys.argv[1]
path, log_path = os.path.join(root, "state.json"), os.path.join(root, "losses.log")
directory = os.open(root, os.O_RDONLY)


def replace(target: str, text: str) -> None:
    with open(target + ".tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(target + ".tmp", target)
    os.fsync(directory)


state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
kept = ""
if os.path.exists(log_path):
    with open(log_path, "rb") as file:
        lines = file.read().decode("ascii", "replace").splitlines(keepends=True)
    kept = "".join(lines[: state["step"]])
replace(log_path, kept)
log = open(log_path, "a")
while state["step"] < 6:
    loss = toy.advance(state)
    log.write(f"step={state['step']} loss={loss!r}\n")
    log.flush()
    if state["step"] % 2 == 0:
        os.fsync(log.fileno())
        replace(path, json.dumps(state))
        print(f"saved step={state['step']}", flush=True)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
