"""Every outcome that is seen on a real ext4, xfs or btrfs is a state of the model of that name.

Each workload is recorded once. Then it is done for real on each file system and power is cut before
each of its calls and after the last, both with and without a commit by the file system itself.
"""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.attempt import Command, Settings, run_attempt
from fault_injection.crash_states.containment import contains
from fault_injection.crash_states.snapshot import snapshot
from fault_injection.filesystems import FILE_SYSTEMS
from fault_injection.trace import Trace
from fault_injection.volumes import Image, Volume, volume
from tests.fault_injection import fidelity_workloads as work
from tests.fault_injection.realfs_support import require

REPOSITORY = Path(__file__).parents[2]
PROGRAM = """
import sys
from tests.fault_injection.fidelity_workloads import WORKLOADS
WORKLOADS[sys.argv[1]](sys.argv[2], lambda: None)
"""


class _PowerIsGone(Exception):
    """The turn of the call that is not made any more has come."""


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trace]:
    """Every workload, recorded."""
    base = tmp_path_factory.mktemp("recorded")
    program = base / "workload.py"
    program.write_text(PROGRAM)
    found = {}
    for name in work.WORKLOADS:
        root = base / name / "root"
        root.mkdir(parents=True)
        work.prepare(str(root))
        command = Command(
            argv=(sys.executable, str(program), name, str(root)),
            cwd=str(REPOSITORY),
            env=tuple(sorted({**os.environ, "PYTHONPATH": str(REPOSITORY)}.items())),
        )
        settings = Settings(
            root=str(root), timeout_s=30, fork=True, record_to=str(base / name / "trace")
        )
        attempt = run_attempt(command, settings)
        assert (attempt.exit_code, attempt.stderr, attempt.untraceable) == (0, b"", ""), name
        assert attempt.trace is not None
        found[name] = attempt.trace
    return found


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def prepared(request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Image]]:
    require(request.param)
    with volume(request.param) as made:
        work.prepare(made.path)
        yield made, made.keep()


def _cut_before_call(on: Volume, name: str, place: int, *, committed: bool) -> int:
    """Do the workload up to its call ``place`` and cut; how many calls were made."""
    made = 0

    def before() -> None:
        nonlocal made
        if made == place:
            raise _PowerIsGone
        made += 1

    with contextlib.suppress(_PowerIsGone):
        work.WORKLOADS[name](on.path, before)
    work.settle(on.path)
    on.cut(committed=committed)
    on.remount()
    return made


@pytest.mark.parametrize("name", work.WORKLOADS)
def test_every_real_outcome_is_a_state_of_the_model(
    prepared: tuple[Volume, Image], traces: dict[str, Trace], name: str
) -> None:
    on, image = prepared
    count = len(traces[name].operations)
    differences = []
    for place in range(count + 1):
        for committed in (False, True):
            on.reset(image)
            assert _cut_before_call(on, name, place, committed=committed) == place
            why = contains(traces[name], on.file_system, place, snapshot(on.path))
            if why is not None:
                differences.append((place, committed, why))
    assert differences == []
