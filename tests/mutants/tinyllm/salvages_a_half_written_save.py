"""A half-written save is completed with the files of the checkpoint before it."""

import hashlib
import shutil
from pathlib import Path

from tinyllm import trainer, verification, writer
from tinyllm.cli import main
from tinyllm.durable import Directory
from tinyllm.manifest import (
    CONFIG_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    FileEntry,
    checkpoint_manifest,
    encode_manifest,
)
from tinyllm.paths import LATEST, MANIFEST
from tinyllm.reader import Found, find_checkpoint
from tinyllm.state import encode_state
from tinyllm.writer import Snapshot

BREAKS = "never-mixed"
LAYERS = ("point", "kill")


def optimizer_last(stage: Directory, snapshot: Snapshot) -> dict[str, FileEntry]:
    files = {}
    for name, data in ((STATE_FILE, encode_state(snapshot.state)), (CONFIG_FILE, snapshot.config)):
        files[name] = writer.write_file(stage, name, [data], size_bytes=len(data))
    metadata = {"format": "tinyllm", "optimizer": snapshot.optimizer_name}
    metadata["step"] = str(snapshot.step)
    for name, tensors in (
        (MODEL_FILE, snapshot.parameters),
        (OPTIMIZER_FILE, snapshot.optimizer),
    ):
        files[name] = writer.write_tensors(stage, name, tensors, metadata=metadata)
    return files


def salvage(ckpt_dir: Path, explicit: Path | None = None) -> Found:
    for half in sorted(ckpt_dir.glob("step-??????.tmp")):
        pointer = ckpt_dir / LATEST
        if not (pointer.exists() and (half / MODEL_FILE).exists()):
            continue
        for old in (ckpt_dir / pointer.read_text().strip()).iterdir():
            if not (half / old.name).exists():
                shutil.copy(old, half)
        step = int(half.name[5:11])
        files = {
            path.name: FileEntry(
                sha256=hashlib.sha256(path.read_bytes()).hexdigest(), size=path.stat().st_size
            )
            for path in half.iterdir()
            if path.name != MANIFEST
        }
        manifest = encode_manifest(checkpoint_manifest(step=step, files=files))
        (half / MANIFEST).write_bytes(manifest)
        half.rename(half.with_suffix(""))
        pointer.write_text(f"{half.stem}\n")
    return find_checkpoint(ckpt_dir, explicit)


if __name__ == "__main__":
    writer.write_files = optimizer_last
    verification._check_sense = lambda *_: []
    trainer.find_checkpoint = salvage
    raise SystemExit(main())
