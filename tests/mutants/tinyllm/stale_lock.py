"""The lock is a file that must not exist, so a killed run locks itself out."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tinyllm import trainer
from tinyllm.cli import main
from tinyllm.errors import LockHeld

BREAKS = "resumable"
LAYERS = ("point", "kill")


@contextmanager
def by_existence(run_dir: Path) -> Iterator[None]:
    path = run_dir / "lock"
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        raise LockHeld(f"{path} exists") from None
    yield
    path.unlink()


if __name__ == "__main__":
    trainer.run_lock = by_existence
    raise SystemExit(main())
