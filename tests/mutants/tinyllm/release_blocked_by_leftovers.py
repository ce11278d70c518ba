"""What a killed release left has the name that the next one wants, and makes it fail."""

import runpy
import sys
from typing import Any

from tinyllm import release
from tinyllm.durable import Directory

SUBJECT = "release"
BREAKS = "resumable"
LAYERS = ("point", "kill")


def always_the_same(models: Directory, version: str, tell: Any) -> str:
    return f".{version}.tmp"


if __name__ == "__main__":
    release._free_staging = always_the_same
    sys.argv += ["--forms", "f32"]
    runpy.run_path("release_trainer.py", run_name="__main__")
