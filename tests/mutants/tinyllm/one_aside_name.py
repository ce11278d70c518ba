"""What is moved aside always gets one name, which a second kill finds taken, or one of a rewind."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.durable import rename
from tinyllm.writer import Save

BREAKS = "resumable"
LAYERS = ("kill", "double")


def always_the_same(save: Save, name: str) -> str:
    aside = f"{save.name}.aside-1.tmp"
    rename(save.ckpt, name, aside)
    save.names.discard(name)
    save.names.add(aside)
    return aside


if __name__ == "__main__":
    writer.move_aside = always_the_same
    raise SystemExit(main())
