"""What does not agree with its manifest, or with itself, is found and named; nothing is changed."""

import contextlib
import errno
import json
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import FILES, flip, make_ckpt, rehash, save
from tinyllm import verification
from tinyllm.manifest import decode_manifest
from tinyllm.paths import MANIFEST
from tinyllm.verification import verify_directory

ALL_FILES = (*FILES, MANIFEST)


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A good step directory; tests that change one make their own."""
    ckpt = make_ckpt(tmp_path_factory.mktemp("saved"))
    save(ckpt, 12)
    return ckpt / "step-000012"


@pytest.fixture
def step_dir(saved: Path, tmp_path: Path) -> Path:
    """A step directory to damage."""
    target = tmp_path / "ckpt" / saved.name
    target.mkdir(parents=True)
    for path in saved.iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def problems(path: Path) -> list[str]:
    """What is found, and that finding it changed nothing and left nothing open."""
    before = checkpoints.tree(path.parent), len(os.listdir("/proc/self/fd"))
    verdict = verify_directory(str(path))
    assert (checkpoints.tree(path.parent), len(os.listdir("/proc/self/fd"))) == before
    assert verdict.verifies is not bool(verdict.problems)
    return [str(problem) for problem in verdict.problems]


def test_what_was_saved_verifies(saved: Path) -> None:
    verdict = verify_directory(str(saved))
    assert verdict.verifies
    assert verdict.manifest is not None
    assert sorted(verdict.manifest.files) == sorted(FILES)
    assert verdict.size_bytes == sum((saved / name).stat().st_size for name in FILES)
    assert verdict.contents["config.json"] == (saved / "config.json").read_bytes()


@pytest.mark.parametrize("file", ALL_FILES)
def test_one_flipped_bit_anywhere_is_found(step_dir: Path, file: str) -> None:
    """The library loads a file with a flipped data bit, or zeroed data, without complaint."""
    path = step_dir / file
    good = path.read_bytes()
    header = int.from_bytes(good[:8], "little") if file.endswith(".safetensors") else 8
    wanted = {0, 7, 8, header // 2, 8 + header, len(good) // 2, len(good) - 1}
    for offset in sorted(place for place in wanted if place < len(good)):
        for bit in (0, 7):
            flip(path, offset, bit)
            found = problems(step_dir)
            assert found, f"bit {bit} of byte {offset} of {file}"
            if file != MANIFEST:
                assert found[0].startswith(f"{file}: sha256 is ")
                assert " the manifest says " in found[0]
            path.write_bytes(good)
    assert problems(step_dir) == []


def test_every_bit_of_the_manifest_counts(saved: Path) -> None:
    """Nothing vouches for the manifest: a flipped bit makes it unreadable, or say another thing."""
    good = (saved / MANIFEST).read_bytes()
    manifest = decode_manifest(good)
    for place in range(8 * len(good)):
        changed = bytearray(good)
        changed[place // 8] ^= 1 << (place % 8)
        with contextlib.suppress(ValueError):
            assert decode_manifest(bytes(changed)) != manifest, f"bit {place}"


@pytest.mark.parametrize("file", ALL_FILES)
@pytest.mark.parametrize("what", ["empty", "short", "long", "zeros", "missing"])
def test_a_file_that_is_cut_grown_zeroed_or_gone_is_found(
    step_dir: Path, file: str, what: str
) -> None:
    path = step_dir / file
    good = path.read_bytes()
    changed = {"empty": b"", "short": good[:-2], "long": good + b"\0", "zeros": bytes(len(good))}
    if what == "missing":
        path.unlink()
        assert problems(step_dir) == [f"{file}: is missing"]
        return
    path.write_bytes(changed[what])
    (found,) = problems(step_dir)
    assert found.startswith(f"{file}: ")
    if file == MANIFEST:
        assert ("is empty" in found) is (what == "empty")
    elif what == "zeros":
        assert "sha256" in found
    else:
        size = len(changed[what])
        assert found == f"{file}: is {size} bytes long, the manifest says {len(good)}"


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _socket(path: Path) -> None:
    # By its name alone: the address of a socket has room for a hundred bytes.
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as server:
        server.bind(path.name)


def _device(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _loop(path: Path) -> None:
    path.symlink_to(path.name)


def _link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "moved")  # the good file


@pytest.mark.parametrize("file", ["model.safetensors", "trainer_state.json", MANIFEST])
@pytest.mark.parametrize(
    ("replace", "reason"),
    [
        (_fifo, "is a FIFO, not a file"),
        (Path.mkdir, "is a directory, not a file"),
        (_socket, "is a socket or a device, not a file"),
        (_device, "is a symbolic link, which is not followed"),
        (_loop, "is a symbolic link, which is not followed"),
        (_link, "is a symbolic link, which is not followed"),
    ],
)
def test_what_is_not_a_regular_file_is_not_read_nor_waited_for(
    step_dir: Path, file: str, replace: Callable[[Path], None], reason: str
) -> None:
    path = step_dir / file
    path.rename(step_dir.parent / "moved")
    replace(path)
    assert problems(step_dir) == [f"{file}: {reason}"]


def test_files_beyond_the_manifest_are_found(step_dir: Path) -> None:
    (step_dir / "model-00002.safetensors").write_bytes(b"alien")
    (step_dir / "heads").mkdir()
    (step_dir / ".hidden").write_bytes(b"")
    (step_dir / "bad\udcff\n").write_bytes(b"")
    assert problems(step_dir) == [
        ".hidden: is not in the manifest",
        "bad\\udcff\\n: is not in the manifest",
        "heads: is not in the manifest",
        "model-00002.safetensors: is not in the manifest",
    ]


def test_all_problems_are_reported(step_dir: Path) -> None:
    flip(step_dir / "config.json", 3)
    (step_dir / "tokenizer.json").unlink()
    flip(step_dir / "model.safetensors", 200)
    (step_dir / "extra").write_bytes(b"")
    verdict = verify_directory(str(step_dir))
    assert [problem.file for problem in verdict.problems] == [
        "extra",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert verdict.why().endswith("; and 1 more")


def _edit_json(path: Path, **changes: object) -> None:
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({k: v for k, v in document.items() if v is not ...}))


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("trainer_state.json", {"cursor": ...}, "trainer_state.json: Object missing required"),
        ("trainer_state.json", {"step": 8}, "trainer_state.json: is of step 8, the manifest of 12"),
        ("trainer_state.json", {"best": "/nonexistent"}, "unknown field `best`"),
        ("config.json", {}, None),
    ],
)
def test_what_hashes_cannot_tell_is_checked_too(
    step_dir: Path, file: str, changes: dict[str, object], message: str | None
) -> None:
    _edit_json(step_dir / file, **changes)
    rehash(step_dir)
    found = problems(step_dir)
    assert found == [] if message is None else message in found[0]


def test_files_of_another_step_are_found_although_hashes_agree(tmp_path: Path) -> None:
    """A state or optimizer of another step pairs the old weights with the new moments."""
    ckpt = make_ckpt(tmp_path)
    save(ckpt, 8, 12)
    old, new = ckpt / "step-000008", ckpt / "step-000012"
    for file, reason in (
        ("optimizer.safetensors", "is of step 12, the manifest of 8"),
        ("trainer_state.json", "is of step 12, the manifest of 8"),
    ):
        good = (old / file).read_bytes()
        (old / file).write_bytes((new / file).read_bytes())
        assert file in problems(old)[0]  # the manifest's hash
        rehash(old)
        assert problems(old) == [f"{file}: {reason}"]
        (old / file).write_bytes(good)
        rehash(old)
        assert problems(old) == []
    renamed = ckpt / "step-000016"
    new.rename(renamed)
    assert problems(renamed) == [f"{MANIFEST}: is of step 12, in the directory of step 16"]


def test_an_optimizer_file_that_is_none_is_found(step_dir: Path) -> None:
    good = (step_dir / "optimizer.safetensors").read_bytes()
    for content, reason in (
        (b"rubbish!" * 4, "cannot be read as safetensors"),
        (b"", "cannot be read as safetensors"),
        ((2**63).to_bytes(8, "little") + b"{}", "cannot be read as safetensors"),
        (good.replace(b'"optimizer":', b'"optimiser":'), "does not name an optimizer"),
        (good.replace(b'"format":"tinyllm"', b'"format":"somebod"'), "does not name an optimizer"),
    ):
        (step_dir / "optimizer.safetensors").write_bytes(content)
        rehash(step_dir)
        (found,) = problems(step_dir)
        assert found.startswith("optimizer.safetensors: ")
        assert reason in found


@pytest.mark.parametrize("content", [b"rubbish!" * 4, b"", (2**63).to_bytes(8, "little") + b"{}"])
def test_a_model_file_that_is_none_is_found(content: bytes, step_dir: Path) -> None:
    (step_dir / "model.safetensors").write_bytes(content)
    rehash(step_dir)
    (found,) = problems(step_dir)
    assert found.startswith("model.safetensors: cannot be read as safetensors")


def test_a_key_that_stands_twice_is_an_error(step_dir: Path) -> None:
    """Parsers take the last of two: which of them was meant?"""
    manifest = step_dir / MANIFEST
    manifest.write_bytes(manifest.read_bytes().replace(b'"step":', b'"step": 3,\n  "step":'))
    (found,) = problems(step_dir)
    assert found == f"{MANIFEST}: the key 'step' stands twice in one object"


def test_a_tokenizer_that_the_config_wants_must_be_there(step_dir: Path) -> None:
    (step_dir / "tokenizer.json").unlink()
    rehash(step_dir)
    assert problems(step_dir) == [
        "tokenizer.json: is not there, but config.json says that it is needed"
    ]
    (step_dir / "config.json").write_text('{"tl_tokenizer": "byte"}')
    rehash(step_dir)
    assert problems(step_dir) == []
    (step_dir / "config.json").write_text("[" * 100_000)
    rehash(step_dir)
    assert "config.json: is not a JSON object" in problems(step_dir)[0]


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside", "heads/../../outside", "a\\b", "a\0b", "step/x"]
)
def test_nothing_outside_the_directory_is_opened(
    step_dir: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (step_dir.parent / "outside").write_bytes(b"x")
    _edit_json(
        step_dir / MANIFEST,
        files=json.loads((step_dir / MANIFEST).read_text())["files"]
        | {name: {"sha256": "0" * 64, "size": 1}},
    )
    asked = []
    real_open = os.open

    def watching(path: str, *rest: object, **more: object) -> int:
        asked.append(path)
        return real_open(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", watching)
    verdict = verify_directory(str(step_dir))
    monkeypatch.undo()
    assert not verdict.verifies
    assert "file name" in verdict.why()
    assert asked == [str(step_dir), MANIFEST]


def test_a_manifest_of_a_terabyte_is_not_read(step_dir: Path) -> None:
    os.truncate(step_dir / MANIFEST, 1 << 40)
    assert [str(p) for p in verify_directory(str(step_dir)).problems] == [
        f"{MANIFEST}: is {1 << 40} bytes long; at most {4 << 20} are read"
    ]


def test_a_file_that_grew_to_a_terabyte_is_not_read(step_dir: Path) -> None:
    size = (step_dir / "model.safetensors").stat().st_size
    os.truncate(step_dir / "model.safetensors", 1 << 40)
    assert [str(p) for p in verify_directory(str(step_dir)).problems] == [
        f"model.safetensors: is {1 << 40} bytes long, the manifest says {size}"
    ]


def test_a_directory_that_is_none_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert problems(tmp_path / "absent") == ["is missing"]
    assert problems(tmp_path / "file") == ["is not a directory"]
    (tmp_path / "empty").mkdir()
    assert problems(tmp_path / "empty") == [f"{MANIFEST}: is missing"]


def test_removal_while_reading_is_not_called_damage(
    step_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention renames a directory away and unlinks its files under a reader's eyes."""
    real = verification._unlisted

    def retired(*arguments: object) -> object:
        away = step_dir.with_name("step-000012.aside-1.tmp")
        step_dir.rename(away)
        for path in away.iterdir():
            path.unlink()
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(verification, "_unlisted", retired)
    verdict = verify_directory(str(step_dir))
    assert [str(p) for p in verdict.problems] == ["was removed while it was being read"]


def test_large_files_are_hashed_side_by_side_with_the_same_result(
    step_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tinyllm.hashing.INLINE_BYTES", 0)
    monkeypatch.setattr("tinyllm.hashing._READ_BYTES", 100)
    assert problems(step_dir) == []
    flip(step_dir / "model.safetensors", 300)
    assert "model.safetensors: sha256" in problems(step_dir)[0]


def test_a_directory_that_cannot_be_listed_is_a_problem_and_no_traceback(
    step_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(_: int) -> list[str]:
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(os, "listdir", unreadable)
    verdict = verify_directory(str(step_dir))
    assert [str(p) for p in verdict.problems] == ["cannot be read: Input/output error (EIO)"]
