"""LATEST is opened for writing, which empties it, and then written."""

import os

from fault_injection.points import point
from tinyllm import writer
from tinyllm.cli import main
from tinyllm.paths import LATEST
from tinyllm.writer import Save

BREAKS = "pointer-complete"
LAYERS = ("point", "kill")


def in_place(save: Save, name: str) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
    fd = os.open(LATEST, flags, 0o666, dir_fd=save.ckpt.fd)
    point("save.pointer-written")
    os.write(fd, f"{name}\n".encode())
    os.fsync(fd)
    os.close(fd)
    save.names.add(LATEST)
    writer.sync_pointer(save)
    save.line.pointer = name


if __name__ == "__main__":
    writer.publish_pointer = in_place
    raise SystemExit(main())
