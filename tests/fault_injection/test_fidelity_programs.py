"""Whole programs on real file systems: each broken writer's save, and tinyllm's, within the models.

Each program is recorded once; one of its saves is then done again on a real file system and cut
after each call that may have changed what is on the disk.
"""

import json
import os
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.attempt import Command, Settings, run_attempt
from fault_injection.crash_states.containment import contains
from fault_injection.crash_states.snapshot import snapshot
from fault_injection.filesystems import FILE_SYSTEMS
from fault_injection.replay import Replay, lay_out
from fault_injection.trace import Kind, Trace
from fault_injection.volumes import Image, Volume, volume
from tests.fault_injection.realfs_support import require

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = REPOSITORY / "tests" / "mutants" / "programs"
# Those whose fault only a power loss shows, and some that are right in ways of their own.
NAMES = (
    "no_fsync",
    "no_directory_fsync",
    "directory_fsync_only",
    "replaced_unsynced",
    "fsync_after_rename",
    "pointer_unsynced",
    "flush_for_fsync",
    "fsync_before_flush",
    "old_gone_before_new_synced",
    "parents_never_synced",
    "manifest_before_data",
    "ack_before_directory_fsync",
    "one_fsync_two_renames",
    "tmp_rename",
    "two_slots",
    "hard_links",
    "o_tmpfile",
    "exchange",
    "o_sync",
)


def _record(base: Path, argv: list[str], *, cwd: Path, root: Path, fork: bool) -> Trace:
    command = Command(
        argv=tuple(argv),
        cwd=str(cwd),
        env=tuple(sorted(os.environ.items())),
    )
    settings = Settings(root=str(root), timeout_s=100, fork=fork, record_to=str(base / "trace"))
    attempt = run_attempt(command, settings)
    assert (attempt.exit_code, attempt.untraceable) == (0, ""), attempt.stderr.decode()
    assert attempt.trace is not None
    return attempt.trace


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """Every program of NAMES, recorded from its beginning to its end."""
    expected = tomllib.loads((PROGRAMS / "expected.toml").read_text())
    found = {}
    for name in NAMES:
        base = tmp_path_factory.mktemp(name)
        root = base / "root"
        root.mkdir()
        words = [word.replace("{root}", str(root)) for word in expected[name]["train"]]
        assert words[0] == "python"
        argv = [sys.executable, *words[1:]]
        found[name] = _record(base, argv, cwd=PROGRAMS, root=root, fork=True)
    return found


@pytest.fixture(scope="module")
def tinyllm_trace(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    """Two saves with retention at work in the second."""
    base = tmp_path_factory.mktemp("tinyllm")
    root = base / "root"
    root.mkdir()
    spec = json.loads((REPOSITORY / "smoke_configs" / "adamw.json").read_text())
    spec |= {"steps": 2, "ckpt_every": 1, "keep_ckpts": 1}
    spec["schedule"]["warmup_steps"] = 1
    spec["data"]["sources"][0]["path"] = str(REPOSITORY / "smoke_configs" / "corpus.txt")
    (base / "spec.json").write_text(json.dumps(spec))
    argv = [sys.executable, "-m", "tinyllm", "train", str(base / "spec.json")]
    argv += ["--artifacts", str(root), "--run-id", "run"]
    return _record(base, argv, cwd=REPOSITORY, root=root, fork=False)


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def empty(request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Image]]:
    require(request.param)
    with volume(request.param) as made:
        yield made, made.keep()


def _places_of_a_save(trace: Trace, words: bytes) -> list[int]:
    """The crash places from the second output with ``words`` to the third (or the end).

    A place after an output is left out: the disk is as it was before it.
    """
    operations = trace.operations
    said = [
        op.index
        for op in operations
        if op.kind is Kind.OUTPUT and words in trace.blobs.read(op.blob)
    ]
    first = said[1] if len(said) > 1 else 0
    last = said[2] if len(said) > 2 else len(operations)
    changed = [op.index + 1 for op in operations if op.kind not in (Kind.OUTPUT, Kind.META)]
    return [place for place in changed if first < place <= last]


def _differences(on: Volume, start: Image, trace: Trace, places: list[int]) -> list[object]:
    """Where a real outcome is not in the model; each place with and without a commit."""
    on.reset(start)
    lay_out(trace, on.path)
    image = on.keep()
    found: list[object] = []
    for place in places:
        for committed in (False, True):
            on.reset(image)
            # What a rename over a file sets off is let finish: the model of ext4 rests on that.
            with Replay(trace, on.path, settles=True) as replay:
                replay.run(place)
                on.cut(committed=committed)
            on.remount()
            why = contains(trace, on.file_system, place, snapshot(on.path))
            if why is not None:
                found.append((trace.operations[place - 1].place, committed, why))
    return found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_left_of_a_programs_save_is_in_the_model(
    empty: tuple[Volume, Image], traces: dict[str, Trace], name: str
) -> None:
    on, start = empty
    places = _places_of_a_save(traces[name], b"saved step")
    assert places, "no save was found in the trace"
    assert _differences(on, start, traces[name], places) == []


def test_what_is_left_of_tinyllms_save_is_in_the_model(
    empty: tuple[Volume, Image], tinyllm_trace: Trace
) -> None:
    on, start = empty
    operations = tinyllm_trace.operations
    renamed = [op.index for op in operations if op.place.startswith("rename-LATEST")]
    assert len(renamed) == 2
    # From the first save's end to the end: the second save, then retention.
    changed = [op.index + 1 for op in operations if op.kind not in (Kind.OUTPUT, Kind.META)]
    places = [place for place in changed if place > renamed[0]]
    assert _differences(on, start, tinyllm_trace, places) == []
