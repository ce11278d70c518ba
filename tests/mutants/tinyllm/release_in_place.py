"""A release is written under its own name, so a kill leaves half of one."""

import runpy
import sys
from typing import Any

from tinyllm import release
from tinyllm.durable import Directory

SUBJECT = "release"
BREAKS = "resumable"
LAYERS = ("point", "kill", "power")


def under_its_name(models: Directory, version: str, tell: Any) -> str:
    return version


def not_at_all(attempt: Any, version: str) -> None:
    pass


if __name__ == "__main__":
    release._free_staging = under_its_name
    release._publish = not_at_all
    sys.argv += ["--forms", "f32"]
    runpy.run_path("release_trainer.py", run_name="__main__")
