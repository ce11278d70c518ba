"""Broken: float32 weights are kept as float16, one silent rounding at every resume."""

import os
import sys

import numpy as np


def save(root: str, step: int, w: np.ndarray, m: np.ndarray) -> None:
    blob = np.int64(step).tobytes() + w.astype(np.float16).tobytes() + m.tobytes()
    fd = os.open(f"{root}/ckpt.tmp", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o644)
    os.write(fd, blob)
    os.fsync(fd)
    os.close(fd)
    os.rename(f"{root}/ckpt.tmp", f"{root}/ckpt.bin")
    fd = os.open(root, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def load(root: str) -> tuple[int, np.ndarray, np.ndarray]:
    try:
        with open(f"{root}/ckpt.bin", "rb") as file:
            blob = file.read()
    except FileNotFoundError:
        return 0, np.linspace(-1, 1, 8, dtype=np.float32), np.zeros(8, np.float32)
    step = int(np.frombuffer(blob, np.int64, 1)[0])
    w = np.frombuffer(blob, np.float16, 8, 8).astype(np.float32)
    return step, w, np.frombuffer(blob, np.float32, 8, 24).copy()


root = sys.argv[1]
step, w, m = load(root)
x = np.sin(np.arange(96, dtype=np.float32)).reshape(12, 8)
while step < 12:
    error = np.float32(x[step] @ w - np.float32(0.3))
    m = np.float32(0.9) * m + error * x[step]
    w = w - np.float32(0.02) * m
    step += 1
    print(f"step={step} loss={float(error * error):.9g}", flush=True)
    if step % 4 == 0:
        save(root, step, w, m)
        print(f"saved step={step}", flush=True)
if not os.path.exists(f"{root}/final.f32"):
    w.tofile(f"{root}/final.f32")
