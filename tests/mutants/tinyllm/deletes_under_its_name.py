"""A checkpoint is deleted file by file under its own name."""

from tinyllm import retention
from tinyllm.cli import main
from tinyllm.durable import Directory
from tinyllm.retention import Line, remove_tree

BREAKS = "retention"
LAYERS = ("kill",)


def in_place(ckpt: Directory, name: str, names: set[str], line: Line) -> bool:
    remove_tree(ckpt, name)
    names.discard(name)
    return True


if __name__ == "__main__":
    retention._rename_away = in_place
    raise SystemExit(main())
