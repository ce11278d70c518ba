"""Where tinyllm puts what, below the tree under test."""

RUN_ID = "run"
RUN = f"runs/{RUN_ID}"
PROGRESS = f"{RUN}/progress.jsonl"
CKPT = f"{RUN}/ckpt"
LATEST = f"{CKPT}/LATEST"
STEP_FILES = f"{CKPT}/step-{'[0-9]' * 6}/**/*"
