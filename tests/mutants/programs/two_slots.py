"""Correct: two slots that take turns, each with a generation number and a checksum over all of it.

The older slot is overwritten in place; whatever becomes of it, the other one is whole.
"""

import json
import os
import sys
import zlib

import toy

root = sys.argv[1]


def read(slot: int) -> tuple[int, int, dict] | None:
    try:
        with open(f"{root}/slot{slot}", "rb") as file:
            check, _, body = file.read().partition(b"\n")
        if check != b"%08x" % zlib.crc32(body):
            return None
        generation, state = json.loads(body)
    except (FileNotFoundError, ValueError):
        return None
    return generation, slot, state


def write(slot: int, generation: int, state: dict) -> None:
    body = json.dumps([generation, state]).encode()
    fd = os.open(f"{root}/slot{slot}", os.O_RDWR)
    data = b"%08x\n%s" % (zlib.crc32(body), body)
    os.pwrite(fd, data, 0)
    os.ftruncate(fd, len(data))
    os.fsync(fd)
    os.close(fd)


def sync(path: str, flags: int) -> None:
    fd = os.open(path, flags, 0o644)
    os.fsync(fd)
    os.close(fd)


for number in (0, 1):  # what a killed run left in the page cache must not be built upon unsynced
    sync(f"{root}/slot{number}", os.O_RDWR | os.O_CREAT)
sync(root, os.O_RDONLY)

slots = [found for slot in (0, 1) if (found := read(slot)) is not None]
generation, slot, state = max(slots, key=lambda s: s[0]) if slots else (0, 1, toy.fresh())
while state["step"] < 12:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        generation, slot = generation + 1, 1 - slot
        write(slot, generation, state)
        print(f"saved step={state['step']}", flush=True)
with open(f"{root}/final.json", "w") as file:
    json.dump(state["weights"], file)
