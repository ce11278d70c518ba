"""Skipping for want of a real file system, with exactly the reason that the doctor gives."""

import os

import pytest

from fault_injection import volumes


def require(file_system: str) -> None:
    """Skip the running test when no ``file_system`` can be mounted here."""
    reason = volumes.unavailable(file_system)
    if reason is not None:
        pytest.skip(f"realfs/{file_system}: {reason}")


def tree(root: str) -> dict[str, bytes | None]:
    """Every path below ``root`` with its content; None for a directory."""
    found: dict[str, bytes | None] = {}
    for directory, names, files in os.walk(root):
        for name in names:
            found[os.path.relpath(os.path.join(directory, name), root)] = None
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = file.read()
    return dict(sorted(found.items()))
