"""Reading safetensors files through descriptors that are already open and verified.

The library wants a path; ``/proc/self/fd/<n>`` gives it the very file that was hashed, even when
its name is gone by now. torch is imported only where tensors are made.
"""

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from safetensors import SafetensorError, safe_open

if TYPE_CHECKING:
    from torch import Tensor

# The value of "format" in the metadata of an optimizer file.
FORMAT_NAME = "tinyllm"


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """A tensor's ``dtype`` in the format's words ("F32") and its ``shape``."""

    dtype: str
    shape: tuple[int, ...]


def read_metadata(fd: int) -> dict[str, str]:
    """The file's metadata; ValueError when it is not a safetensors file."""
    try:
        with safe_open(_path(fd), framework="numpy") as file:
            return dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot be read as safetensors ({error})") from error


def read_table(fd: int) -> dict[str, TensorInfo]:
    """Name, dtype and shape of every tensor, by name, without reading any; ValueError as above."""
    try:
        with safe_open(_path(fd), framework="numpy") as file:
            table = {}
            for name in sorted(file.keys()):
                part = file.get_slice(name)
                table[name] = TensorInfo(part.get_dtype(), tuple(part.get_shape()))
            return table
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot be read as safetensors ({error})") from error


def read_tensors(fd: int) -> "dict[str, Tensor]":
    """Every tensor, by name, in memory of its own (the library's may be views of the file)."""
    try:
        with safe_open(_path(fd), framework="pt") as file:
            return {name: file.get_tensor(name).clone() for name in sorted(file.keys())}
    except (SafetensorError, OSError) as error:
        raise ValueError(f"cannot be read as safetensors ({error})") from error


def _path(fd: int) -> str:
    return f"/proc/self/fd/{fd}" if sys.platform == "linux" else f"/dev/fd/{fd}"
