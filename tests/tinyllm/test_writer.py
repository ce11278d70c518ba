"""The save: its order, call by call, and what an error at any of its calls leaves behind."""

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import found_step, in_child, make_ckpt, names, save, snapshot, tree
from tinyllm import pastcache, tensors, writer
from tinyllm.errors import StorageFailed
from tinyllm.hashing import HashAhead
from tinyllm.paths import MANIFEST
from tinyllm.retention import Line
from tinyllm.verification import verify_directory
from tinyllm.writer import Snapshot, save_checkpoint

# The calls that change something on the disk, or make it durable, as the protocol makes them.
CALLS = ("open", "write", "writev", "fsync", "mkdir", "rename", "unlink", "rmdir")


@pytest.fixture
def ckpt(tmp_path: Path) -> Path:
    return make_ckpt(tmp_path)


class Watched:
    """``os`` calls as short words, in order; the ``fail_at``-th (from 1) fails with ``number``."""

    def __init__(self, patch: pytest.MonkeyPatch, *, fail_at: int = 0, number: int = 0) -> None:
        self.words: list[str] = []
        self.fail_at = fail_at
        self.number = number
        self.failed = ""
        for name in CALLS:
            patch.setattr(os, name, self._watching(name, getattr(os, name)))

    def _watching(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **more: Any) -> Any:
            if name == "open" and not arguments[1] & os.O_CREAT:
                return real(*arguments, **more)
            what = arguments[0]
            if isinstance(what, int):
                what = os.readlink(f"/proc/self/fd/{what}")
            word = f"{name} {os.path.basename(what)}"
            if name == "rename":
                word += f" {os.path.basename(arguments[1])}"
            self.words.append(word)
            if len(self.words) == self.fail_at:
                self.failed = word
                raise OSError(self.number, os.strerror(self.number))
            return real(*arguments, **more)

        return call


FILE_ORDER = ("model.safetensors", "optimizer.safetensors", "config.json", "tokenizer.json")
FILE_ORDER += ("generation_config.json", "trainer_state.json", MANIFEST)


def expected_save(name: str) -> list[str]:
    """The calls of a save into a directory without leftovers, up to the announcement."""
    words = [f"mkdir {name}.tmp"]
    for file in FILE_ORDER:
        write = "writev" if file.endswith(".safetensors") else "write"
        words += [f"open {file}", f"{write} {file}", f"fsync {file}"]
    return [
        *words,
        f"fsync {name}.tmp",
        f"rename {name}.tmp {name}",
        "fsync ckpt",
        "open LATEST.tmp",
        "write LATEST.tmp",
        "fsync LATEST.tmp",
        "rename LATEST.tmp LATEST",
        "fsync ckpt",
    ]


def expected_deletion(name: str) -> list[str]:
    """The calls by which retention deletes ``name``."""
    away = f"{name}.aside-1.tmp"
    unlinks = [f"unlink {file}" for file in sorted(FILE_ORDER)]
    return [f"rename {name} {away}", "fsync ckpt", *unlinks, f"rmdir {away}"]


def test_the_order_is_the_protocols_and_no_call_is_made_twice(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = Line()
    save(ckpt, 4, 8, line=line)
    with monkeypatch.context() as patch:
        watched = Watched(patch)
        save_checkpoint(
            ckpt,
            checkpoints.snapshot(12),
            keep_ckpts=2,
            announce=lambda step: watched.words.append(f"announce {step}"),
            line=line,
        )
    assert watched.words == [
        *expected_save("step-000012"),
        "announce 12",
        *expected_deletion("step-000004"),
    ]


def test_two_saves_of_one_state_are_the_same_bytes(tmp_path: Path) -> None:
    one, other = make_ckpt(tmp_path / "one"), make_ckpt(tmp_path / "other")
    save(one, 4)
    save(other, 4)
    assert tree(one) == tree(other)


def test_what_was_saved_is_in_the_files_and_the_files_in_the_manifest(ckpt: Path) -> None:
    save(ckpt, 4)
    step_dir = ckpt / "step-000004"
    manifest = json.loads((step_dir / MANIFEST).read_text())
    assert (manifest["format"], manifest["kind"], manifest["step"]) == (
        "tinyllm-manifest/1",
        "checkpoint",
        4,
    )
    assert sorted([*manifest["files"], MANIFEST]) == names(step_dir)
    for name, entry in manifest["files"].items():
        data = (step_dir / name).read_bytes()
        assert entry == {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    assert (step_dir / "config.json").read_bytes() == checkpoints.snapshot(4).config
    assert (ckpt / "LATEST").read_bytes() == b"step-000004\n"


def test_optional_files_are_left_out(ckpt: Path) -> None:
    full = checkpoints.snapshot(4)
    bare = Snapshot(
        step=4,
        parameters=full.parameters,
        optimizer=[],
        optimizer_name="sgd",
        config=b"{}",
        tokenizer=None,
        generation_config=None,
        state=full.state,
    )
    save_checkpoint(ckpt, bare, keep_ckpts=1, announce=lambda _: None, line=Line())
    assert names(ckpt / "step-000004") == [
        MANIFEST,
        "config.json",
        "model.safetensors",
        "optimizer.safetensors",
        "trainer_state.json",
    ]
    assert found_step(ckpt) == 4


@pytest.mark.parametrize("keep", [0, -1])
def test_keeping_fewer_than_one_is_refused_and_nothing_is_touched(ckpt: Path, keep: int) -> None:
    """-1 was once documented as "keep all", and deleted all."""
    save(ckpt, 4)
    before = tree(ckpt)
    with pytest.raises(ValueError, match=f"keep_ckpts is {keep}"):
        save(ckpt, 8, keep=keep)
    assert tree(ckpt) == before


def test_modes_follow_the_umask(ckpt: Path) -> None:
    """The library writes 0600 whatever the umask says, and others then cannot read the model."""
    old = os.umask(0o027)
    try:
        save(ckpt, 4)
    finally:
        os.umask(old)
    step_dir = ckpt / "step-000004"
    assert step_dir.stat().st_mode & 0o777 == 0o750
    assert {path.stat().st_mode & 0o777 for path in step_dir.iterdir()} == {0o640}


TOTAL = len(expected_save("step-000012"))
STORAGE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EMFILE)


@pytest.mark.parametrize("fail_at", range(1, TOTAL + 1))
def test_an_error_at_any_call_ends_the_save_by_name_and_touches_nothing_older(
    ckpt: Path, fail_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever call fails: one clear error, the old checkpoint whole, the new one whole or not."""
    number = STORAGE_ERRORS[fail_at % len(STORAGE_ERRORS)]
    line = Line()
    save(ckpt, 8, line=line)
    before = tree(ckpt)
    announced: list[int] = []
    with monkeypatch.context() as patch:
        watched = Watched(patch, fail_at=fail_at, number=number)
        with pytest.raises(StorageFailed) as caught:
            save_checkpoint(
                ckpt,
                checkpoints.snapshot(12),
                keep_ckpts=1,
                announce=announced.append,
                line=line,
            )
    assert watched.failed
    assert caught.value.errno == number
    assert watched.failed.split()[1] in str(caught.value), watched.failed
    assert errno.errorcode[number] in str(caught.value)
    assert announced == []
    after = tree(ckpt)
    assert {name: after.get(name) for name in before if name != "LATEST"} == {
        name: what for name, what in before.items() if name != "LATEST"
    }
    renamed = fail_at > TOTAL - 6  # the rename is the seventh from the end
    assert ("step-000012" in after) is renamed
    assert not any(name.startswith("step-000012.tmp") for name in after)
    assert found_step(ckpt) == (12 if fail_at == TOTAL else 8)
    assert save(ckpt, 12, keep=1) == [12]
    assert names(ckpt) == ["LATEST", "step-000012"]


def test_after_a_failed_fsync_there_is_neither_a_second_one_nor_a_rename(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for file in (*FILE_ORDER, "step-000004.tmp"):
        word = f"fsync {file}"
        with monkeypatch.context() as patch:
            at = expected_save("step-000004").index(word) + 1
            watched = Watched(patch, fail_at=at, number=errno.EIO)
            with pytest.raises(StorageFailed, match="cannot fsync"):
                save(ckpt, 4, line=Line())
        assert watched.failed == word
        rest = watched.words[watched.words.index(word) + 1 :]
        assert {call.split()[0] for call in rest} <= {"unlink", "rmdir"}
        assert names(ckpt) == []


def test_a_full_disk_leaves_the_old_one_and_the_next_save_works(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Room for one and a half: once the old one was deleted first, and then none was left."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    here = tmp_path / "small"
    here.mkdir()
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(here)], check=True, timeout=30
    )
    request.addfinalizer(
        lambda: subprocess.run(["umount", "-l", str(here)], check=True, timeout=30)
    )
    ckpt = make_ckpt(here)
    full = checkpoints.snapshot(4)

    def large(step: int) -> Snapshot:
        return Snapshot(
            step=step,
            parameters=[("w", torch.full((40_000,), float(step)))],
            optimizer=[],
            optimizer_name="sgd",
            config=b"{}",
            tokenizer=None,
            generation_config=None,
            state=checkpoints.state(step),
        )

    line = Line()
    arguments: dict[str, Any] = {"keep_ckpts": 1, "announce": lambda _: None, "line": line}
    save_checkpoint(ckpt, large(4), **arguments)
    before = tree(ckpt)
    with pytest.raises(StorageFailed, match=r"model\.safetensors: cannot write: .*ENOSPC"):
        save_checkpoint(ckpt, large(8), **arguments)
    assert tree(ckpt) == before
    assert found_step(ckpt) == 4
    assert full.step == 4
    save(ckpt, 8, keep=1, line=line)
    assert names(ckpt) == ["LATEST", "step-000008"]


def test_a_file_size_limit_is_a_short_write_and_then_an_error(ckpt: Path) -> None:
    save(ckpt, 4)
    before = tree(ckpt)

    def limited() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (900, 900))
        with pytest.raises(StorageFailed, match=r"model\.safetensors: cannot write: .*EFBIG"):
            save(ckpt, 8)

    assert in_child(limited) == 0
    assert tree(ckpt) == before


@pytest.mark.parametrize("number", [errno.EINVAL, errno.ENOTSUP, errno.EBADF])
def test_where_directories_cannot_be_synced_the_save_succeeds_and_says_so_once(
    ckpt: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(fd: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{fd}"):
            raise OSError(number, os.strerror(number))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    told: list[tuple[str, str]] = []
    line = Line(tell=lambda *words: told.append(words))
    assert save(ckpt, 4, 8, keep=1, line=line) == [4, 8]
    assert [name for name, _ in told].count(str(ckpt)) == 1
    assert {reason for _, reason in told} == {
        "this file system cannot fsync a directory: durability is not guaranteed here"
    }


def test_a_directory_of_the_same_step_that_does_not_verify_is_replaced(ckpt: Path) -> None:
    save(ckpt, 4, 8)
    (ckpt / "step-000008" / "model.safetensors").write_bytes(b"")
    assert found_step(ckpt) == 4
    assert save(ckpt, 8) == [8]
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008"]
    assert verify_directory(str(ckpt / "step-000008")).verifies


def test_reaching_a_step_again_that_was_never_announced_gives_the_same_bytes(ckpt: Path) -> None:
    """The pointer once hit a quota; the next job died because the directory was there already."""
    save(ckpt, 4, 8)
    before = tree(ckpt)
    checkpoints.write_latest(ckpt, 4)
    assert found_step(ckpt) == 4
    assert save(ckpt, 8, 12) == [8, 12]
    after = tree(ckpt)
    assert {k: v for k, v in after.items() if k in before and k != "LATEST"} == {
        k: v for k, v in before.items() if k != "LATEST"
    }


def test_an_old_directory_goes_back_to_its_name_when_the_new_one_cannot_take_it(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(ckpt, 4, 8)
    checkpoints.write_latest(ckpt, 4)
    before = tree(ckpt)
    real = os.rename

    def rename(old: str, new: str, **more: Any) -> None:
        if (old, new) == ("step-000008.tmp", "step-000008"):
            raise OSError(errno.EIO, "I/O error")
        real(old, new, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        with pytest.raises(StorageFailed, match=r"step-000008\.tmp: cannot rename"):
            save(ckpt, 8, of_line=1)
    assert tree(ckpt) == before


def test_a_staging_directory_starts_empty(ckpt: Path) -> None:
    """Files of an earlier attempt were once swept into the next output."""
    (ckpt / "step-000004.tmp").mkdir()
    (ckpt / "step-000004.tmp" / "model-00002.safetensors").write_bytes(b"alien")
    save(ckpt, 4)
    assert names(ckpt) == ["LATEST", "step-000004"]
    assert verify_directory(str(ckpt / "step-000004")).verifies


def test_a_complete_staging_directory_survives_until_its_successor_is_complete(
    ckpt: Path,
) -> None:
    save(ckpt, 4, 8)
    (ckpt / "step-000008").rename(ckpt / "step-000008.tmp")
    checkpoints.write_latest(ckpt, 4)
    seen = []
    line = checkpoints.resumed_line(ckpt)
    save_checkpoint(
        ckpt,
        checkpoints.snapshot(8),
        keep_ckpts=None,
        announce=lambda _: seen.extend(names(ckpt)),
        line=line,
    )
    assert "step-000008.aside-1.tmp" in seen
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008"]


def test_a_directory_in_latests_place_is_moved_and_kept(ckpt: Path) -> None:
    save(ckpt, 4)
    (ckpt / "LATEST").unlink()
    (ckpt / "LATEST").mkdir()
    (ckpt / "LATEST" / "notes").write_text("x")
    assert save(ckpt, 8) == [8]
    assert (ckpt / "LATEST").read_text() == "step-000008\n"
    assert (ckpt / "LATEST.not-a-file-1" / "notes").read_text() == "x"


def test_a_link_in_latests_place_is_replaced_and_its_target_left_alone(
    ckpt: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_text("x")
    (ckpt / "LATEST").symlink_to(tmp_path / "outside")
    save(ckpt, 4)
    assert not (ckpt / "LATEST").is_symlink()
    assert (tmp_path / "outside").read_text() == "x"


def test_a_rewind_never_leaves_latest_naming_nothing(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that LATEST names is saved again on the new line: LATEST steps back first."""
    save(ckpt, 4, 8)
    line = checkpoints.resumed_line(ckpt, ckpt / "step-000004")
    seen: list[str | None] = []
    real = os.rename

    def rename(*arguments: Any, **more: Any) -> None:
        real(*arguments, **more)
        named = checkpoints.latest(ckpt)
        seen.append(named if verify_directory(str(ckpt / named)).verifies else None)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        save(ckpt, 8, keep=2, line=line, of_line=1)
    assert None not in seen
    assert "step-000004" in seen
    assert checkpoints.latest(ckpt) == "step-000008"
    assert names(ckpt) == ["LATEST", "step-000004", "step-000008"]


def test_an_interrupt_during_the_save_leaves_the_old_one(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An impatient second Ctrl-C once truncated the file under its final name."""
    save(ckpt, 4)
    before = tree(ckpt)

    def interrupted(*arguments: object) -> None:
        del arguments
        raise KeyboardInterrupt

    monkeypatch.setattr(writer, "write_manifest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        save(ckpt, 8)
    assert tree(ckpt) == before


def test_what_readers_would_refuse_fails_at_the_save(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensors, "MAX_HEADER_BYTES", 100)
    with pytest.raises(StorageFailed, match=r"model\.safetensors: cannot be written: the header"):
        save(ckpt, 4)
    assert names(ckpt) == []


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the checkpoint were large: many batches, hashed in threads, written past the cache."""
    monkeypatch.setattr(tensors, "PIECE_BYTES", 64)
    monkeypatch.setattr(writer, "PIECE_BYTES", 64)
    monkeypatch.setattr(pastcache, "SMALL_BYTES", 0)
    monkeypatch.setattr(pastcache, "CHUNK_BYTES", 512)
    monkeypatch.setattr(pastcache, "_BLOCK_BYTES", 512)
    monkeypatch.setattr("tinyllm.hashing.INLINE_BYTES", 0)
    monkeypatch.setattr(writer, "INLINE_BYTES", 0)


@pytest.fixture(params=["contiguous", "copied"])
def layout(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors whose memory is the file's bytes, and such that must be copied piece by piece."""
    if request.param == "copied":
        return  # one of the tensors is a transposed view
    monkeypatch.setattr(checkpoints, "snapshot", contiguous_snapshot)


def contiguous_snapshot(step: int, *, line: int = 0) -> Snapshot:
    """A checkpoint of which no tensor has to be copied."""
    made = snapshot(step, line=line)
    return replace(
        made,
        parameters=[(name, tensor.contiguous()) for name, tensor in made.parameters],
        optimizer=[(name, tensor.contiguous()) for name, tensor in made.optimizer],
    )


@pytest.mark.usefixtures("layout")
def test_a_large_checkpoint_is_the_same_bytes_as_a_small_one(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    small = make_ckpt(tmp_path / "small")
    save(small, 4)
    request.getfixturevalue("small_batches")
    large = make_ckpt(tmp_path / "large")
    save(large, 4)
    assert tree(large) == tree(small)
    assert verify_directory(str(large / "step-000004")).verifies


@pytest.mark.usefixtures("small_batches")
def test_both_files_are_hashed_while_the_first_one_is_synced(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_sync, real_hash = writer.sync_file, HashAhead._hash
    hashing = threading.Barrier(3)  # two hashes, and the first file's fsync
    synced: list[str] = []

    def hash_both(ahead: HashAhead) -> str:
        hashing.wait(30)
        return real_hash(ahead)

    def sync(fd: int, *, path: str) -> None:
        if not synced:
            hashing.wait(30)
        synced.append(os.path.basename(path))
        real_sync(fd, path=path)

    monkeypatch.setattr(HashAhead, "_hash", hash_both)
    monkeypatch.setattr(writer, "sync_file", sync)
    save_checkpoint(ckpt, contiguous_snapshot(4), keep_ckpts=None, announce=print, line=Line())
    assert synced[0] == "model.safetensors"
    assert verify_directory(str(ckpt / "step-000004")).verifies


@pytest.mark.usefixtures("small_batches", "layout")
def test_an_error_in_the_middle_of_a_large_file_leaves_no_thread_and_no_file(
    ckpt: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = threading.active_count()
    with monkeypatch.context() as patch:
        Watched(patch, fail_at=4, number=errno.ENOSPC)
        with pytest.raises(StorageFailed, match=r"model\.safetensors: cannot write"):
            save(ckpt, 4, line=Line())
    assert threading.active_count() == before
    assert names(ckpt) == []
