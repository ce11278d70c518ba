"""LATEST is moved to the new directory before that directory has its name."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.writer import Save

BREAKS = "pointer-complete"
LAYERS = ("point", "kill")


real = writer.publish_step


def pointer_first(save: Save) -> None:
    writer.publish_pointer(save, save.name)
    real(save)


if __name__ == "__main__":
    writer.publish_step = pointer_first
    raise SystemExit(main())
