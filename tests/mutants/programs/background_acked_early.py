"""Broken: a snapshot is announced as saved when it is queued for the writer thread."""

import copy
import json
import os
import queue
import sys
import threading

import toy

root = sys.argv[1]
path = os.path.join(root, "ckpt.json")
jobs: queue.Queue = queue.Queue()


def writer() -> None:
    while (snapshot := jobs.get()) is not None:
        with open(path + ".tmp", "w") as file:
            json.dump(snapshot, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)


state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)

thread = threading.Thread(target=writer, daemon=True)
thread.start()
while state["step"] < 12:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 4 == 0:
        print(f"saved step={state['step']}", flush=True)
        jobs.put(copy.deepcopy(state))
jobs.put(None)
thread.join()
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
