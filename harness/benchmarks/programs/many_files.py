"""A correct trainer whose checkpoint has as many files, and as large ones, as it is told.

    python many_files.py DIRECTORY FILES SIZE_BYTES STEPS [torch]

Each step saves: every file into a temporary directory, synced, then a manifest, a rename, and the
pointer. A start verifies the checkpoint that the pointer names and goes on from it. With ``torch``
that is imported first, which is what the start of a trainer mostly is.
"""

import hashlib
import importlib
import json
import os
import sys

PIECE_BYTES = 8 << 20


def sync(path: str) -> None:
    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)


def write(path: str, data: bytes) -> None:
    with open(path, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def write_large(path: str, step: int, number: int, size_bytes: int) -> str:
    """A file of ``size_bytes`` that only this step has; its sha256."""
    digest = hashlib.sha256()
    block = bytearray(hashlib.shake_128(f"{step} {number}".encode()).digest(min(size_bytes, 4096)))
    block *= max(1, min(PIECE_BYTES, size_bytes) // len(block))
    done = 0
    with open(path, "wb", buffering=0) as file:
        while done < size_bytes:
            block[:8] = done.to_bytes(8, "little")  # no two pieces are alike
            piece = memoryview(block)[: size_bytes - done]
            digest.update(piece)
            done += file.write(piece)
        os.fsync(file.fileno())
    return digest.hexdigest()


def save(root: str, step: int, files: int, size_bytes: int) -> None:
    name = f"step-{step}"
    staging = os.path.join(root, f"{name}.tmp")
    os.makedirs(staging, exist_ok=True)
    manifest = {
        f"part-{number}": write_large(
            os.path.join(staging, f"part-{number}"), step, number, size_bytes
        )
        for number in range(files)
    }
    write(os.path.join(staging, "manifest"), json.dumps(manifest).encode())
    sync(staging)
    target = os.path.join(root, name)
    if not os.path.exists(target):
        os.rename(staging, target)
    sync(root)
    write(os.path.join(root, "latest.tmp"), name.encode())
    os.rename(os.path.join(root, "latest.tmp"), os.path.join(root, "latest"))
    sync(root)


def verified(root: str) -> int:
    """The step that the pointer names, verified; 0 without a pointer."""
    try:
        with open(os.path.join(root, "latest"), encoding="utf-8") as file:
            name = file.read()
    except FileNotFoundError:
        return 0
    directory = os.path.join(root, name)
    with open(os.path.join(directory, "manifest"), encoding="utf-8") as file:
        manifest = json.load(file)
    for part, digest in sorted(manifest.items()):
        with open(os.path.join(directory, part), "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise SystemExit(f"{directory}/{part} is damaged")
    return int(name.partition("-")[2])


def main() -> None:
    root = sys.argv[1]
    if sys.argv[5:] == ["torch"]:
        importlib.import_module("torch")
    files, size_bytes, steps = (int(word) for word in sys.argv[2:5])
    for step in range(verified(root) + 1, steps + 1):
        print(f"step={step} loss={1 / step!r}", flush=True)
        save(root, step, files, size_bytes)
        print(f"saved step={step}", flush=True)


if __name__ == "__main__":
    main()
