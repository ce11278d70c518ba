"""The oldest checkpoint is taken, not the one that LATEST names."""

from tinyllm import reader
from tinyllm.cli import main
from tinyllm.paths import Listing

BREAKS = "no-lost-ack"
LAYERS = ("point", "kill")


def ascending(listing: Listing, first: int | None, *, explicit: bool) -> list[int]:
    return list(listing.steps)


if __name__ == "__main__":
    reader._order = ascending
    raise SystemExit(main())
