"""What a crash left under a temporary name is never removed."""

from typing import Any

from tinyllm import retention, writer
from tinyllm.cli import main
from tinyllm.durable import Directory

BREAKS = "retention"
LAYERS = ("point", "kill")


def without_leftovers(ckpt: Directory, names: set[str], **more: Any) -> None:
    retention.retire(ckpt, {name for name in names if not name.endswith(".tmp")}, **more)


if __name__ == "__main__":
    writer.retire = without_leftovers
    raise SystemExit(main())
