"""Broken: a stale temporary name is still a hard link to the checkpoint, and is truncated.

A save links the temporary file to its name and then removes the temporary one. Killed in between,
both names are one file; the resumed run opens the temporary name for writing and so empties the
checkpoint that it came from. Only a second kill, before the next save is complete, shows it.
"""

import json
import os
import re
import sys

import toy

root = sys.argv[1]
steps = sorted(int(m[1]) for n in os.listdir(root) if (m := re.fullmatch(r"at-(\d+)\.json", n)))
state = toy.fresh()
if steps:
    with open(f"{root}/at-{steps[-1]}.json") as file:
        state = json.load(file)

directory = os.open(root, os.O_RDONLY)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(f"{root}/next.tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.link(f"{root}/next.tmp", f"{root}/at-{state['step']}.json")
        os.fsync(directory)
        os.unlink(f"{root}/next.tmp")
        print(f"saved step={state['step']}", flush=True)
with open(f"{root}/final.json", "w") as file:
    json.dump(state["weights"], file)
