"""Scratch directories of a worker: made empty, copied, removed whatever a subject left in them."""

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

ENV_TEMPORARY = "DURABILITY_TEMPORARY"


def empty_temporary() -> None:
    """Remove what programs under test left in the ``TMPDIR`` of this worker, where it has one.

    To be called before a case, not between its attempts: a kill leaves temporary files alone.
    """
    directory = os.environ.get(ENV_TEMPORARY)
    if not directory:
        return
    for name in os.listdir(directory):
        removed(Path(directory, name))


def emptied(path: Path) -> Path:
    """``path`` as an empty directory, whatever it was."""
    removed(path)
    path.mkdir(parents=True)
    return path


def removed(path: Path) -> None:
    """Remove a tree, read-only directories included. A missing one is no error."""
    if not path.is_symlink() and path.is_dir():
        shutil.rmtree(path, onerror=_make_writable_and_retry)
    else:
        path.unlink(missing_ok=True)


def _make_writable_and_retry(function: Callable[..., Any], path: str, error: Any) -> None:
    if isinstance(error[1], FileNotFoundError):
        return
    parent = os.path.dirname(path)
    for directory in (parent, path):
        if os.path.isdir(directory) and not os.path.islink(directory):
            os.chmod(directory, os.stat(directory).st_mode | stat.S_IRWXU)
    if function is os.scandir or function is os.open:
        shutil.rmtree(path)
    else:
        function(path)


def copied(source: Path, target: Path) -> Path:
    """A copy of a tree: files, directories and symbolic links; other types are left out."""
    removed(target)
    shutil.copytree(source, target, symlinks=True, ignore=_neither_file_nor_directory)
    return target


def _neither_file_nor_directory(directory: str, names: list[str]) -> set[str]:
    def other(name: str) -> bool:
        mode = os.lstat(os.path.join(directory, name)).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))

    return {name for name in names if other(name)}
