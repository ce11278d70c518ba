"""Final artifacts: which files a subject's globs name, and digests by which they are compared.

``bytes`` compares whole files. ``tensors`` compares .safetensors, .npz, .npy and .pt files by
their tensors' names, dtypes, shapes and bits, since some formats carry bytes of no meaning.
"""

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from harness.errors import UsageError

TENSOR_SUFFIXES = (".safetensors", ".npz", ".npy", ".pt")


def matching(root: Path, globs: tuple[str, ...]) -> dict[str, list[str]]:
    """For each glob its regular files, as sorted paths relative to ``root``."""
    found = {}
    for glob in globs:
        paths = (p for p in root.glob(glob) if p.is_file() and not p.is_symlink())
        found[glob] = sorted(
            os.fsencode(p.relative_to(root)).decode("utf-8", "surrogateescape") for p in paths
        )
    return found


def digests(root: Path, globs: tuple[str, ...], *, compare: str) -> dict[str, str]:
    """sha256 (hex) by relative path of every file that the globs name."""
    paths = sorted({p for found in matching(root, globs).values() for p in found})
    digest = file_digest if compare == "bytes" else tensor_digest
    return {path: digest(root / path) for path in paths}


def file_digest(path: Path) -> str:
    """sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tensor_digest(path: Path) -> str:
    """sha256 over (name, dtype, shape, bytes) of each tensor in name order.

    A file that does not parse has a digest of its own, different from every readable file's.
    Raises :class:`UsageError` for a suffix that holds no tensors.
    """
    if path.suffix not in TENSOR_SUFFIXES:
        raise UsageError(
            f'{path.name}: compare = "tensors" reads {", ".join(TENSOR_SUFFIXES)}; '
            'use compare = "bytes" for other files'
        )
    total = hashlib.sha256()
    try:
        for name, array in _tensors(path):
            total.update(f"{name}\0{array.dtype.str}\0{array.shape}\0".encode())
            total.update(np.ascontiguousarray(array).tobytes())
    except Exception as error:  # any parser's error means the same here: it is not readable
        return f"unreadable: {type(error).__name__}"
    return total.hexdigest()


def _tensors(path: Path) -> Iterator[tuple[str, Any]]:
    if path.suffix == ".npy":
        yield "", np.load(path, allow_pickle=False)
    elif path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            for name in sorted(archive.files):
                yield name, archive[name]
    elif path.suffix == ".safetensors":
        yield from _safetensors(path)
    else:
        yield from _torch_tensors(path)


def _safetensors(path: Path) -> Iterator[tuple[str, Any]]:
    from safetensors import deserialize

    tensors = deserialize(path.read_bytes())  # type: ignore[no-untyped-call]
    for name, entry in sorted(tensors, key=lambda item: str(item[0])):
        raw = np.frombuffer(entry["data"], dtype=np.uint8)
        yield f"{name}\0{entry['dtype']}\0{entry['shape']}", raw


def _torch_tensors(path: Path) -> Iterator[tuple[str, Any]]:
    import torch

    loaded = torch.load(io.BytesIO(path.read_bytes()), weights_only=True, map_location="cpu")
    for name, value in sorted(_flatten("", loaded)):
        if isinstance(value, torch.Tensor):
            raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
            yield f"{name}\0{value.dtype}\0{tuple(value.shape)}", raw
        else:
            yield f"{name}\0{value!r}", np.zeros(0, dtype=np.uint8)


def _flatten(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key in value:
            yield from _flatten(f"{prefix}/{key}", value[key])
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _flatten(f"{prefix}/{index}", item)
    else:
        yield prefix, value
