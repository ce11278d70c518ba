"""What a worker answers when its task fails, and where its directories lie."""

import errno
import os
from pathlib import Path

import pytest

from fault_injection import leftovers
from harness.errors import CannotJudge
from harness.workers import worker_pool


def fill_the_disk() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/scratch/spool")


def fail() -> None:
    raise ValueError("wrong")


def test_a_full_disk_is_no_verdict_and_no_error_of_the_harness() -> None:
    with worker_pool(1) as (executor, _):
        answer = executor.submit(fill_the_disk)
        with pytest.raises(CannotJudge, match="no space left on the device for /scratch/spool"):
            answer.result()


def test_what_a_task_raises_comes_back_with_its_place() -> None:
    with worker_pool(1) as (executor, _):
        answer = executor.submit(fail)
        with pytest.raises(ValueError, match="wrong") as told:
            answer.result()
    assert "in fail" in told.value.__notes__[0]


def test_the_directories_lie_where_the_environment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(leftovers.ENV_HOME, str(tmp_path))
    with worker_pool(1) as (_, directory):
        assert Path(directory).parent == tmp_path
    assert list(tmp_path.iterdir()) == []
