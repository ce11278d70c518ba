"""No file of a checkpoint is synced, nor the manifest, nor LATEST; directories are."""

from tinyllm import writer
from tinyllm.cli import main

BREAKS = ("no-lost-ack", "ack-after-durable", "pointer-complete")
LAYERS = ("power",)
SILENT = ("point", "kill")


def left_out(fd: int, *, path: str) -> None:
    pass


if __name__ == "__main__":
    writer.sync_file = left_out
    raise SystemExit(main())
