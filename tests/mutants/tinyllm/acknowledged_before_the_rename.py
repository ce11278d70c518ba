"""The acknowledgement is written when the files are, before they have their name."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tinyllm import trainer, writer
from tinyllm.cli import main
from tinyllm.writer import Save, Snapshot

BREAKS = "ack-after-durable"
LAYERS = ("kill",)


real_save, real_publish = writer.save_checkpoint, writer.publish_step


def too_early(
    ckpt_dir: Path, snapshot: Snapshot, *, announce: Callable[[int], None], **more: Any
) -> None:
    def publish(save: Save) -> None:
        announce(snapshot.step)
        real_publish(save)

    writer.publish_step = publish
    real_save(ckpt_dir, snapshot, announce=lambda step: None, **more)


if __name__ == "__main__":
    trainer.save_checkpoint = too_early
    raise SystemExit(main())
