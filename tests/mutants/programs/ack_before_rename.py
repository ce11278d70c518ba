"""Broken: the checkpoint is announced when its bytes are safe, but before it has its name."""

import json
import os
import sys

import toy


def main() -> None:
    os.chdir(sys.argv[1])
    state = toy.fresh()
    if os.path.exists("ckpt.json"):
        with open("ckpt.json") as file:
            state = json.load(file)
    here = os.open(".", os.O_RDONLY)
    while state["step"] < 9:
        print(json.dumps({"iteration": state["step"] + 1, "loss": toy.advance(state)}), flush=True)
        if state["step"] % 3 == 0:
            with open("ckpt.json.tmp", "w") as file:
                json.dump(state, file)
                file.flush()
                os.fsync(file.fileno())
            print(json.dumps({"checkpoint": state["step"]}), flush=True)
            os.rename("ckpt.json.tmp", "ckpt.json")
            os.fsync(here)
    with open("final.json", "w") as file:
        json.dump(state["weights"], file)


main()
