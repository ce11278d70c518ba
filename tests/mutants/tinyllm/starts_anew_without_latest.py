"""LATEST is removed, then written anew; without it a run begins from nothing."""

import os
from pathlib import Path

from tinyllm import trainer, writer
from tinyllm.cli import main
from tinyllm.paths import LATEST
from tinyllm.reader import Found, find_checkpoint
from tinyllm.writer import Save

BREAKS = "no-silent-restart"
LAYERS = ("point", "kill")


real = writer.replace_pointer


def removed_first(save: Save) -> None:
    if LATEST in save.names:
        os.unlink(LATEST, dir_fd=save.ckpt.fd)
        writer.point("save.pointer-synced")
    real(save)


def only_by_latest(ckpt_dir: Path, explicit: Path | None = None) -> Found:
    if not (ckpt_dir / LATEST).exists():
        return Found(None, (), (), (), (), "", False)
    return find_checkpoint(ckpt_dir, explicit)


if __name__ == "__main__":
    writer.replace_pointer = removed_first
    trainer.find_checkpoint = only_by_latest
    raise SystemExit(main())
