"""The history: an index of the stored results that can always be made again."""

import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from harness import history
from harness.results import Result
from harness.stored import encode_pretty
from tests.harness.report_samples import ack_violations, loss_violations, passing, result

ACK = "no-lost-ack: fsync(step-N) before acknowledgement at writer.py:790 save()"
LOSS = "same-losses: the loss of step N is not the uninterrupted run's"


def on(day: int, run: Result) -> Result:
    return msgspec.structs.replace(run, started=f"2026-02-{day:02d}T00:00:00+00:00")


def store(directory: Path, run: Result) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "result.json").write_bytes(encode_pretty(run))


@pytest.fixture
def three_runs(tmp_path: Path) -> Path:
    """A failing run, a passing one, and one in which one of the two signatures is back."""
    back = msgspec.structs.replace(result(), violations=ack_violations()[:3])
    store(tmp_path / "previous" / "0001", on(1, result()))
    store(tmp_path / "previous" / "0002", on(2, passing()))
    store(tmp_path, on(3, back))
    return tmp_path


def test_it_knows_when_a_signature_was_first_and_last_seen(three_runs: Path) -> None:
    database = three_runs / history.NAME
    assert history.rebuild(database, history.stored_results(three_runs)) == []
    assert history.signatures(database) == [
        history.Seen(
            ACK,
            "no-lost-ack",
            "2026-02-01T00:00:00+00:00",
            "2026-02-03T00:00:00+00:00",
            2,
            15,
            ack_violations()[0].case,
        ),
        history.Seen(
            LOSS,
            "same-losses",
            "2026-02-01T00:00:00+00:00",
            "2026-02-01T00:00:00+00:00",
            1,
            2,
            loss_violations()[0].case,
        ),
    ]


def test_the_trend_has_the_newest_run_first(three_runs: Path) -> None:
    database = three_runs / history.NAME
    history.rebuild(database, history.stored_results(three_runs))
    trend = history.runs(database)
    assert [(run.started[:10], run.verdict, run.cases, run.failed) for run in trend] == [
        ("2026-02-03", "fail", 924, 3),
        ("2026-02-02", "pass", 924, 0),
        ("2026-02-01", "fail", 924, 14),
    ]
    assert history.runs(database, limit=1) == trend[:1]


def test_updating_twice_counts_once(three_runs: Path) -> None:
    database = three_runs / history.NAME
    stored = history.stored_results(three_runs)
    history.update(database, stored[1:])
    before = history.runs(database)
    assert len(before) == 2
    history.update(database, stored)
    history.update(database, stored)
    assert len(history.runs(database)) == 3
    fresh = three_runs / "fresh.sqlite3"
    history.rebuild(fresh, stored)
    assert history.signatures(fresh) == history.signatures(database)


def test_the_same_run_stored_in_two_places_is_one_run(three_runs: Path) -> None:
    (three_runs / "previous" / "0009").mkdir()
    copy = three_runs / "previous" / "0009" / "result.json"
    copy.write_bytes((three_runs / "result.json").read_bytes())
    database = three_runs / history.NAME
    history.rebuild(database, history.stored_results(three_runs))
    assert len(history.runs(database)) == 3


def test_a_new_signature_is_told_from_a_known_one(three_runs: Path) -> None:
    database = three_runs / history.NAME
    history.rebuild(database, history.stored_results(three_runs))
    fresh = msgspec.structs.replace(loss_violations()[0], signature="same-losses: other")
    now = msgspec.structs.replace(result(), violations=[*ack_violations(), fresh])
    assert history.notes(database, now) == [
        f"known since 2026-02-01T00:00:00+00:00, in 2 earlier runs: {ACK}",
        "new: same-losses: other",
    ]


def test_without_a_database_everything_is_new(tmp_path: Path) -> None:
    database = tmp_path / history.NAME
    assert history.notes(database, result()) == [f"new: {ACK}", f"new: {LOSS}"]
    assert history.runs(database) == []


@pytest.mark.parametrize("damage", ["rubbish", "old version", "cut", "zeroed page"])
def test_an_unusable_index_is_made_anew(three_runs: Path, damage: str) -> None:
    database = three_runs / history.NAME
    stored = history.stored_results(three_runs)
    history.rebuild(database, stored)
    whole = history.signatures(database)
    if damage == "rubbish":
        database.write_bytes(b"not a database" * 100)
    elif damage == "zeroed page":
        page = 4096
        content = bytearray(database.read_bytes())
        content[2 * page : 3 * page] = bytes(page)
        database.write_bytes(content)
    elif damage == "cut":
        database.write_bytes(database.read_bytes()[:5000])
    else:
        with closing(sqlite3.connect(database)) as connection:
            connection.executescript("DROP TABLE seen; PRAGMA user_version = 99;")
    assert history.update(database, stored) == []
    assert history.signatures(database) == whole


def test_a_result_that_cannot_be_read_is_named_and_the_rest_counts(three_runs: Path) -> None:
    bad = three_runs / "previous" / "0001" / "result.json"
    bad.write_text("{")
    database = three_runs / history.NAME
    [said] = history.rebuild(database, history.stored_results(three_runs))
    assert said.startswith(f"left out of the history: {bad} does not hold")
    assert len(history.runs(database)) == 2


def test_a_large_seed_is_kept(tmp_path: Path) -> None:
    """sqlite's integers end at 2**63."""
    store(tmp_path, msgspec.structs.replace(result(), seed=2**64 - 1))
    database = tmp_path / history.NAME
    history.rebuild(database, history.stored_results(tmp_path))
    assert history.runs(database)[0].seed == "18446744073709551615"
