"""A small PyTorch trainer whose checkpoints survive a kill and a power loss.

    python train.py --out DIR [--resume]

A two-layer network with dropout, AdamW and a linear schedule, saved with ``torch.save``. With
``--resume`` it goes on from the newest checkpoint in DIR; a DIR without one is a fresh start.
Two checkpoints are kept.
"""

import argparse
import os
import re
from pathlib import Path

import torch
from torch import nn

STEPS, SAVE_EVERY, KEEP, BATCH = 10, 3, 2, 8


def checkpoints(out: Path) -> list[Path]:
    """The finished checkpoints, oldest first, by number: "step-9" is before "step-10"."""
    found = [
        (int(m[1]), p) for p in out.iterdir() if (m := re.fullmatch(r"step-(\d+)\.pt", p.name))
    ]
    return [path for _, path in sorted(found)]


def sync_directory(path: Path) -> None:
    """Make the names in a directory durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def save(out: Path, step: int, parts: dict[str, nn.Module | torch.optim.Optimizer]) -> None:
    """Write one checkpoint; the order of these lines is what makes it safe."""
    state = {name: part.state_dict() for name, part in parts.items()}
    state |= {"step": step, "rng": torch.get_rng_state()}
    temporary = out / "writing.tmp"
    with temporary.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    temporary.rename(out / f"step-{step}.pt")
    sync_directory(out)
    print(f"saved step={step}", flush=True)
    for old in checkpoints(out)[:-KEEP]:  # only now that the newer one is durable
        old.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the run's directory")
    parser.add_argument("--resume", action="store_true", help="go on from the newest checkpoint")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(0)
    x = torch.randn(STEPS * BATCH, 6)
    y = x.sin().sum(dim=1, keepdim=True)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
    done = 0

    kept = checkpoints(arguments.out) if arguments.resume else []
    if kept:
        state = torch.load(kept[-1], weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        done = state["step"]
        # Last: what comes before may have drawn from the generator.
        torch.set_rng_state(state["rng"])

    for step in range(done + 1, STEPS + 1):
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * (1 - (step - 1) / STEPS)
        rows = slice((step - 1) * BATCH, step * BATCH)
        loss = (model(x[rows]) - y[rows]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(f"step={step} loss={loss.item():.9g}", flush=True)
        if step % SAVE_EVERY == 0 or step == STEPS:
            save(arguments.out, step, {"model": model, "optimizer": optimizer})

    torch.save(model.state_dict(), arguments.out / "final.pt")


if __name__ == "__main__":
    main()
