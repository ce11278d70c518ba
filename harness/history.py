"""The history of many runs: when a signature was first and last seen, and how the runs went.

An sqlite3 database that is an index and nothing more. The stored ``result.json`` files are the
truth: :func:`rebuild` makes the index from them again, and an index that is damaged or of another
version is thrown away and made anew. A run is named by the sha256 of its ``result.json``, so that
adding it twice counts once.

A run's time is the one that it wrote down; nothing here reads the clock.
"""

import hashlib
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from harness.durable import PREVIOUS
from harness.errors import UsageError
from harness.report.grouping import group
from harness.report.words import shown_verdict
from harness.results import Result
from harness.stored import decode, read_regular

NAME = "history.sqlite3"
VERSION = 1

_SCHEMA = f"""
CREATE TABLE run (
    digest TEXT PRIMARY KEY, started TEXT NOT NULL, command TEXT NOT NULL, subject TEXT NOT NULL,
    verdict TEXT NOT NULL, seed TEXT NOT NULL, cases INTEGER NOT NULL, failed INTEGER NOT NULL,
    seconds REAL NOT NULL
) STRICT;
CREATE TABLE seen (
    digest TEXT NOT NULL REFERENCES run(digest), signature TEXT NOT NULL,
    invariant TEXT NOT NULL, cases INTEGER NOT NULL, example TEXT NOT NULL,
    PRIMARY KEY (digest, signature)
) STRICT;
CREATE INDEX seen_by_signature ON seen(signature);
PRAGMA user_version = {VERSION};
"""


@dataclass(frozen=True, slots=True)
class Run:
    """One run. ``started`` as the run wrote it (ISO 8601, UTC)."""

    started: str
    command: str
    subject: str
    verdict: str
    seed: str
    cases: int
    failed: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Seen:
    """A signature over all runs. ``example`` is the case of the run that saw it last."""

    signature: str
    invariant: str
    first: str
    last: str
    runs: int
    cases: int
    example: str


def stored_results(directory: Path) -> list[Path]:
    """The result files of a run's directory: the newest and those of the runs before it."""
    found = [directory / "result.json"]
    previous = directory / PREVIOUS
    if previous.is_dir():
        found += sorted(p / "result.json" for p in previous.iterdir())
    return [path for path in found if path.is_file()]


def rebuild(database: Path, results: Iterable[Path]) -> list[str]:
    """Make the index anew from result files. Returns what could not be read, a sentence each."""
    for suffix in ("", "-journal", "-wal", "-shm"):
        database.with_name(f"{database.name}{suffix}").unlink(missing_ok=True)
    refused = []
    with _open(database) as connection:
        for path in results:
            if problem := _add_file(connection, path):
                refused.append(problem)
    return refused


def update(database: Path, results: Iterable[Path]) -> list[str]:
    """Add those results that the index does not have; it is rebuilt when it cannot be used."""
    paths = list(results)
    if not _usable(database):
        return rebuild(database, paths)
    with _open(database) as connection:
        return [p for p in (_add_file(connection, path) for path in paths) if p]


def runs(database: Path, *, limit: int = 30) -> list[Run]:
    """The newest runs, newest first."""
    query = (
        "SELECT started, command, subject, verdict, seed, cases, failed, seconds FROM run "
        "ORDER BY started DESC, digest LIMIT ?"
    )
    with _open(database) as connection:
        return [Run(*row) for row in connection.execute(query, (limit,))]


def signatures(database: Path) -> list[Seen]:
    """All signatures ever seen: those seen last come first."""
    query = """
        SELECT s.signature, min(s.invariant), min(r.started), max(r.started), count(*),
               sum(s.cases),
               (SELECT s2.example FROM seen s2 JOIN run r2 USING (digest)
                WHERE s2.signature = s.signature ORDER BY r2.started DESC, r2.digest LIMIT 1)
        FROM seen s JOIN run r USING (digest)
        GROUP BY s.signature ORDER BY max(r.started) DESC, s.signature
    """
    with _open(database) as connection:
        return [Seen(*row) for row in connection.execute(query)]


def notes(database: Path, result: Result) -> list[str]:
    """What the history says of this result's signatures: new, or known since when; a line each.

    ``result`` itself is not to be in the index yet.
    """
    known = {seen.signature: seen for seen in signatures(database)}
    said = []
    for one in group(result.violations):
        before = known.get(one.signature)
        if before is None:
            said.append(f"new: {one.signature}")
        else:
            times = f"{before.runs} earlier run{'s' if before.runs != 1 else ''}"
            said.append(f"known since {before.first}, in {times}: {one.signature}")
    return said


def _add_file(connection: sqlite3.Connection, path: Path) -> str:
    """Add one result file; "" or why it was not."""
    try:
        data = read_regular(path)
        result = decode(data, Result, said=str(path))
    except UsageError as error:
        return f"left out of the history: {error}"
    digest = hashlib.sha256(data).hexdigest()
    cases = sum(layer.cases for layer in result.layers.values())
    failed = len({(v.config, v.case) for v in result.violations})
    row = (result.started, result.command, result.subject, shown_verdict(result), str(result.seed))
    added = connection.execute(
        "INSERT OR IGNORE INTO run VALUES (?,?,?,?,?,?,?,?,?)",
        (digest, *row, cases, failed, result.seconds),
    ).rowcount
    if added:
        connection.executemany(
            "INSERT OR IGNORE INTO seen VALUES (?,?,?,?,?)",
            [
                (digest, g.signature, g.invariant, len(g.cases), g.example.case)
                for g in group(result.violations)
            ],
        )
    return ""


def _usable(database: Path) -> bool:
    if not database.is_file():
        return False
    try:
        with closing(sqlite3.connect(database)) as connection:
            [(version,)] = connection.execute("PRAGMA user_version")
            [(sound,)] = connection.execute("PRAGMA quick_check(1)")
    except sqlite3.DatabaseError:
        return False
    return bool(version == VERSION and sound == "ok")


@contextmanager
def _open(database: Path) -> Iterator[sqlite3.Connection]:
    """A connection in one transaction; a new database gets its tables."""
    with closing(sqlite3.connect(database)) as connection:
        [(version,)] = connection.execute("PRAGMA user_version")
        if version == 0:
            connection.executescript(_SCHEMA)
        with connection:
            yield connection
