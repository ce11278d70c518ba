"""After a rewind the step that LATEST names is moved aside while LATEST still names it."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.writer import Save

BREAKS = "pointer-complete"
LAYERS = ("point", "kill")


real = writer.make_way


def without_pointing_back(save: Save) -> None:
    save.line.base = ""
    real(save)


if __name__ == "__main__":
    writer.make_way = without_pointing_back
    raise SystemExit(main())
