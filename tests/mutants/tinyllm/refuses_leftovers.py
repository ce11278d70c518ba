"""A staging directory that a crash left makes the next save fail."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.durable import make_directory
from tinyllm.writer import Save

BREAKS = "resumable"
LAYERS = ("point", "kill")


def without_making_room(save: Save) -> None:
    make_directory(save.ckpt, save.staging)
    save.names.add(save.staging)


if __name__ == "__main__":
    writer.prepare_staging = without_making_room
    raise SystemExit(main())
