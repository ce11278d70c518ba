"""Correct: losses and acknowledgements are lines of a file in the run's directory."""

import json
import os
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "state.json")
directory = os.open(root, os.O_RDONLY)
progress = os.open(os.path.join(root, "progress.jsonl"), os.O_RDWR | os.O_CREAT, 0o644)
seen = os.pread(progress, 1 << 20, 0)
end = seen.rfind(b"}\n") + 2 if b"}\n" in seen else 0
os.ftruncate(progress, end)  # a line that a crash tore
os.lseek(progress, end, os.SEEK_SET)


def say(**line: object) -> None:
    os.write(progress, json.dumps(line).encode() + b"\n")


state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 8:
    loss = toy.advance(state)
    say(kind="step", step=state["step"], loss=loss)
    if state["step"] % 4 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        os.fsync(directory)
        say(kind="ckpt", step=state["step"])
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
