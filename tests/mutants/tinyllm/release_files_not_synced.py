"""No file of a release is synced, nor its manifest; directories are."""

import runpy
import sys

from tinyllm import release

SUBJECT = "release"
BREAKS = "resumable"
LAYERS = ("power",)
SILENT = ("point", "kill")


def left_out(fd: int, *, path: str) -> None:
    pass


if __name__ == "__main__":
    release.sync_file = left_out
    sys.argv += ["--forms", "f32"]
    runpy.run_path("release_trainer.py", run_name="__main__")
