"""tinyllm as it is: nothing may be reported."""

from tinyllm.cli import main

BREAKS = ()
LAYERS = ()
SILENT = ("point", "kill", "double", "signal", "power")


if __name__ == "__main__":
    raise SystemExit(main())
