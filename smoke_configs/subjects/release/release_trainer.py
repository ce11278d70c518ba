"""Train a checkpoint and release it in three forms, going on from whatever is there.

    python release_trainer.py --artifacts DIR [--forms f32,bf16,int4]

A release is never changed, so this program never makes one twice: a version that exists must
verify, and is passed over. One that does not verify is a failure that no resume can mend; that is
what a fault must never leave behind.

Before each release it prints the loss of a training step, and after it that it is done, so that a
release which is lost after it was promised shows as going on from before it.
"""

import argparse
import json
import os
import sys
from pathlib import Path

import tinyllm
from tinyllm.cli import main as tinyllm_command
from tinyllm.verification import verify_directory

EXAMPLE = Path(__file__).resolve().parents[2] / "release"
STEPS = 3
FORMS = ("f32", "bf16", "int4")
INPUTS = ("--card", "MODEL_CARD.md", "--ledger", "ledger.json", "--evals", "summary.json")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--artifacts", type=Path, required=True)
    parser.add_argument("--forms", default=",".join(FORMS), help="only these, in this order")
    arguments = parser.parse_args()
    artifacts: Path = arguments.artifacts
    os.environ.setdefault("TINYLLM_GIT_SHA", "0" * 40)
    code = train(artifacts)
    for number, form in enumerate(arguments.forms.split(","), start=1):
        version = artifacts / "models" / "smoke" / f"{number}-{form}"
        if code or os.path.lexists(version):
            code = code or verified(version)
            continue
        print(f"step={number} loss={loss(artifacts, number)}", flush=True)
        code = release(artifacts, version.name, form)
        if code == 0:
            print(f"released step={number}", flush=True)
    return code


def train(artifacts: Path) -> int:
    """The checkpoint of the last step; nothing when it is there already."""
    words = ["train", str(EXAMPLE / "train.json"), "--artifacts", str(artifacts), "--run-id", "r"]
    return tinyllm_command([*words, "--resume"])


def loss(artifacts: Path, step: int) -> str:
    """The loss of a training step, as its bits."""
    lines = (artifacts / "runs" / "r" / "progress.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return next(
        row["loss_bits"] for row in rows if (row["kind"], row.get("step")) == ("step", step)
    )


def release(artifacts: Path, version: str, form: str) -> int:
    """``tinyllm release``; with int4 also a head and a chat template."""
    words = ["release", "--artifacts", str(artifacts), "--run-id", "r", "--step", str(STEPS)]
    words += ["--model-id", "smoke", "--version", version, "--dtype", form]
    words += [word if word.startswith("--") else str(EXAMPLE / word) for word in INPUTS]
    if form == "int4":
        words += ["--head", str(EXAMPLE / "head.json")]
        words += ["--chat-template", str(EXAMPLE / "chat_template.jinja")]
    return tinyllm_command(words)


def verified(version: Path) -> int:
    """0 when the release is complete, else 1 and why."""
    verdict = verify_directory(str(version))
    if verdict.verifies:
        return 0
    print(f"{version} does not verify: {verdict.why()}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    assert tinyllm.PRELOAD, "tinyllm is not installed"
    sys.exit(main())
