"""The oldest checkpoint is deleted before the new one is saved."""

from pathlib import Path
from typing import Any

from tinyllm import trainer, writer
from tinyllm.cli import main
from tinyllm.durable import open_directory
from tinyllm.reader import list_directory
from tinyllm.retention import Line, retire
from tinyllm.writer import Snapshot

BREAKS = "retention"
LAYERS = ("point", "kill")


real = writer.save_checkpoint


def room_first(ckpt_dir: Path, snapshot: Snapshot, *, line: Line, **more: Any) -> None:
    with open_directory(str(ckpt_dir)) as ckpt:
        listing = list_directory(ckpt)
        if len(listing.steps) > 1:
            retire(ckpt, set(listing.names), newest=listing.steps[-1], keep=1, line=line)
    real(ckpt_dir, snapshot, line=line, **more)


if __name__ == "__main__":
    trainer.save_checkpoint = room_first
    raise SystemExit(main())
