"""LATEST.tmp is renamed over LATEST without having been synced."""

from tinyllm import writer
from tinyllm.cli import main
from tinyllm.paths import LATEST_TMP

BREAKS = "pointer-complete"
LAYERS = ("power/posix", "power/xfs")
SILENT = ("point", "kill", "power/ext4")


real = writer.sync_file


def all_but_the_pointer(fd: int, *, path: str) -> None:
    if not path.endswith(LATEST_TMP):
        real(fd, path=path)


if __name__ == "__main__":
    writer.sync_file = all_but_the_pointer
    raise SystemExit(main())
