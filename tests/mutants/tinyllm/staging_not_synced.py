"""The staging directory is not synced: its files' names may be lost."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.durable import Directory
from tinyllm.retention import Line

BREAKS = ("no-lost-ack", "ack-after-durable")
LAYERS = ("power/posix",)
SILENT = ("point", "kill", "power/ext4", "power/xfs")


def left_out(stage: Directory, line: Line) -> None:
    pass


if __name__ == "__main__":
    writer.sync_staging = left_out
    raise SystemExit(main())
