"""Correct: a thread is joined at the next save and spoken of then; of the last nothing is said."""

import json
import os
import sys
import threading

import toy

root = sys.argv[1]
path = os.path.join(root, "state.json")
directory = os.open(root, os.O_RDONLY)


def write(text: str) -> None:
    with open(path + ".tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    os.fsync(directory)


state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
writer, saved = None, 0
while state["step"] < 10:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 4 == 0:
        if writer is not None:
            writer.join()
            print(f"saved step={saved}", flush=True)
        saved = state["step"]
        writer = threading.Thread(target=write, args=(json.dumps(state),))
        writer.start()
if writer is not None:
    writer.join()
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
