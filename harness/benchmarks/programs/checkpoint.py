"""Save and verify a large checkpoint, each in turn with its reference; prints the seconds.

python -m harness.benchmarks.programs.checkpoint DIRECTORY SIZE_BYTES ROUNDS
"""

import hashlib
import json
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from harness.benchmarks.figures import paired
from harness.benchmarks.memory import forget_peak, peak_bytes, resident_bytes
from tinyllm.retention import Line
from tinyllm.state import Cursor, GeneratorState, TrainerState
from tinyllm.tensors import lay_out, pieces
from tinyllm.verification import verify_directory
from tinyllm.writer import Snapshot, save_checkpoint

TENSORS = 24
# Saves of a second are few against a disk whose own pauses take one: a median of five is luck.
SAVES_A_ROUND = 3
PIECE_BYTES = 8 << 20
CONFIG = (
    b'{"tl_tokenizer": "bytes", "vocab_size": 256, "width": 32, "layers": 1, "heads": 2, '
    b'"context": 32}'
)


def snapshot(size_bytes: int) -> Snapshot:
    """A model and its AdamW state, ``size_bytes`` together, of random numbers."""
    rows = max(1, size_bytes // (3 * 4 * TENSORS * 256))
    torch.manual_seed(0)
    names = [f"layer{n:02d}.weight" for n in range(TENSORS)]
    parameters = [(name, torch.randn(rows, 256)) for name in names]
    states = [
        (f"{name}.{kind}", torch.randn(rows, 256))
        for name in names
        for kind in ("exp_avg", "exp_avg_sq")
    ]
    state = TrainerState(
        step=1,
        tokens_seen=1,
        cursor=Cursor(epoch=0, next_window=1),
        generator=GeneratorState(state="1", increment="1"),
        lr=0.001,
        spec_sha256="0" * 64,
        git_sha=None,
    )
    return Snapshot(
        step=1,
        parameters=parameters,
        optimizer=states,
        optimizer_name="adamw",
        config=CONFIG,
        tokenizer=None,
        generation_config=None,
        state=state,
    )


def write_plainly(path: Path, content: Snapshot) -> None:
    """The reference: the same tensors' bytes, one file, one loop of writes, one fsync."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    try:
        for tensors in (content.parameters, content.optimizer):
            for piece in pieces(lay_out(tensors, metadata={})):
                done = 0
                while done < len(piece):
                    done += os.write(fd, piece[done : done + PIECE_BYTES])
        os.fsync(fd)
    finally:
        os.close(fd)


def save(ckpt: Path, content: Snapshot) -> None:
    """A durable save, as the trainer makes it."""
    save_checkpoint(ckpt, content, keep_ckpts=1, announce=lambda _: None, line=Line())


def hash_side_by_side(step: Path) -> list[str]:
    """The reference of a verification: sha256 of the same files, a file a core."""

    def digest(path: Path) -> str:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(digest, sorted(step.iterdir())))


def verify(step: Path) -> None:
    """A verification, which must find nothing."""
    verdict = verify_directory(str(step))
    if not verdict.verifies:
        raise SystemExit(f"{step} does not verify: {verdict.why()}")


def main() -> None:
    directory, size_bytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    ckpt, plain = directory / "ckpt", directory / "plain"
    small = directory / "small"
    small.mkdir()
    save(small, snapshot(1 << 20))  # what a first save imports is no part of a save
    content = snapshot(size_bytes)

    def fresh() -> None:
        plain.unlink(missing_ok=True)
        shutil.rmtree(ckpt, ignore_errors=True)
        ckpt.mkdir()
        os.sync()

    saves = paired(
        lambda: save(ckpt, content),
        lambda: write_plainly(plain, content),
        rounds=SAVES_A_ROUND * rounds,
        before=fresh,
        warm_up=True,
    )
    fresh()
    before_bytes = resident_bytes()
    forget_peak()
    save(ckpt, content)
    extra_bytes = peak_bytes() - before_bytes
    step = ckpt / "step-000001"
    verify(step)
    verifications = paired(lambda: verify(step), lambda: hash_side_by_side(step), rounds=rounds)
    found = {
        "save_s": saves.first_s,
        "plain_s": saves.second_s,
        "extra_bytes": extra_bytes,
        "verify_s": verifications.first_s,
        "hash_s": verifications.second_s,
        "size_bytes": sum(path.stat().st_size for path in step.iterdir()),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
