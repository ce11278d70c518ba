"""Where tinyllm puts what, below the tree under test."""

RUN_ID = "run"
RUN = f"runs/{RUN_ID}"
PROGRESS = f"{RUN}/progress.jsonl"
CKPT = f"{RUN}/ckpt"
