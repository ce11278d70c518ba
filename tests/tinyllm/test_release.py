"""The release writer: what it writes, and that at every instant it is there whole or not at all."""

import errno
import fcntl
import json
import os
import shutil
import signal
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.numpy import load_file
from tokenizers import Tokenizer

from tests.tinyllm import releases, runs
from tests.tinyllm.checkpoints import in_child, killed, places, rehash, silent
from tests.tinyllm.releases import FILES, World, everything, trained, world
from tinyllm import release as module
from tinyllm.chat import decode_tokenizer_config
from tinyllm.cli import main
from tinyllm.errors import LockHeld, ReleaseRefused, StorageFailed
from tinyllm.forms import DTYPES, GROUP_SIZES
from tinyllm.quantize import quantise
from tinyllm.verification import verify_directory

PLAIN_USER = 65534


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def asked(source: Path, tmp_path: Path) -> World:
    return world(source, tmp_path)


def content(directory: Path) -> dict[str, bytes]:
    return runs.tree(directory)


def verifies(directory: Path) -> bool:
    return verify_directory(str(directory)).verifies


# ----------------------------------------------------------------------------- what is written


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_files_of_a_release(asked: World, dtype: str) -> None:
    done = asked.release(dtype=dtype)
    assert (done.path, done.step) == (str(asked.target), 3)
    found = content(asked.target)
    assert sorted(found) == sorted([*FILES, "MANIFEST.json"])
    for name in ("config.json", "generation_config.json", "tokenizer.json"):
        assert found[name] == (asked.step_dir / name).read_bytes()
    assert found["ledger.json"] == asked.request.ledger.read_bytes()
    assert found["evals/summary.json"] == asked.request.evals.read_bytes()
    assert found["heads/tone.json"] == asked.request.heads[0].read_bytes()
    card = asked.request.card.read_bytes()
    assert found["MODEL_CARD.md"].startswith(card)
    assert (found["MODEL_CARD.md"] == card) is (dtype != "int4")
    chat = decode_tokenizer_config(found["tokenizer_config.json"])
    assert chat.chat_template == asked.request.chat_template.read_text()  # type: ignore[union-attr]
    assert chat.model_max_length == 32
    manifest = json.loads(found["MANIFEST.json"])
    assert (manifest["kind"], manifest["model_id"], manifest["version"]) == (
        "release",
        "smoke",
        "1.0",
    )
    assert sorted(manifest["files"]) == sorted(FILES)
    assert verifies(asked.target)


def test_what_was_not_given_is_not_there(asked: World) -> None:
    asked.release(heads=(), chat_template=None)
    there = sorted({*FILES, "MANIFEST.json"} - {"heads/tone.json", "tokenizer_config.json"})
    assert sorted(content(asked.target)) == there
    assert not (asked.target / "heads").exists()


def test_f32_is_the_checkpoints_own_file_and_the_safetensors_library_loads_it(
    asked: World,
) -> None:
    asked.release()
    path = asked.target / "model.safetensors"
    assert path.read_bytes() == (asked.step_dir / "model.safetensors").read_bytes()
    with safe_open(path, framework="pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118


def test_bf16_loads_with_the_safetensors_library(asked: World) -> None:
    asked.release(dtype="bf16")
    weights = load_file(asked.step_dir / "model.safetensors")
    with safe_open(asked.target / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert sorted(file.keys()) == sorted(weights)
        for name, value in weights.items():
            expected = torch.from_numpy(value).to(torch.bfloat16)
            assert torch.equal(file.get_tensor(name), expected), name


@pytest.mark.parametrize("group", GROUP_SIZES)
def test_int4_loads_with_the_safetensors_library(asked: World, group: int) -> None:
    done = asked.release(dtype="int4", group_size=group)
    weights = load_file(asked.step_dir / "model.safetensors")
    with safe_open(asked.target / "model.safetensors", framework="pt") as file:
        names = set(file.keys())
        for name, value in weights.items():
            if value.ndim == 2 and value.shape[1] % group == 0:
                packed, scales = quantise(value, group=group)
                assert file.get_tensor(f"{name}.qweight").numpy().tobytes() == packed.tobytes()
                assert file.get_tensor(f"{name}.scales").numpy().tobytes() == scales.tobytes()
                names -= {f"{name}.qweight", f"{name}.scales"}
            else:
                assert torch.equal(
                    file.get_tensor(name), torch.from_numpy(value).to(torch.bfloat16)
                )
                names -= {name}
    assert not names
    quantised = {e.name for e in done.errors if e.stored_as == "int4"}
    assert quantised == {n for n, v in weights.items() if v.ndim == 2 and v.shape[1] % group == 0}
    assert "blocks.0.mlp.down.weight" in quantised


def test_tokenizer_json_loads_with_the_tokenizers_library(asked: World) -> None:
    asked.release()
    library = Tokenizer.from_file(str(asked.target / "tokenizer.json"))
    text = "The first snow of the year."
    assert library.decode(library.encode(text).ids) == text


def test_the_card_and_the_command_tell_what_int4_did_to_each_tensor(
    asked: World, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(asked.words("--dtype", "int4")) == 0
    lines = capsys.readouterr().out.splitlines()
    card = (asked.target / "MODEL_CARD.md").read_text()
    section = card.partition("\n## Quantisation\n")[2]
    rows = [
        line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")
    ]
    weights = load_file(asked.step_dir / "model.safetensors")
    assert sorted(name.strip("`") for name, _, _ in rows) == sorted(weights)
    for name, stored_as, error in rows:
        assert f"{name.strip('`')}: {stored_as}, relative error {error}" in lines
        assert float(error) < (0.2 if stored_as == "int4" else 0.004)
    assert lines[-1].startswith(f"released {asked.target}: step 3, int4, 9 files, ")
    assert "one F32 scale for 32 weights" in section


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_same_checkpoint_gives_the_same_bytes(asked: World, dtype: str) -> None:
    asked.release(dtype=dtype)
    first = everything(asked.target)
    releases.writable(asked.target)
    shutil.rmtree(asked.target)
    asked.release(dtype=dtype)
    assert everything(asked.target) == first


def test_weights_of_many_pieces_and_a_hash_in_another_thread(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a large model does, done to a small one: pieces, threads, past the cache."""
    whole = {}
    for dtype in DTYPES:
        asked.release(dtype=dtype, version=f"whole-{dtype}")
        whole[dtype] = content(asked.target.parent / f"whole-{dtype}")["model.safetensors"]
    for name in ("tinyllm.hashing.INLINE_BYTES", "tinyllm.release.INLINE_BYTES"):
        monkeypatch.setattr(name, 1000)
    for name in ("tinyllm.conversion", "tinyllm.weights", "tinyllm.release"):
        monkeypatch.setattr(f"{name}.PIECE_BYTES", 8192)
    monkeypatch.setattr("tinyllm.pastcache.SMALL_BYTES", 1000)
    monkeypatch.setattr("tinyllm.pastcache.CHUNK_BYTES", 8192)
    monkeypatch.setattr("tinyllm.conversion._INT4_COUNT", 1000)
    for dtype in DTYPES:
        asked.release(dtype=dtype, version=dtype)
        assert content(asked.target.parent / dtype)["model.safetensors"] == whole[dtype]
        assert verifies(asked.target.parent / dtype)


# ------------------------------------------------------------------------------- immutability


@pytest.mark.parametrize("umask", [0o022, 0o000, 0o077])
def test_files_and_directories_are_read_only_for_everybody(asked: World, umask: int) -> None:
    """By their modes, also when root releases; nobody's umask opens or closes them."""
    before = os.umask(umask)
    try:
        asked.release()
    finally:
        os.umask(before)
    modes = {name: stat.S_IMODE(mode) for name, (mode, _) in everything(asked.target).items()}
    assert modes.pop("evals") == modes.pop("heads") == 0o555
    assert set(modes.values()) == {0o444}
    assert stat.S_IMODE(asked.target.stat().st_mode) == 0o555


def as_plain_user(work: Callable[[], None], request: pytest.FixtureRequest, *below: Path) -> int:
    """Do ``work`` in a fork that is not root (it is the owner of what is ``below``)."""
    for directory in below:
        for path in [directory, *directory.rglob("*")]:
            os.chown(path, PLAIN_USER, PLAIN_USER)
        for above in directory.parents:
            mode = above.stat().st_mode
            if not mode & 0o001:
                above.chmod(mode | 0o055)
                request.addfinalizer(partial(above.chmod, mode))

    def quietly() -> None:
        os.setgroups([])
        os.setgid(PLAIN_USER)
        os.setuid(PLAIN_USER)
        work()

    return in_child(quietly)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become somebody else")
def test_somebody_who_is_not_root_releases_and_cannot_change_it(
    asked: World, request: pytest.FixtureRequest
) -> None:
    def work() -> None:
        asked.release()
        for name in FILES:
            with pytest.raises(PermissionError):
                (asked.target / name).open("r+")
        for name in ("new", "heads/new.json", "evals/new"):
            with pytest.raises(PermissionError):
                (asked.target / name).touch()
        with pytest.raises(PermissionError):
            (asked.target / "MODEL_CARD.md").unlink()
        with pytest.raises(ReleaseRefused):
            asked.release()
        # Nothing blocks the next try, also what was made read-only already.
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(os, "rename", fail_with(errno.EIO))
            with pytest.raises(StorageFailed):
                asked.release(version="2")
        assert os.listdir(asked.target.parent) == ["1.0"]
        asked.release(version="2")

    assert as_plain_user(work, request, asked.artifacts, asked.inputs) == 0
    assert verifies(asked.target)
    assert verifies(asked.target.with_name("2"))


# ------------------------------------------------------------- whole or not at all, at any instant


def released_or_not(asked: World) -> bool:
    """Whether the version is there; it must then be complete."""
    if not os.path.lexists(asked.target):
        return False
    assert verifies(asked.target)
    return True


def test_killed_at_every_point(asked: World) -> None:
    """And what one killed try left never blocks the next, which removes it."""

    def work() -> None:
        asked.release(dtype="int4")

    probe = asked.asking(version="probe", dtype="int4")
    found = places(lambda: probe.release() and None)
    names = {name for name, _ in found}
    assert len(found) > 25
    assert names >= {"release.gate-passed", "release.renamed", "release.durable"}
    expected = content(probe.target)
    expected["MANIFEST.json"] = expected["MANIFEST.json"].replace(b'"probe"', b'"1.0"')
    renamed = [name for name, _ in found].index("release.renamed")
    for number, place in enumerate(found):
        assert killed(work, place), place
        assert released_or_not(asked) is (number >= renamed), place
        if number >= renamed:
            releases.writable(asked.target)
            shutil.rmtree(asked.target)
    work()
    assert content(asked.target) == expected
    assert sorted(os.listdir(asked.target.parent)) == ["1.0", "probe"]


def fail_with(number: int) -> Callable[..., Any]:
    def call(*_: object, **_more: object) -> Any:
        raise OSError(number, os.strerror(number))

    return call


def outcome(asked: World) -> Exception | None:
    """How a release ended: None when all went well. It is refused when the gate could not read."""
    try:
        asked.release()
    except (StorageFailed, OSError, ReleaseRefused) as error:
        return error
    return None


CALLS = ("write", "fsync", "fchmod", "mkdir", "rename", "preadv", "close", "listdir")


@pytest.mark.parametrize("call", CALLS)
def test_every_call_that_fails_leaves_nothing(
    asked: World, call: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call in its turn, once; the release before it and what was there stay as they are."""
    asked.release(version="0.9")
    real = getattr(os, call)
    before = everything(asked.artifacts)
    tried = 0
    while True:
        left = tried

        def failing(*arguments: Any, **more: Any) -> Any:
            nonlocal left
            if call == "close" and fcntl.fcntl(arguments[0], fcntl.F_GETFL) & 3 == os.O_RDONLY:
                return real(*arguments)  # which says nothing about what was written
            left -= 1
            if left == -1:
                if call == "close":
                    real(*arguments)
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return real(*arguments, **more)

        with monkeypatch.context() as patched:
            patched.setattr(os, call, failing)
            error = outcome(asked)
        if error is None:
            assert left >= 0
            break
        assert "EIO" in str(error) or "Input/output error" in str(error)
        assert everything(asked.artifacts) == before, tried
        tried += 1
    assert tried >= {"write": 10, "fsync": 15, "fchmod": 10, "close": 10}.get(call, 1)
    assert released_or_not(asked)


def test_a_full_disk_is_said_with_the_name_of_the_file(
    asked: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "write", fail_with(errno.ENOSPC))
    before = everything(asked.artifacts)
    assert main(asked.words()) == 5
    error = capsys.readouterr().err
    assert error == (
        f"tinyllm: error: {asked.target.parent}/.1.0.tmp/model.safetensors: cannot write: "
        "No space left on device (ENOSPC)\n"
    )
    assert everything(asked.artifacts) == before


def test_the_last_fsync_that_fails_takes_the_release_back(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its name already, but nobody can say for how long."""
    real = module.sync_directory

    def failing(directory: Any, **more: Any) -> None:
        if asked.target.exists():
            raise StorageFailed(directory.path, "cannot fsync the directory")
        real(directory, **more)

    with monkeypatch.context() as patched:
        patched.setattr(module, "sync_directory", failing)
        with pytest.raises(StorageFailed, match="cannot fsync the directory"):
            asked.release()
    assert not asked.target.parent.exists()
    asked.release()


@pytest.mark.parametrize(("signum", "every"), [(signal.SIGTERM, 1), (signal.SIGINT, 5)])
def test_signals_at_every_point_leave_nothing(asked: World, signum: int, every: int) -> None:
    probe = asked.asking(version="probe")
    found = places(lambda: probe.release() and None)
    before = everything(asked.artifacts)
    for place in found[::every]:
        ended = runs.run(*asked.words(), stop_at=place, send=signum)
        assert (ended.code, ended.stderr) == (128 + signum, ""), place
        assert everything(asked.artifacts) == before, place
    assert main(asked.words()) == 0


def test_a_signal_right_after_the_rename_takes_it_back(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = module.rename

    def interrupted(directory: Any, old: str, new: str) -> None:
        real(directory, old, new)
        if new == "1.0":
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "rename", interrupted)
    before = everything(asked.artifacts)
    with pytest.raises(KeyboardInterrupt):
        asked.release()
    assert everything(asked.artifacts) == before


def test_what_is_not_ours_is_not_taken_back(asked: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody who minds no lock makes the version while we write it: his stays, ours goes."""

    def appear(name: str) -> None:
        if name == "release.staging-synced":
            asked.target.mkdir()
            (asked.target / "his").write_text("x")

    monkeypatch.setattr(module, "point", appear)
    with pytest.raises(StorageFailed, match=r"1\.0: appeared while the release was written"):
        asked.release()
    assert os.listdir(asked.target.parent) == ["1.0"]
    assert os.listdir(asked.target) == ["his"]


# ------------------------------------------------------------------------- beside other processes


def test_one_release_of_a_model_at_a_time(asked: World, capsys: pytest.CaptureFixture[str]) -> None:
    asked.release(version="0.9")
    before = everything(asked.artifacts)
    fd = os.open(asked.target.parent, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    with pytest.raises(LockHeld):
        asked.release()
    assert main(asked.words()) == 3
    assert "another release of this model is under way" in capsys.readouterr().err
    assert everything(asked.artifacts) == before
    os.close(fd)
    asked.release()


def test_a_version_that_appeared_while_the_gate_looked(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def appear(name: str) -> None:
        if name == "release.locked":
            asked.target.mkdir()

    monkeypatch.setattr(module, "point", appear)
    with pytest.raises(ReleaseRefused, match=r"1 problem:\n  - .*/1\.0 exists"):
        asked.release()
    assert os.listdir(asked.target.parent) == ["1.0"]


def test_a_trainers_retention_cannot_take_the_checkpoint_away(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is held open from the gate on."""
    expected = (asked.step_dir / "model.safetensors").read_bytes()

    def take_away(name: str) -> None:
        if name == "release.gate-passed":
            shutil.rmtree(asked.step_dir)

    monkeypatch.setattr(module, "point", take_away)
    asked.release()
    assert (asked.target / "model.safetensors").read_bytes() == expected


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("file", ["model.safetensors", "optimizer.safetensors"])
def test_a_checkpoint_that_is_changed_after_the_gate_is_not_released(
    asked: World, dtype: str, file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(name: str) -> None:
        if name == "release.staging-made":
            with (asked.step_dir / file).open("r+b") as changed:
                changed.seek(-4, os.SEEK_END)
                changed.write(b"\0\0\0\1")

    monkeypatch.setattr(module, "point", change)
    with pytest.raises(ReleaseRefused, match=rf"1 problem:\n  - checkpoint .*: {file}: sha256 is"):
        asked.release(dtype=dtype)
    assert not asked.target.parent.exists()


def test_inputs_that_are_changed_after_the_gate_are_released_as_they_were_judged(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = asked.request.card.read_bytes()

    def change(name: str) -> None:
        if name == "release.gate-passed":
            asked.request.card.write_text("{{licence}}")

    monkeypatch.setattr(module, "point", change)
    asked.release()
    assert (asked.target / "MODEL_CARD.md").read_bytes() == card


def test_leftovers_are_removed_and_strangers_are_left_alone(asked: World) -> None:
    models = asked.target.parent
    for name in (".1.0.tmp", ".0.9.tmp", ".2.tmp.7"):
        (models / name / "heads").mkdir(parents=True)
        (models / name / "heads" / "x").write_text("x")
        (models / name / "heads").chmod(0o555)
        (models / name).chmod(0o555)
    for name in (".nfs01", "notes", ".hidden.tmp.x", "..tmp"):
        (models / name).write_text("x")
    (models / ".link.tmp").symlink_to("notes")
    asked.release()
    assert sorted(os.listdir(models)) == ["..tmp", ".hidden.tmp.x", ".nfs01", "1.0", "notes"]


def test_a_leftover_that_cannot_be_removed_is_told_and_blocks_nothing(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = asked.target.parent
    (models / ".1.0.tmp").mkdir(parents=True)
    real = module.remove_tree

    def stuck(directory: Any, name: str, **more: Any) -> None:
        if name == ".1.0.tmp":
            raise StorageFailed(directory.at(name), "cannot remove: busy")
        real(directory, name, **more)

    monkeypatch.setattr(module, "remove_tree", stuck)
    told: list[tuple[str, str]] = []
    module.release(asked.request, tell=lambda *what: told.append(what))
    [(path, reason)] = told
    assert path == str(models / ".1.0.tmp")
    assert reason.startswith("was left by an earlier try and cannot be removed: ")
    assert released_or_not(asked)


def test_a_file_system_without_fsync_of_directories_is_told(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def only_files(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "no")
        real(fd)

    monkeypatch.setattr(os, "fsync", only_files)
    told: set[str] = set()
    module.release(asked.request, tell=lambda _, reason: told.add(reason))
    assert told == {"this file system cannot fsync a directory: durability is not guaranteed here"}


def test_a_model_with_nothing_to_quantise(tmp_path: Path) -> None:
    """An odd width: int4 was asked for, and every tensor stays BF16, as the card says."""
    spec = runs.spec_content("adamw", steps=3, ckpt_every=3)
    spec["model"] |= {"width": 33, "heads": 3}
    (tmp_path / "spec.json").write_text(json.dumps(spec))
    assert runs.train(tmp_path / "trained", tmp_path / "spec.json").code == 0
    asked = world(tmp_path / "trained", tmp_path / "world").asking(heads=(), dtype="int4")
    done = asked.release()
    assert {error.stored_as for error in done.errors} == {"BF16"}
    assert verifies(asked.target)
    assert "int4 |" not in (asked.target / "MODEL_CARD.md").read_text()


def test_the_step_that_is_asked_for(source: Path, tmp_path: Path) -> None:
    """Without --step it is the one that LATEST names, not the newest."""
    asked = world(source, tmp_path)
    newer = asked.step_dir.with_name("step-000009")
    shutil.copytree(asked.step_dir, newer)
    assert asked.release().step == 3
    with pytest.raises(ReleaseRefused, match=r"step-000009: .*is of step 3"):
        asked.release(step=9, version="9")


def test_a_release_of_a_release_is_not_possible_by_accident(asked: World) -> None:
    """A directory of a run that holds a release's manifest is no checkpoint."""
    asked.release()
    shutil.rmtree(asked.step_dir)
    shutil.copytree(asked.target, asked.step_dir)
    releases.writable(asked.step_dir)
    with pytest.raises(ReleaseRefused, match="is of a release, in the directory of step 3"):
        asked.release(version="2")


def test_values_are_looked_at_in_every_dtype(asked: World) -> None:
    for dtype in DTYPES:
        releases.set_value(asked, "blocks.0.mlp.up.weight", 17, np.nan)
        with pytest.raises(ReleaseRefused, match=r"mlp\.up\.weight is nan at element 17; weights"):
            asked.release(dtype=dtype)
    assert not asked.target.parent.exists()
    releases.set_value(asked, "blocks.0.mlp.up.weight", 17, 0.5)
    rehash(asked.step_dir)
    module.release(asked.request, tell=silent)
