"""Correct: a forked child writes its copy of the memory, and is waited for before the words."""

import os
import pickle
import sys

import toy

root = sys.argv[1]
path = os.path.join(root, "state.pkl")


def write(state):
    fd = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.write(fd, pickle.dumps(state))
    os.fsync(fd)
    os.close(fd)
    os.rename(path + ".tmp", path)
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def save(state):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            write(state)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if status != 0:
        sys.exit("the writer failed")
    os.write(1, b"saved step=%d\n" % state["step"])


state = toy.fresh()
if os.path.exists(path):
    with open(path, "rb") as file:
        state = pickle.load(file)
while state["step"] < 9:
    loss = toy.advance(state)
    os.write(1, b"step=%d loss=%s\n" % (state["step"], repr(loss).encode()))
    if state["step"] % 3 == 0:
        save(state)
with open(os.path.join(root, "final.pkl"), "wb") as file:
    pickle.dump(state["weights"], file)
