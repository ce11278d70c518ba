"""Correct: sync(2) in the place of every fsync, and names that are not text."""

import os
import pickle
import sys

import toy

root = os.fsencode(sys.argv[1])
path, partial = root + b"/model \xff\n.bin", root + b"/model \xff\n.part"

if os.path.exists(path):
    with open(path, "rb") as file:
        state = pickle.load(file)
else:
    state = toy.fresh()
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(partial, "wb") as file:
            pickle.dump(state, file)
        os.sync()
        os.rename(partial, path)
        os.sync()
        print(f"saved step={state['step']}", flush=True)
with open(root + b"/final", "wb") as file:
    pickle.dump(state["weights"], file)
