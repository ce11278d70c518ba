"""Killed at every failpoint of a save, for real (SIGKILL in a fork), in every awkward situation.

After each kill the same must hold: LATEST is absent or names a checkpoint that verifies; resume
finds the old one or the new one, never less than was announced; and the next save leaves nothing
temporary behind.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import (
    find,
    killed,
    killed_at_number,
    latest,
    make_ckpt,
    names,
    places,
    save,
    tree,
)
from tinyllm.verification import verify_directory

Situation = Callable[[Path], None]


def saving(ckpt: Path, *, rewound: bool = False) -> Callable[[], None]:
    """Resume (from step 8, when ``rewound``), then save step 12, keeping two."""

    def work() -> None:
        line = checkpoints.resumed_line(ckpt, ckpt / "step-000008" if rewound else None)
        save(ckpt, 12, keep=2, line=line, of_line=int(rewound))

    return work


def first_save(ckpt: Path) -> None:
    del ckpt


def with_retention(ckpt: Path) -> None:
    save(ckpt, 4, 8)


def with_leftovers_of_a_crash(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12)
    (ckpt / "step-000012").rename(ckpt / "step-000012.tmp")
    shutil.copytree(ckpt / "step-000004", ckpt / "step-000004.aside-1.tmp")
    (ckpt / "LATEST.tmp").write_text("step-0000")
    checkpoints.write_latest(ckpt, 8)


def with_a_newer_one_that_was_never_announced(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12)
    checkpoints.write_latest(ckpt, 8)


def with_a_damaged_one_in_its_place(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12)
    (ckpt / "step-000012" / "model.safetensors").write_bytes(b"")


def after_a_rewind(ckpt: Path) -> None:
    """LATEST names the very step that is saved again, and newer ones are abandoned."""
    save(ckpt, 4, 8, 12, 16, 20)
    checkpoints.write_latest(ckpt, 12)


SITUATIONS = (
    first_save,
    with_retention,
    with_leftovers_of_a_crash,
    with_a_newer_one_that_was_never_announced,
    with_a_damaged_one_in_its_place,
    after_a_rewind,
)


@pytest.mark.parametrize("situation", SITUATIONS)
def test_a_kill_at_any_point_leaves_what_was_promised(situation: Situation, tmp_path: Path) -> None:
    template = make_ckpt(tmp_path)
    situation(template)
    start = find(template).checkpoint
    rewound = situation is after_a_rewind
    reached = places(saving(shutil.copytree(template, tmp_path / "count"), rewound=rewound))
    assert reached
    announced = False
    for place in reached:
        ckpt = shutil.copytree(template, tmp_path / "ckpt")
        assert killed(saving(ckpt, rewound=rewound), place)
        announced |= place == ("save.announced", 1)
        named = latest(ckpt)
        if named and situation is not with_a_damaged_one_in_its_place:
            assert verify_directory(str(ckpt / named)).verifies, f"{place}: LATEST names {named}"
        found = find(ckpt).checkpoint
        assert (found is None) <= (start is None), f"{place}: nothing is found"
        if announced:
            assert found is not None
            assert found.step == 12, f"{place}: step 12 was announced"
        elif start is not None and not rewound:
            assert found is not None
            assert found.step >= start.step, f"{place}: went back to {found.step}"
        save(ckpt, 12, 16, keep=2)
        assert names(ckpt) == ["LATEST", "step-000012", "step-000016"] or (
            rewound and names(ckpt)[-1] == "step-000020"
        ), place
        shutil.rmtree(ckpt)


def test_a_kill_leaves_no_step_directory_that_is_half_deleted(tmp_path: Path) -> None:
    template = make_ckpt(tmp_path)
    save(template, 4, 8)
    reached = places(saving(shutil.copytree(template, tmp_path / "count")))
    assert sum(name == "retention.file-unlinked" for name, _ in reached) == 7
    for place in reached:
        ckpt = shutil.copytree(template, tmp_path / "ckpt")
        assert killed(saving(ckpt), place)
        for name in names(ckpt):
            if name.startswith("step-") and not name.endswith(".tmp"):
                assert verify_directory(str(ckpt / name)).verifies, f"{place}: {name}"
        shutil.rmtree(ckpt)


def test_kills_upon_kills_leave_nothing_behind_in_the_end(tmp_path: Path) -> None:
    """Each attempt is killed one point later than the one before, on what that one left."""
    ckpt = make_ckpt(tmp_path)
    save(ckpt, 4, 8)
    number = 1
    while killed_at_number(saving(ckpt), number) is not None:
        number += 1
        assert number < 200
    assert number > 20
    assert names(ckpt) == ["LATEST", "step-000008", "step-000012"]
    other = make_ckpt(tmp_path / "other")
    save(other, 4, 8, 12, keep=2)
    assert tree(ckpt) == tree(other)
