"""Correct: the new checkpoint and the old one swap names in one call (RENAME_EXCHANGE)."""

import ctypes
import json
import os
import sys

import toy

AT_FDCWD, RENAME_EXCHANGE = -100, 2
libc = ctypes.CDLL(None, use_errno=True)
root = os.fsencode(sys.argv[1])
live, spare = root + b"/live", root + b"/spare"
directory = os.open(root, os.O_RDONLY)


def exchange(one: bytes, other: bytes) -> None:
    if libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), os.fsdecode(other))


os.fsync(directory)  # an exchange that a kill left behind must be durable before spare is reused
state = toy.fresh()
if os.path.exists(live):
    with open(live) as file:
        state = json.load(file)
while state["step"] < 9:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        with open(spare, "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        if os.path.exists(live):
            exchange(spare, live)
        else:
            os.rename(spare, live)
        os.fsync(directory)
        print(f"saved step={state['step']}", flush=True)
with open(root + b"/final", "w") as file:
    json.dump(state["weights"], file)
