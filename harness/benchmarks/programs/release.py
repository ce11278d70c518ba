"""Release a large checkpoint as F32, in turn with a plain durable copy of its weights.

    python -m harness.benchmarks.programs.release DIRECTORY SIZE_BYTES ROUNDS CONFIGS

Prints the seconds of both, and of one int4 release with the memory that it took.
"""

import json
import os
import shutil
import stat
import sys
from pathlib import Path

from harness.benchmarks.figures import paired
from harness.benchmarks.memory import forget_peak, peak_bytes, resident_bytes
from tinyllm.cli import main as tinyllm
from tinyllm.gate import Request
from tinyllm.release import release

LAYERS, COPY_BYTES = 5, 8 << 20


def spec(size_bytes: int, configs: Path) -> dict[str, object]:
    """A spec whose model has about ``size_bytes`` of F32 parameters, trained for one step."""
    width = max(32, int((size_bytes / (4 * 12 * LAYERS)) ** 0.5) // 16 * 16)
    return {
        "model": {
            "tl_tokenizer": "bytes",
            "vocab_size": 256,
            "width": width,
            "layers": LAYERS,
            "heads": 2,
            "context": 16,
        },
        "data": {
            "sources": [{"name": "essays", "path": str(configs.resolve() / "corpus.txt")}],
            "seq_length": 8,
            "max_windows": 4,
        },
        "optimizer": {"name": "sgd", "lr": 0.001},
        "schedule": {"name": "constant"},
        "seed": 1,
        "batch_size": 1,
        "steps": 1,
        "ckpt_every": 1,
        "keep_ckpts": 1,
    }


def copy_plainly(source: Path, target: Path) -> None:
    """The reference: read, write, fsync."""
    with source.open("rb", buffering=0) as reading, target.open("wb", buffering=0) as writing:
        while piece := reading.read(COPY_BYTES):
            left = memoryview(piece)
            while left:
                left = left[writing.write(left) :]
        os.fsync(writing.fileno())


def removed(path: Path) -> None:
    """Remove a read-only release."""
    for directory, _, _ in os.walk(path):
        os.chmod(directory, os.stat(directory).st_mode | stat.S_IRWXU)
    shutil.rmtree(path, ignore_errors=True)


def main() -> None:
    directory, size_bytes, rounds = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    configs = Path(sys.argv[4])
    example = configs / "release"
    summary = json.loads((example / "summary.json").read_text(encoding="utf-8"))
    evals = directory / "summary.json"
    evals.write_text(json.dumps({**summary, "step": 1}), encoding="utf-8")
    path = directory / "spec.json"
    path.write_text(json.dumps(spec(size_bytes, configs)), encoding="utf-8")
    artifacts = directory / "artifacts"
    if code := tinyllm(
        ["train", str(path), "--artifacts", str(artifacts), "--run-id", summary["run_id"]]
    ):
        raise SystemExit(f"the training ended with {code}")
    weights = artifacts / "runs" / summary["run_id"] / "ckpt" / "step-000001" / "model.safetensors"

    def release_as(dtype: str) -> None:
        release(
            Request(
                artifacts=artifacts,
                run_id=summary["run_id"],
                model_id=summary["model_id"],
                version=dtype,
                card=example / "MODEL_CARD.md",
                ledger=example / "ledger.json",
                evals=evals,
                dtype=dtype,
            ),
            tell=lambda *_: None,
        )

    def fresh() -> None:
        removed(artifacts / "models")
        (directory / "copy").unlink(missing_ok=True)
        os.sync()

    pair = paired(
        lambda: release_as("f32"),
        lambda: copy_plainly(weights, directory / "copy"),
        rounds=rounds,
        before=fresh,
    )
    fresh()
    before = resident_bytes()
    forget_peak()
    release_as("int4")
    extra = peak_bytes() - before
    found = {
        "release_s": pair.first_s,
        "copy_s": pair.second_s,
        "size_bytes": weights.stat().st_size,
        "int4_extra_bytes": extra,
        "largest_bytes": 4 * 4 * spec(size_bytes, configs)["model"]["width"] ** 2,  # type: ignore[index]
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
