"""The first save after a rewind, under power loss: LATEST moves back before what it names goes."""

from collections.abc import Callable
from pathlib import Path

import pytest

from fault_injection import seccomp
from harness import explore
from tests.tinyllm.checkpoints import found_step, make_ckpt, save, silent
from tinyllm import writer
from tinyllm.paths import ckpt_dir, run_dir
from tinyllm.reader import find_checkpoint
from tinyllm.retention import line_from
from tinyllm.verification import verify_directory
from tinyllm.writer import Save

pytestmark = [
    pytest.mark.skipif(
        seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
    ),
    pytest.mark.timeout(300),
]

BACK_TO = "step-000004"
# By one, where LATEST names what the next save replaces; by two, where another is given up.
LAST = {"by one": (6,), "by two": (6, 8)}
# Enough for every set of the renames; only the files being written have more.
BOUND = 16


def ckpt_of(root: Path) -> Path:
    return ckpt_dir(run_dir(root, "r"))


def trained(*steps: int) -> Callable[[Path], None]:
    def setup(root: Path) -> None:
        save(make_ckpt(root), 4, *steps)

    return setup


def rewind(root: Path) -> None:
    """Go back, and save step 6 of another line."""
    ckpt = ckpt_of(root)
    line = line_from(find_checkpoint(ckpt, ckpt / BACK_TO), tell=silent)
    print("saved", *save(ckpt, 6, keep=3, line=line, of_line=1))


def one_is_found(root: Path, told: list[str]) -> None:
    """LATEST names a complete checkpoint; once the save is announced, that one."""
    ckpt = ckpt_of(root)
    name = (ckpt / "LATEST").read_text().strip()
    assert verify_directory(str(ckpt / name)).verifies
    assert found_step(ckpt) == int(name.partition("-")[2])
    if told:
        assert name == "step-000006"


@pytest.mark.parametrize("last", LAST.values(), ids=LAST)
def test_a_rewind_survives_a_power_loss(last: tuple[int, ...]) -> None:
    found = explore(setup=trained(*last), workload=rewind, check=one_is_found, bound=BOUND)
    found.raise_for_violations()
    assert any("aside" in operation for operation in found.operations)


def test_latest_moved_back_and_not_synced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is moved aside may be durable before LATEST has stopped naming it."""
    real = writer.publish_pointer

    def without_sync(save: Save, name: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            if name == BACK_TO:
                patch.setattr(writer, "sync_pointer", lambda _: None)
            real(save, name)

    monkeypatch.setattr(writer, "publish_pointer", without_sync)
    found = explore(
        setup=trained(6), workload=rewind, check=one_is_found, models=["posix"], bound=BOUND
    )
    [needs] = {v.needs for v in found.violations if v.explained}
    assert needs == (
        "fsync(runs/r/ckpt/) between #26 rename runs/r/ckpt/LATEST.tmp -> LATEST "
        "and #27 rename runs/r/ckpt/step-000006 -> step-000006.aside-1.tmp"
    )
