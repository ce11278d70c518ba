"""The last fsync of ckpt/ is left out: LATEST may go back after the acknowledgement."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.writer import Save

BREAKS = ("no-lost-ack", "ack-after-durable")
LAYERS = ("power",)
SILENT = ("point", "kill")


def left_out(save: Save) -> None:
    pass


if __name__ == "__main__":
    writer.sync_pointer = left_out
    raise SystemExit(main())
