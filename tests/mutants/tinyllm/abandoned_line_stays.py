"""After a rewind the checkpoints of the line that was given up are never removed."""

from typing import Any

from tinyllm import trainer
from tinyllm.cli import main
from tinyllm.retention import Line

CONFIG = "adamw-bf16"  # the one that goes back by two
BREAKS = "retention"
LAYERS = ("point",)


real = trainer.line_from


def without_a_past(*arguments: Any, **more: Any) -> Line:
    line = real(*arguments, **more)
    line.abandoned = frozenset()
    return line


if __name__ == "__main__":
    trainer.line_from = without_a_past
    raise SystemExit(main())
