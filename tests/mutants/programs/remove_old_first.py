"""Broken: to save space the old checkpoint is removed before the new one has its name."""

import os
import pickle
import sys
from pathlib import Path

import toy


class Trainer:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.current = folder / "model.pkl"
        self.state = toy.fresh()

    def restore(self) -> None:
        if self.current.exists():
            self.state = pickle.loads(self.current.read_bytes())

    def save(self) -> None:
        self.current.unlink(missing_ok=True)
        fresh_copy = self.folder / "model.pkl.new"
        with fresh_copy.open("wb") as out:
            pickle.dump(self.state, out, protocol=4)
            out.flush()
            os.fsync(out.fileno())
        fresh_copy.rename(self.current)
        handle = os.open(self.folder, os.O_DIRECTORY)
        os.fsync(handle)
        os.close(handle)
        print(f"saved step={self.state['step']}", flush=True)

    def fit(self, steps: int) -> None:
        while self.state["step"] < steps:
            loss = toy.advance(self.state)
            print(f"step={self.state['step']} loss={loss:.17g}", flush=True)
            if self.state["step"] % 3 == 0:
                self.save()


trainer = Trainer(Path(sys.argv[1]))
trainer.restore()
trainer.fit(9)
(trainer.folder / "final.pkl").write_bytes(pickle.dumps(trainer.state["weights"], protocol=4))
