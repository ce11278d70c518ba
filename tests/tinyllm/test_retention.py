"""What may go, what stays, and that nothing but our own is ever touched."""

import errno
import os
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import flip, found_step, make_ckpt, names, save, tree
from tinyllm.durable import open_directory
from tinyllm.errors import StorageFailed
from tinyllm.paths import MANIFEST
from tinyllm.retention import Line, doomed_steps, remove_tree
from tinyllm.writer import save_checkpoint


def doomed(
    steps: list[int],
    *,
    newest: int,
    keep: int | None,
    bad: tuple[int, ...] = (),
    abandoned: tuple[int, ...] = (),
) -> list[int]:
    """``doomed_steps`` where all but ``bad`` verify."""
    return doomed_steps(
        steps,
        newest=newest,
        keep=keep,
        abandoned=frozenset(abandoned),
        verifies=lambda step: step not in bad,
    )


def test_the_newest_by_number_stay() -> None:
    assert doomed([8, 9, 10, 11], newest=11, keep=2) == [8, 9]
    assert doomed([9_000, 10_000], newest=10_000, keep=1) == [9_000]


def test_none_keeps_all() -> None:
    assert doomed([1, 2, 3], newest=3, keep=None) == []


def test_a_corrupt_newer_one_never_pushes_out_a_good_older_one() -> None:
    assert doomed([1, 2, 3, 4], newest=4, keep=2, bad=(3,)) == [1]
    assert doomed([1, 2, 3, 4], newest=4, keep=2, bad=(2, 3)) == []


def test_what_does_not_verify_never_goes() -> None:
    assert doomed([1, 2, 3], newest=3, keep=1, bad=(1, 2)) == []


def test_an_abandoned_line_goes_and_other_newer_ones_neither_count_nor_go() -> None:
    assert doomed([1, 2, 8, 9], newest=2, keep=2) == []
    assert doomed([1, 2, 8, 9], newest=2, keep=2, abandoned=(8, 9)) == [8, 9]
    assert doomed([1, 2, 8, 9], newest=2, keep=1, abandoned=(8, 9), bad=(9,)) == [1, 8]


@given(
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
    st.integers(1, 5),
    st.data(),
)
def test_enough_good_ones_always_remain(
    steps: set[int], bad: set[int], abandoned: set[int], keep: int, data: st.DataObject
) -> None:
    newest = data.draw(st.integers(0, 40))
    steps |= {newest}
    bad -= {newest}
    gone = doomed(
        sorted(steps), newest=newest, keep=keep, bad=tuple(bad), abandoned=tuple(abandoned)
    )
    good_before = {s for s in steps if s <= newest} - bad
    good_after = good_before - set(gone)
    assert newest not in gone
    assert not set(gone) & bad
    assert good_after == set(sorted(good_before)[-keep:])
    assert {s for s in gone if s > newest} == {s for s in steps & abandoned if s > newest} - bad


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    return make_ckpt(tmp_path)


def test_saves_keep_the_newest(ckpt: Path) -> None:
    assert save(ckpt, 4, 8, 12, 16, keep=2) == [4, 8, 12, 16]
    assert names(ckpt) == ["LATEST", "step-000012", "step-000016"]


def test_keeping_all_keeps_all(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12)
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008", "step-000012"]


def test_a_process_that_resumed_verifies_what_it_did_not_write(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12)
    flip(ckpt / "step-000008" / "model.safetensors", 300)
    told: list[tuple[str, str]] = []
    line = checkpoints.resumed_line(ckpt)
    line.tell = lambda *words: told.append(words)
    save(ckpt, 16, 20, keep=2, line=line)
    assert names(ckpt) == ["LATEST", "step-000008", "step-000016", "step-000020"]
    ((name, reason),) = told
    assert name == "step-000008"
    assert reason.startswith("does not verify and is left alone: model.safetensors: sha256 is ")


def test_what_is_not_ours_is_reported_once_and_left_alone(ckpt: Path, tmp_path: Path) -> None:
    """Copies without a manifest were once taken for leftovers and deleted: the only copy."""
    save(ckpt, 4, 8)
    shutil.copytree(ckpt / "step-000008", ckpt / "step-000002")  # a copy under another name
    shutil.copytree(ckpt / "step-000008", ckpt / "step-000003")
    (ckpt / "step-000003" / MANIFEST).unlink()
    outside = tmp_path / "outside"
    shutil.copytree(ckpt / "step-000008", outside)
    (ckpt / "step-000001").symlink_to(outside)
    for stray in ("step-old", "step-0000005", "backup.tmp", "step-6.tmp", ".nfs000001"):
        (ckpt / stray).mkdir()
        (ckpt / stray / "precious").write_text("x")
    before = tree(ckpt)
    told: list[str] = []
    line = checkpoints.resumed_line(ckpt)
    line.tell = lambda name, _: told.append(name)
    save(ckpt, 12, 16, 20, keep=1, line=line)
    after = tree(ckpt)
    ours = ("step-000004", "step-000008", "step-000020", "LATEST")
    assert {k: v for k, v in before.items() if not k.startswith(ours)} == {
        k: v for k, v in after.items() if not k.startswith(ours)
    }
    assert "step-000004" not in after
    assert sorted(told) == [
        ".nfs000001",
        "backup.tmp",
        "step-0000005",
        "step-000001",
        "step-000002",
        "step-000003",
        "step-6.tmp",
        "step-old",
    ]


def test_what_a_crash_left_goes_with_the_next_save_and_not_before(ckpt: Path) -> None:
    save(ckpt, 4)
    leftovers = ["step-000008.tmp", "step-000004.aside-1.tmp", "step-000002.aside-3.tmp"]
    for name in leftovers:
        shutil.copytree(ckpt / "step-000004", ckpt / name)
        (ckpt / name / "below").mkdir()
        (ckpt / name / "below" / "file").write_text("x")
    (ckpt / "LATEST.tmp").write_text("step-0")
    with pytest.raises(ValueError, match="state of step"):
        save_checkpoint(
            ckpt,
            checkpoints.Snapshot(
                step=8,
                parameters=[],
                optimizer=[],
                optimizer_name="sgd",
                config=b"{}",
                tokenizer=None,
                generation_config=None,
                state=checkpoints.state(9),
            ),
            keep_ckpts=1,
            announce=lambda _: None,
            line=Line(),
        )
    assert set(leftovers) < set(names(ckpt))
    save(ckpt, 8)
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008"]


def test_links_are_unlinked_and_never_followed(ckpt: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    save(ckpt, 4)
    (ckpt / "step-000008.tmp").symlink_to(outside)
    (ckpt / "LATEST.tmp").symlink_to(outside / "precious")
    (ckpt / "step-000003.tmp").mkdir()
    (ckpt / "step-000003.tmp" / "inside").symlink_to(outside)
    save(ckpt, 8)
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008"]
    assert (outside / "precious").read_text() == "x"
    assert (ckpt / "LATEST").read_text() == "step-000008\n"


@pytest.mark.parametrize("number", [errno.ENOTEMPTY, errno.EBUSY, errno.EACCES])
def test_what_cannot_go_now_is_reported_and_goes_with_a_later_save(
    ckpt: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On NFS a file that is open elsewhere stays as .nfs and the directory cannot go yet."""
    told: list[tuple[str, str]] = []
    line = Line(tell=lambda *words: told.append(words))
    save(ckpt, 4, 8, line=line)

    def refusing(*arguments: object, **more: object) -> None:
        del arguments, more
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refusing)
        save(ckpt, 12, keep=2, line=line)
    assert names(ckpt) == ["LATEST", "step-000004.aside-1.tmp", "step-000008", "step-000012"]
    ((name, reason),) = told
    assert name == "step-000004.aside-1.tmp"
    assert "could not be removed now" in reason
    save(ckpt, 16, keep=2, line=line)
    assert names(ckpt) == ["LATEST", "step-000012", "step-000016"]


def test_what_somebody_else_removed_meanwhile_is_no_error(ckpt: Path) -> None:
    line = Line()
    save(ckpt, 4, 8, line=line)
    announced = []

    def announce(step: int) -> None:
        shutil.rmtree(ckpt / "step-000004")  # after the save listed the directory
        announced.append(step)

    save_checkpoint(ckpt, checkpoints.snapshot(12), keep_ckpts=2, announce=announce, line=line)
    assert announced == [12]
    assert names(ckpt) == ["LATEST", "step-000008", "step-000012"]


def test_a_disk_error_while_deleting_is_a_failed_save_of_what_is_safe_already(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    save(ckpt, 4, line=line)

    def failing(*arguments: object, **more: object) -> None:
        del arguments, more
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "unlink", failing)
    with pytest.raises(StorageFailed, match=r"step-000004\.aside-1\.tmp/MANIFEST\.json: cannot"):
        save(ckpt, 8, keep=1, line=line)
    assert found_step(ckpt) == 8


def test_a_tree_of_any_depth_does_not_exhaust_us(tmp_path: Path) -> None:
    deep = tmp_path / "tree"
    deep.mkdir()
    for level in range(30):
        deep = deep / str(level)
        deep.mkdir()
    with (
        open_directory(str(tmp_path)) as directory,
        pytest.raises(StorageFailed, match="nested too deeply"),
    ):
        remove_tree(directory, "tree")


def test_a_rewound_line_goes_only_when_the_new_one_is_durable(ckpt: Path) -> None:
    save(ckpt, 4, 8, 12, 16)
    before = tree(ckpt)
    line = checkpoints.resumed_line(ckpt, ckpt / "step-000004")
    assert tree(ckpt) == before
    assert line.abandoned == {8, 12, 16}
    seen = []
    save_checkpoint(
        ckpt,
        checkpoints.snapshot(6, line=1),
        keep_ckpts=2,
        announce=lambda _: seen.append(names(ckpt)),
        line=line,
    )
    everything = ["LATEST"] + [f"step-{step:06d}" for step in (4, 6, 8, 12, 16)]
    assert seen == [everything]
    assert names(ckpt) == ["LATEST", "step-000004", "step-000006"]
    assert checkpoints.latest(ckpt) == "step-000006"
