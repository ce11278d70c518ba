"""Correct: nothing is synced and nothing is promised; what is read is verified, or an older one is.

It may lose everything in a power loss. It says nothing about what is safe, and never goes on from
anything but one whole checkpoint.
"""

import hashlib
import json
import os
import re
import sys

import toy

root = sys.argv[1]


def candidates() -> list[str]:
    found = {int(m[1]): n for n in os.listdir(root) if (m := re.fullmatch(r"s(\d+)\.json", n))}
    return [found[step] for step in sorted(found, reverse=True)]


def load() -> dict:
    for name in candidates():
        with open(os.path.join(root, name), "rb") as file:
            digest, _, body = file.read().partition(b"\n")
        if hashlib.sha256(body).hexdigest().encode() == digest:
            return json.loads(body)
        print(f"{name} is damaged, looking for an older one", file=sys.stderr)
    return toy.fresh()


state = load()
while state["step"] < 6:
    print(f"step={state['step'] + 1} loss={toy.advance(state)!r}", flush=True)
    if state["step"] % 3 == 0:
        body = json.dumps(state).encode()
        path = os.path.join(root, f"s{state['step']}.json")
        with open(path + ".tmp", "wb") as file:
            file.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(path + ".tmp", path)
with open(os.path.join(root, "final.json"), "w") as file:
    json.dump(state["weights"], file)
