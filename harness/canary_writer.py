"""The canary: a trainer whose checkpoint writer is wrong on purpose.

It overwrites its only checkpoint in place and syncs nothing, so that a kill between the truncation
and the write, and every power loss, destroys it. A run whose canary is not caught proves nothing.

Run as ``python -m harness.canary_writer DIR``.
"""

import json
import os
import sys

from fault_injection.points import point

STEPS, SAVE_EVERY = 6, 2


def main(root: str) -> None:
    """Train ``STEPS`` steps in ``root``, going on from its checkpoint when there is one."""
    path = os.path.join(root, "state.json")
    state = {"step": 0, "weight": 1.0}
    if os.path.exists(path):
        with open(path, encoding="utf-8") as file:
            state = json.load(file)
    while state["step"] < STEPS:
        state = {"step": state["step"] + 1, "weight": state["weight"] * 0.75 + 0.125}
        print(f"step={state['step']} loss={state['weight']!r}", flush=True)
        if state["step"] % SAVE_EVERY == 0:
            with open(path, "w", encoding="utf-8") as file:
                point("canary.truncated")
                json.dump(state, file)
            print(f"saved step={state['step']}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
