"""Broken: the learning rate's schedule counts from the start of the process, not of the run."""

import os
import pickle
import sys
from dataclasses import dataclass, field

TOTAL = 12


@dataclass
class Schedule:
    peak: float = 0.3
    warmup: int = 3
    taken: int = 0

    def next_rate(self) -> float:
        self.taken += 1
        if self.taken <= self.warmup:
            return self.peak * self.taken / self.warmup
        return self.peak * (TOTAL - self.taken + 1) / (TOTAL - self.warmup)


@dataclass
class Model:
    done: int = 0
    w: list[float] = field(default_factory=lambda: [0.0, 0.0])

    def step(self, rate: float) -> float:
        self.done += 1
        x = (self.done * 37 % 11) / 11 - 0.5
        error = self.w[0] * x + self.w[1] - (1.5 * x - 0.25)
        self.w[0] -= rate * error * x
        self.w[1] -= rate * error
        return error * error


def main() -> None:
    root = sys.argv[1]
    path = f"{root}/model.pickle"
    model, schedule = Model(), Schedule()
    if os.path.exists(path):
        with open(path, "rb") as file:
            model.done, model.w = pickle.load(file)
    while model.done < TOTAL:
        loss = model.step(schedule.next_rate())
        print(f"step={model.done} loss={loss!r}", flush=True)
        if model.done % 4 == 0:
            with open(f"{path}.tmp", "wb") as file:
                pickle.dump((model.done, model.w), file)
                file.flush()
                os.fsync(file.fileno())
            os.rename(f"{path}.tmp", path)
            folder = os.open(root, os.O_RDONLY)
            os.fsync(folder)
            os.close(folder)
            print(f"saved step={model.done}", flush=True)
    with open(f"{root}/final.pickle", "wb") as file:
        pickle.dump(model.w, file)


main()
