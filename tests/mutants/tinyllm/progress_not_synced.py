"""The progress file is never synced, so a checkpoint may outlive its steps' lines."""

from tinyllm import progress
from tinyllm.cli import main
from tinyllm.progress import Progress

BREAKS = "progress-readable"
LAYERS = ("power/posix", "power/xfs")
SILENT = ("point", "kill")


def not_at_all(into: Progress) -> None:
    pass


if __name__ == "__main__":
    progress.sync = not_at_all
    raise SystemExit(main())
