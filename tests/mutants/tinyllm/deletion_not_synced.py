"""Retention unlinks the files of a step directory before its new name is durable."""

from collections.abc import Callable

from tinyllm import retention
from tinyllm.cli import main
from tinyllm.durable import Directory

BREAKS = "retention"
LAYERS = ("power/posix",)


def not_at_all(directory: Directory, *, unsupported: Callable[[str, str], None]) -> None:
    del directory, unsupported


if __name__ == "__main__":
    retention.sync_directory = not_at_all
    raise SystemExit(main())
