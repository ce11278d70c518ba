"""Every row of the track record reproduces, and the correct way beside it is not reported."""

import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path

import pytest

from harness import doctor
from harness.cases import LAYERS
from harness.results import Violation
from harness.subjects import load_subject
from harness.workers import memory_parent, worker_pool
from tests.harness.track_record import COLUMNS, RECORD, Row, correct_subjects, rows, violations

ROWS = rows()
CORRECT = correct_subjects()
WRITERS = Path("smoke_configs/subjects/library-writers")
# Two libraries that save in different ways: a file, and a directory with an index written last.
CORRECT_TRIED = {
    "pickle-dump-durable": ("kill", "power/posix"),
    "torch-distributed-durable": ("power/posix",),
    "atomicwrites-pickle": ("kill", "power/posix"),
}
FOUND: dict[tuple[str, str], list[Violation]] = {}

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[Executor, str]]:
    """One worker for all rows, so that torch is imported once."""
    reason = doctor.reasons(("kill",)).get("kill")
    if reason is not None:
        pytest.skip(reason)
    env = dict(ROWS[0].subject.env)
    with worker_pool(1, env=env) as pool:
        yield pool


def said(row: Row) -> str:
    return f"{row.subject.name}-{row.layer.replace('/', '-')}"


@pytest.mark.parametrize("row", ROWS, ids=said)
def test_the_row_reproduces(row: Row, pool: tuple[Executor, str]) -> None:
    missing = row.missing()
    if missing:
        pytest.skip(missing)
    if row.across_file_systems and not temporary_files_lie_elsewhere():
        pytest.skip("temporary files and scratch trees lie on one file system here")
    executor, temp = pool
    key = (row.subject.name, row.layer)  # several rows may show different sides of one program
    if key not in FOUND:
        FOUND[key] = violations(row.subject, (row.layer,), executor=executor, temp=temp)
    signatures = {v.signature for v in FOUND[key]}
    assert row.signature in signatures, f"found: {sorted(signatures)}"


def temporary_files_lie_elsewhere() -> bool:
    """Whether a rename from the temporary directory to a scratch tree crosses file systems."""
    scratch = memory_parent() or tempfile.gettempdir()
    return os.stat(tempfile.gettempdir()).st_dev != os.stat(scratch).st_dev


@pytest.mark.parametrize("name", CORRECT_TRIED)
def test_the_correct_way_is_not_reported(name: str, pool: tuple[Executor, str]) -> None:
    [path] = [path for path in CORRECT if path.stem == name]
    subject = load_subject(path)
    for module in subject.preload:
        pytest.importorskip(module)
    executor, temp = pool
    found = violations(subject, CORRECT_TRIED[name], executor=executor, temp=temp)
    assert [v.message for v in found] == []


def test_the_record_says_what_it_must() -> None:
    assert len(ROWS) >= 8
    header = f"| {' | '.join(COLUMNS)} |"
    assert RECORD.read_text(encoding="utf-8").count(header) >= 1
    for row in ROWS:
        assert row.layer.partition("/")[0] in LAYERS
        assert row.layer in row.layers, f"{row.command} does not run {row.layer}"
        assert row.arguments.command == "check"
    assert len({(row.command, row.signature) for row in ROWS}) == len(ROWS)


def test_every_writer_is_in_the_record_or_correct_beside_it() -> None:
    named = {row.arguments.target[0] for row in ROWS} | {
        str(WRITERS / path.name) for path in CORRECT
    }
    files = sorted((RECORD.parents[1] / WRITERS).glob("*.toml"))
    assert [f"{WRITERS / f.name}" for f in files] == sorted(named)


def test_a_wrong_row_would_be_seen(pool: tuple[Executor, str]) -> None:
    """The check has to be able to fail: a correct program under a row's layer shows nothing."""
    [path] = [path for path in CORRECT if path.stem == "pickle-dump-durable"]
    executor, temp = pool
    found = violations(load_subject(path), ("kill",), executor=executor, temp=temp)
    assert all(row.signature not in {v.signature for v in found} for row in ROWS)
