"""``tinyllm verify`` of a release: whatever was changed, taken away or added is found and named."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.tinyllm import releases
from tests.tinyllm.releases import FILES, trained, world, writable
from tinyllm import load
from tinyllm.cli import main
from tinyllm.errors import ModelUnusable
from tinyllm.manifest import OPTIMIZER_FILE
from tinyllm.verification import verify_directory

ALL_FILES = (*FILES, "MANIFEST.json")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One int4 release with everything; tests damage copies."""
    directory = tmp_path_factory.mktemp("released")
    asked = world(trained(directory / "trained"), directory / "world")
    asked.release(dtype="int4")
    return asked.target


@pytest.fixture
def target(released: Path, tmp_path: Path) -> Path:
    """A copy that can be damaged, in a place like its own."""
    copy = tmp_path / "models" / "smoke" / "1.0"
    shutil.copytree(released, copy)
    writable(copy)
    return copy


def problems(path: Path) -> list[str]:
    return [str(problem) for problem in verify_directory(str(path)).problems]


def test_what_was_released_verifies_and_says_what_it_is(
    released: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(released)]) == 0
    assert capsys.readouterr().out.startswith(f"{released}: verifies, 9 files, ")
    assert main(["verify", "--json", str(released)]) == 0
    [row] = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["model_id"], row["version"]) == ("release", "smoke", "1.0")
    assert (row["verifies"], row["step"], row["problems"]) == (True, None, [])


@pytest.mark.parametrize("file", FILES)
def test_one_byte_changed_anywhere_is_found(target: Path, file: str) -> None:
    path = target / file
    good = path.read_bytes()
    for offset in sorted({0, 7, 8, len(good) // 3, len(good) // 2, len(good) - 1}):
        for change in (0x01, 0x80, 0xFF):
            data = bytearray(good)
            data[offset] ^= change
            path.write_bytes(data)
            [found] = problems(target)
            assert found.startswith(f"{file}: sha256 is "), offset
    path.write_bytes(good)
    assert problems(target) == []


def test_every_byte_of_the_manifest_counts(target: Path) -> None:
    """Nothing vouches for the manifest; only white space may change and leave it what it is."""
    path = target / "MANIFEST.json"
    good = path.read_bytes()
    for offset in range(len(good)):
        data = bytearray(good)
        data[offset] ^= 0x01
        path.write_bytes(data)
        assert problems(target), offset


@pytest.mark.parametrize("file", ALL_FILES)
def test_a_file_that_is_gone_shorter_longer_or_another_kind(target: Path, file: str) -> None:
    path = target / file
    good = path.read_bytes()
    path.unlink()
    assert problems(target) == [f"{file}: is missing"]
    for data in (good[:-1], good + b" ", b""):
        path.write_bytes(data)
        assert len(problems(target)) == 1 or file == "MANIFEST.json"
    path.unlink()
    (target / "elsewhere").write_bytes(good)
    path.symlink_to(target / "elsewhere")
    assert f"{file}: is a symbolic link, which is not followed" in problems(target)
    path.unlink()
    os.mkfifo(path)
    assert f"{file}: is a FIFO, not a file" in problems(target)


@pytest.mark.parametrize(
    "name",
    ["more", ".hidden", "heads/more.json", "heads/.x", "evals/more", OPTIMIZER_FILE, "heads/a/b"],
)
def test_a_file_that_was_added_is_named(target: Path, name: str) -> None:
    path = target / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("x")
    shown = "heads/a" if name == "heads/a/b" else name
    assert problems(target) == [f"{shown}: is not in the manifest"]


@pytest.mark.parametrize("name", ["more", "heads/more"])
def test_an_empty_directory_that_was_added_is_named(target: Path, name: str) -> None:
    (target / name).mkdir()
    assert problems(target) == [f"{name}: is not in the manifest"]


def test_heads_and_evaluations_as_links_to_elsewhere(target: Path) -> None:
    for name in ("heads", "evals"):
        (target / name).rename(target.parent / name)
        (target / name).symlink_to(target.parent / name)
    assert [line.partition(": ")[0] for line in problems(target)] == [
        "evals/summary.json",
        "heads/tone.json",
    ]


def test_everything_that_is_wrong_is_listed(
    target: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (target / "heads" / "tone.json").unlink()
    (target / "evals" / "summary.json").write_text("{}")
    (target / "more").write_text("x")
    assert main(["verify", str(target)]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{target}: DOES NOT VERIFY, 9 files, ")
    assert [line.partition(": ")[0].strip() for line in lines] == [
        "more",
        "evals/summary.json",
        "heads/tone.json",
    ]
    size = (releases.EXAMPLE / "summary.json").stat().st_size
    assert lines[1] == f"  evals/summary.json: is 2 bytes long, the manifest says {size}"


def test_a_release_under_another_name_is_not_that_release(target: Path) -> None:
    for other in ("models/smoke/1.1", "models/other/1.0"):
        moved = target.parents[2] / other
        shutil.copytree(target, moved)
        assert problems(moved) == [
            f"MANIFEST.json: is of smoke/1.0, in the directory of {other.removeprefix('models/')}"
        ]


def test_a_copy_to_serve_from_may_lie_anywhere(target: Path, tmp_path: Path) -> None:
    shutil.copytree(target, tmp_path / "serving" / "now")
    assert problems(tmp_path / "serving" / "now") == []
    (tmp_path / "current").symlink_to(target)
    assert problems(tmp_path / "current") == []


def test_a_version_named_as_a_step_is_still_a_release(released: Path, tmp_path: Path) -> None:
    asked = world(released.parents[2], tmp_path)
    asked.release(version="step-000003")
    assert problems(asked.target.with_name("step-000003")) == []
    with pytest.raises(ModelUnusable, match="is missing"):
        load(asked.target.with_name("step-000004"))


def test_what_does_not_verify_is_not_run(target: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (target / "heads" / "more.json").write_text("{}")
    message = f"{target} does not verify: heads/more.json: is not in the manifest"
    with pytest.raises(ModelUnusable) as raised:
        load(target)
    assert str(raised.value) == message
    for words in (["generate", target, "x"], ["classify", target, "x"]):
        assert main([str(word) for word in words]) == 8
        assert capsys.readouterr().err == f"tinyllm: error: {message}\n"
