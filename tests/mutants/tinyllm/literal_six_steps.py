"""The specification's six steps to the letter: no fsync of ckpt/ before LATEST moves."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.writer import Save

BREAKS = "pointer-complete"
LAYERS = ("power/posix",)
SILENT = ("point", "kill", "power/ext4", "power/xfs")


def left_out(save: Save) -> None:
    pass


if __name__ == "__main__":
    writer.sync_step_name = left_out
    raise SystemExit(main())
