"""The directories above the checkpoints are made and never synced."""

import os
from typing import Any

from tinyllm import trainer
from tinyllm.cli import main

BREAKS = ("no-lost-ack", "no-silent-restart")
LAYERS = ("power/posix",)
SILENT = ("point", "kill", "power/ext4", "power/xfs")


def only_made(path: str, **more: Any) -> None:
    os.makedirs(path, exist_ok=True)


if __name__ == "__main__":
    trainer.make_durable_directories = only_made
    raise SystemExit(main())
