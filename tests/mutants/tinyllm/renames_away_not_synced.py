"""Retention unlinks before its rename to a temporary name is durable."""

from typing import Any

from tinyllm import retention
from tinyllm.cli import main

BREAKS = "retention"
LAYERS = ("power/posix",)
SILENT = ("point", "kill", "power/ext4", "power/xfs")


def left_out(*arguments: Any, **more: Any) -> None:
    pass


if __name__ == "__main__":
    retention.sync_directory = left_out
    raise SystemExit(main())
