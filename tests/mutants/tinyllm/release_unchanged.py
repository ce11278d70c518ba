"""The release as it is: nothing may be reported."""

import runpy
import sys

SUBJECT = "release"
BREAKS = ()
LAYERS = ()
SILENT = ("point", "kill", "power/ext4", "power/xfs", "power/btrfs")


if __name__ == "__main__":
    sys.argv += ["--forms", "f32"]
    runpy.run_path("release_trainer.py", run_name="__main__")
