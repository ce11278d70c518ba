"""One trainer a run; the lock dies with its holder."""

import os
import signal
from pathlib import Path

import pytest

from tests.tinyllm.checkpoints import in_child
from tinyllm.errors import LockHeld, StorageFailed
from tinyllm.lock import run_lock


def test_the_second_is_refused_and_told_who_holds_it(tmp_path: Path) -> None:
    with run_lock(tmp_path):
        with (
            pytest.raises(LockHeld, match=rf"lock: held by process {os.getpid()}: ") as caught,
            run_lock(tmp_path),
        ):
            pass
        assert caught.value.exit_code == 3

        def second() -> None:
            with run_lock(tmp_path):
                pass

        with pytest.raises(LockHeld):
            second()
    with run_lock(tmp_path):
        pass


def test_a_killed_holder_leaves_a_file_that_is_no_obstacle(tmp_path: Path) -> None:
    def killed_while_holding() -> None:
        with run_lock(tmp_path):
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(killed_while_holding) == -signal.SIGKILL
    assert (tmp_path / "lock").exists()
    with run_lock(tmp_path):
        pass


@pytest.mark.parametrize("what", ["directory", "fifo", "link"])
def test_what_is_no_lock_file_is_named_and_never_waited_for(tmp_path: Path, what: str) -> None:
    path = tmp_path / "lock"
    if what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/etc/passwd")
    with pytest.raises(StorageFailed, match=str(path)), run_lock(tmp_path):
        pass


def test_a_run_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(StorageFailed, match="cannot open the lock"), run_lock(tmp_path / "absent"):
        pass
