"""A settings file, saved naively and correctly, and what a power loss makes of each.

Run it: ``pytest examples``. Nothing has to be configured; the fixture comes with the package. The
two naive saves are expected to fail: take the marks away to read what is said of them.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

OLD = {"theme": "dark"}
NEW = {"theme": "light", "recent": ["a.txt", "b.txt"]}
Save = Callable[[Path, Any], None]


def save_in_place(root: Path, settings: Any) -> None:
    """Cuts the old settings off before the new ones are written."""
    with open(root / "settings.json", "w") as file:
        json.dump(settings, file)


def save_by_rename(root: Path, settings: Any) -> None:
    """The rename may reach the disk before the bytes do: an empty file under the final name."""
    with open(root / "settings.tmp", "w") as file:
        json.dump(settings, file)
    os.replace(root / "settings.tmp", root / "settings.json")


def save_durably(root: Path, settings: Any) -> None:
    """The bytes first, then the name, then the directory: old or new, and new once it returned."""
    with open(root / "settings.tmp", "w") as file:
        json.dump(settings, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(root / "settings.tmp", root / "settings.json")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def load(root: Path) -> Any:
    """What a program that starts after the crash reads."""
    with open(root / "settings.json") as file:
        return json.load(file)


@pytest.mark.parametrize(
    "save",
    [
        pytest.param(save_in_place, marks=pytest.mark.xfail(raises=AssertionError, strict=True)),
        pytest.param(save_by_rename, marks=pytest.mark.xfail(raises=AssertionError, strict=True)),
        save_durably,
    ],
)
def test_a_crash_leaves_the_old_settings_or_the_new(crash_explorer: Any, save: Save) -> None:
    crash_explorer(
        setup=lambda root: save_durably(root, OLD),
        workload=lambda root: save(root, NEW),
        check=lambda root: load(root) in (OLD, NEW),
    )


def test_what_was_said_to_be_saved_is_still_there(crash_explorer: Any) -> None:
    def workload(root: Path) -> None:
        save_durably(root, NEW)
        print("saved")

    def check(root: Path, told: list[str]) -> bool:
        return load(root) == NEW or "saved" not in told

    crash_explorer(setup=lambda root: save_durably(root, OLD), workload=workload, check=check)
