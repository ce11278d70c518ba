"""``ledger.json``: where the training data came from, and what it may be used for.

A JSON array of rows. A row is about one content of one source: its name (the one in the train spec)
and the sha256 of the file, so that a permission for one content is not taken for another's. Rows of
sources further up (what a file was made from) may stand beside them; every row is held to the same
rule: ``train`` among its allowed uses, and not revoked.

A ledger usually holds more columns than these; they are kept, since the file goes into the release
byte for byte.
"""

from collections.abc import Collection
from typing import Annotated

import msgspec

from tinyllm.documents import decode_strictly
from tinyllm.progress import SourceRecord

TRAIN = "train"
LEDGER_LIMIT_BYTES = 64 << 20


class LedgerRow(msgspec.Struct, frozen=True, kw_only=True):
    """One source of data. Other columns are allowed and not looked at."""

    source: Annotated[str, msgspec.Meta(min_length=1, max_length=1024)]
    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    allowed_uses: list[str]
    revoked: bool


def decode_ledger_row(data: bytes) -> LedgerRow:
    """One row; ValueError says what is wrong with it."""
    return decode_strictly(data, LedgerRow)


def ledger_problems(data: bytes, sources: Collection[SourceRecord]) -> list[str]:
    """Everything that keeps a model trained on ``sources`` from being released with this ledger."""
    try:
        rows = decode_strictly(data, list[msgspec.Raw])
    except ValueError as error:
        return [f"is not a JSON array of ledger rows: {error}"]
    problems = []
    covered = set()
    for number, raw in enumerate(rows, start=1):
        try:
            row = decode_ledger_row(bytes(raw))
        except ValueError as error:
            problems.append(f"row {number} is not a ledger row: {error}")
            continue
        covered.add((row.source, row.sha256))
        if TRAIN not in row.allowed_uses:
            uses = ", ".join(row.allowed_uses) or "nothing"
            problems.append(f"row {number} ({row.source}) allows {uses}, not {TRAIN}")
        if row.revoked:
            problems.append(f"row {number} ({row.source}) is revoked")
    names = {name for name, _ in covered}
    for source in sorted(set(sources), key=lambda record: (record.name, record.sha256)):
        if (source.name, source.sha256) not in covered:
            what = "no row is of its content, only of another" if source.name in names else "no row"
            problems.append(
                f"does not cover the source {source.name} (sha256 {source.sha256}) that the "
                f"model was trained on: {what}"
            )
    return problems
