"""The arithmetic that many of these programs train with: a least-squares fit in pure Python.

The state is plain data, so that a program can keep it in any format. A step uses the data cursor,
the generator, the momentum and the learning rate: forget one on a resume and the next loss shows
it. Nothing here touches a disk.
"""

ROWS = [((0.3 * i) % 1.0 - 0.5, (0.7 * i) % 1.0 - 0.5, 1.0) for i in range(1, 8)]


def fresh() -> dict:
    """The state before the first step."""
    return {
        "step": 0,
        "weights": [0.5, -0.25, 0.125],
        "momentum": [0.0, 0.0, 0.0],
        "cursor": 0,
        "generator": 20_011,
        "rate": 0.2,
    }


def advance(state: dict) -> float:
    """Train one step in place and return its loss."""
    state["generator"] = (state["generator"] * 1_103_515_245 + 12_345) % 2**31
    noise = state["generator"] / 2**31 - 0.5
    row = ROWS[state["cursor"] % len(ROWS)]
    target = 0.7 * row[0] - 0.4 * row[1] + 0.1 + 0.05 * noise
    error = sum(w * x for w, x in zip(state["weights"], row, strict=True)) - target
    for i, x in enumerate(row):
        state["momentum"][i] = 0.8 * state["momentum"][i] + error * x
        state["weights"][i] -= state["rate"] * state["momentum"][i]
    state["cursor"] += 1
    state["rate"] *= 0.97
    state["step"] += 1
    return error * error
