"""Which checkpoint is taken, for every way in which LATEST and the directories can be wrong."""

import errno
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import (
    FILES,
    find,
    flip,
    found_step,
    make_ckpt,
    rehash,
    save,
    tree,
    write_latest,
)
from tinyllm.errors import ResumeRefused, StorageFailed
from tinyllm.paths import MANIFEST
from tinyllm.reader import Skip, find_checkpoint, load_tensors, tensor_table


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 10, 20 and 30, all good."""
    ckpt = make_ckpt(tmp_path_factory.mktemp("good"))
    save(ckpt, 10, 20, 30)
    return ckpt


@pytest.fixture
def ckpt(good: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return shutil.copytree(good, tmp_path / "ckpt")


def test_the_one_that_latest_names_is_taken(ckpt: Path) -> None:
    before = tree(ckpt)
    found = find_checkpoint(ckpt)
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.skips, found.pointer) == (30, (), "step-000030")
    assert found.checkpoint.state == checkpoints.state(30)
    assert found.checkpoint.optimizer_name == "adamw"
    snapshot = checkpoints.snapshot(30)
    assert found.checkpoint.config == snapshot.config
    assert found.checkpoint.tokenizer == snapshot.tokenizer
    assert found.checkpoint.generation_config == snapshot.generation_config
    for file, tensors in (
        ("model.safetensors", snapshot.parameters),
        ("optimizer.safetensors", snapshot.optimizer),
    ):
        loaded = load_tensors(found.checkpoint, file)
        table = tensor_table(found.checkpoint, file)
        assert list(loaded) == list(table) == sorted(name for name, _ in tensors)
        for name, tensor in tensors:
            assert torch.equal(loaded[name], tensor)
            assert (table[name].dtype, table[name].shape) == ("F32", tuple(tensor.shape))
    found.checkpoint.close()
    assert tree(ckpt) == before


def test_what_was_verified_is_loaded_even_when_its_name_is_gone(ckpt: Path) -> None:
    found = find_checkpoint(ckpt)
    assert found.checkpoint is not None
    shutil.rmtree(ckpt)
    loaded = load_tensors(found.checkpoint, "model.safetensors")
    assert torch.equal(loaded["wte"], checkpoints.snapshot(30).parameters[0][1])
    found.checkpoint.close()


def test_the_pointer_wins_over_a_newer_directory(ckpt: Path) -> None:
    """A crash between the rename and LATEST: the newer one was never announced."""
    write_latest(ckpt, 20)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.skips, found.newer) == (20, (), (30,))


def test_nothing_was_ever_saved(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", make_ckpt(tmp_path)):
        found = find(path)
        assert (found.checkpoint, found.skips, found.steps) == (None, (), ())


def _directory(path: Path) -> None:
    path.mkdir()


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))


def _loop(path: Path) -> None:
    path.symlink_to("LATEST")


def _link(path: Path) -> None:
    target = path.with_name("pointer")
    target.write_text("step-000010\n")
    path.symlink_to(target)


def _chain(path: Path) -> None:
    path.with_name("link-0").write_text("step-000010\n")
    for i in range(50):
        path.with_name(f"link-{i + 1}").symlink_to(f"link-{i}")
    path.symlink_to("link-50")


def _terabyte(path: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (None, "is missing"),
        (_directory, "is a directory, not a file"),
        (_fifo, "is a FIFO, not a file"),
        (_socket, "is a socket or a device, not a file"),
        (_loop, "is a symbolic link, which is not followed"),
        (_link, "is a symbolic link, which is not followed"),
        (_chain, "is a symbolic link, which is not followed"),
        (_terabyte, f"is {1 << 40} bytes long; at most 64 are read"),
        (b"", "is empty"),
        (b"\n", r"holds '\n', which is not a step's name and a newline"),
        (b"step-000010", "holds 'step-000010', which"),
        (b"step-000010\r\n", r"holds 'step-000010\r\n', which"),
        (b"\xef\xbb\xbfstep-000010\n", "holds '"),
        (bytes(4096), "is 4096 bytes long; at most 64 are read"),
        (bytes(12), r"holds '\x00\x00"),
        (b"../other/step-000010\n", "holds '../other/step-000010"),
        (b"/abs/step-000010\n", "holds '/abs/step-000010"),
        (b"step-000010/\n", "holds 'step-000010/"),
        (b"step-10\n", "holds 'step-10"),
        (b" step-000010\n", "holds ' step-000010"),
        (b"step-000010\nstep-000020\n", "holds 'step-000010"),
        (b"step-000040\n", "names step-000040, which does not exist"),
        (b"\xd9\xa0" * 6, "holds '"),
    ],
)
def test_a_pointer_that_is_none_gives_its_reason_and_the_newest_that_verifies(
    ckpt: Path, make: Callable[[Path], None] | bytes | None, reason: str
) -> None:
    pointer = ckpt / "LATEST"
    pointer.unlink()
    if isinstance(make, bytes):
        pointer.write_bytes(make)
    elif make is not None:
        make(pointer)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 30
    (skip,) = found.skips
    assert skip.name == "LATEST"
    assert skip.reason.startswith(reason)
    assert found.pointer in ("", "step-000040")


@given(st.binary(max_size=80))
def test_a_pointer_of_rubbish_never_leads_anywhere(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    ckpt = tmp_path_factory.getbasetemp() / "pointers-of-rubbish"
    ckpt.mkdir(exist_ok=True)
    (ckpt / "LATEST").write_bytes(content)
    found = find(ckpt)
    assert (found.checkpoint, len(found.skips), found.pointer) == (None, 1, "")


@pytest.mark.parametrize("first_files", range(len(FILES) + 1))
def test_every_prefix_of_the_newest_is_skipped_alike(ckpt: Path, first_files: int) -> None:
    """Whatever was written before the crash, the answer is the same."""
    order = ["model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json"]
    order += ["generation_config.json", "trainer_state.json"]
    for file in [*order[first_files:], MANIFEST]:
        (ckpt / "step-000030" / file).unlink()
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert found.skips == (Skip("step-000030", f"{MANIFEST}: is missing"),)


@pytest.mark.parametrize("files", [*((file,) for file in (*FILES, MANIFEST)), (*FILES, MANIFEST)])
def test_a_file_of_no_length_is_skipped(ckpt: Path, files: tuple[str, ...]) -> None:
    """After a power cut files come back with their name and no content."""
    for file in files:
        (ckpt / "step-000030" / file).write_bytes(b"")
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert [skip.name for skip in found.skips] == ["step-000030"]
    assert files[-1] in found.skips[0].reason or MANIFEST in found.skips[0].reason


def test_two_damaged_ones_are_both_named_and_the_third_is_taken(ckpt: Path) -> None:
    (ckpt / "step-000030" / MANIFEST).unlink()
    flip(ckpt / "step-000020" / "model.safetensors", 500)
    before = tree(ckpt)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 10
    assert [skip.name for skip in found.skips] == ["step-000030", "step-000020"]
    assert tree(ckpt) == before


def test_a_state_without_its_cursor_is_skipped_although_hashes_agree(ckpt: Path) -> None:
    path = ckpt / "step-000030" / "trainer_state.json"
    state = json.loads(path.read_text())
    del state["cursor"]
    path.write_text(json.dumps(state))
    rehash(path.parent)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert "cursor" in found.skips[0].reason


def test_nothing_verifies(ckpt: Path) -> None:
    for step in (10, 20, 30):
        flip(ckpt / f"step-0000{step}" / "config.json", 0)
    found = find(ckpt)
    assert found.checkpoint is None
    assert found.steps == (10, 20, 30)
    assert found.why_nothing().count("\n") == 2
    assert "  step-000010: config.json: sha256 is " in found.why_nothing()


def test_a_newer_one_is_taken_rather_than_nothing(ckpt: Path) -> None:
    write_latest(ckpt, 10)
    flip(ckpt / "step-000010" / "config.json", 0)
    assert found_step(ckpt) == 30


def test_order_is_by_number_and_other_widths_are_strays(ckpt: Path) -> None:
    for name in ("step-0100000", "step-9000", "step-", "step-old", "backup-step-000030"):
        shutil.copytree(ckpt / "step-000030", ckpt / name)
    (ckpt / "step-000030").rename(ckpt / "step-900000")
    rehashed = json.loads((ckpt / "step-900000" / MANIFEST).read_text())
    assert rehashed["step"] == 30  # so it does not verify under that name
    (ckpt / "LATEST").unlink()
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert found.steps == (10, 20, 900_000)
    assert found.strays == (
        "backup-step-000030",
        "step-",
        "step-0100000",
        "step-9000",
        "step-old",
    )


def test_a_complete_staging_directory_is_not_taken(ckpt: Path) -> None:
    """It was never renamed: its save did not happen."""
    save(ckpt, 40)
    (ckpt / "step-000040").rename(ckpt / "step-000040.tmp")
    write_latest(ckpt, 30)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert (found.checkpoint.step, found.temporary) == (30, ("step-000040.tmp",))
    (ckpt / "LATEST").unlink()
    assert found_step(ckpt) == 30


def test_a_step_directory_that_is_a_link_is_not_followed(ckpt: Path, tmp_path: Path) -> None:
    (ckpt / "step-000030").rename(tmp_path / "elsewhere")
    (ckpt / "step-000030").symlink_to(tmp_path / "elsewhere")
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert found.skips == (Skip("step-000030", "is a symbolic link, which is not followed"),)


def test_an_explicit_older_step_is_a_rewind(ckpt: Path) -> None:
    for path in (ckpt / "step-000010", Path("step-000010"), Path(f"{ckpt}/step-000010/")):
        found = find(ckpt, path)
        assert found.checkpoint is not None
        assert (found.checkpoint.step, found.rewound, found.newer) == (10, True, (20, 30))


def test_an_explicit_step_that_does_not_verify_falls_back_to_older_ones_only(ckpt: Path) -> None:
    flip(ckpt / "step-000020" / "model.safetensors", 400)
    assert find(ckpt, ckpt / "step-000020").checkpoint is not None
    assert find(ckpt, ckpt / "step-000020").skips[0].name == "step-000020"
    flip(ckpt / "step-000010" / "model.safetensors", 400)
    found = find(ckpt, ckpt / "step-000020")
    assert found.checkpoint is None
    assert [skip.name for skip in found.skips] == ["step-000020", "step-000010"]


def test_an_explicit_step_that_is_not_there_is_said_to_be_missing(ckpt: Path) -> None:
    found = find(ckpt, ckpt / "step-000025")
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert found.skips == (Skip("step-000025", "does not exist"),)


@pytest.mark.parametrize("text", ["elsewhere/step-000010", "LATEST", "step-10", "/", "."])
def test_an_explicit_path_that_is_no_step_of_this_run_is_refused(
    ckpt: Path, text: str, tmp_path: Path
) -> None:
    shutil.copytree(ckpt, tmp_path / "elsewhere")
    path = tmp_path / text if text.startswith("elsewhere") else Path(text)
    with pytest.raises(ResumeRefused, match="not a step directory of this run"):
        find(ckpt, path)


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE, errno.EACCES, errno.ENOMEM])
def test_being_short_of_something_is_not_taken_for_damage(
    ckpt: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Falling back would silently lose work that is there."""
    real_open = os.open

    def failing(path: str, *rest: object, **more: object) -> int:
        if path == "model.safetensors":
            raise OSError(number, os.strerror(number))
        return real_open(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", failing)
    with pytest.raises(StorageFailed, match=r"step-000030/model\.safetensors: cannot be read"):
        find_checkpoint(ckpt)


def test_an_unreadable_sector_falls_back_and_says_so(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.preadv
    calls = []

    def failing(fd: int, *rest: object) -> int:
        calls.append(fd)
        if len(calls) == 1:
            raise OSError(errno.EIO, "I/O error")
        return real(fd, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "preadv", failing)
    found = find(ckpt)
    assert found.checkpoint is not None
    assert found.checkpoint.step == 20
    assert "cannot be read: Input/output error (EIO)" in found.skips[0].reason


def test_no_descriptor_is_left_open(ckpt: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    flip(ckpt / "step-000030" / "config.json", 0)
    (ckpt / "step-000020" / "trainer_state.json").write_text("{}")
    rehash(ckpt / "step-000020")
    assert found_step(ckpt) == 10
    assert len(os.listdir("/proc/self/fd")) == before
