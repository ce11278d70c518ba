"""Not traceable: the program asks for an io_uring, whose writes pass by every system call."""

import ctypes
import json
import os
import sys

import toy

IO_URING_SETUP = 425  # the same number on x86_64 and aarch64
root = sys.argv[1]
parameters = ctypes.create_string_buffer(120)
ring = ctypes.CDLL(None, use_errno=True).syscall(IO_URING_SETUP, 4, parameters)
if ring >= 0:
    os.close(ring)
path = os.path.join(root, "state.json")
state = toy.fresh()
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 4:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 2 == 0:
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
