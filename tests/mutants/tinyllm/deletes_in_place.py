"""Retention unlinks the files of a step directory under its own name: a kill leaves half of one."""

from tinyllm import retention
from tinyllm.cli import main
from tinyllm.durable import Directory
from tinyllm.retention import Line, remove_tree

BREAKS = "retention"
LAYERS = ("point", "kill")


def in_place(ckpt: Directory, name: str, names: set[str], line: Line) -> bool:
    del line
    remove_tree(ckpt, name)
    names.discard(name)
    return True


if __name__ == "__main__":
    retention._rename_away = in_place
    raise SystemExit(main())
