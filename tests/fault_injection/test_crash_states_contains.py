"""Whether a real directory is an outcome that a model allows, and what is said when it is not."""

import os
from pathlib import Path

import pytest

from fault_injection.crash_states import contains, snapshot
from tests.fault_injection.traces import Build

ALL = ("posix", "ext4", "xfs", "btrfs")


def ask(build: Build, model: str, root: Path, files: dict[str, bytes | None]) -> str | None:
    """``contains`` at the last place, of a real directory with these files (None: a directory)."""
    root.mkdir()
    for path, data in files.items():
        if data is None:
            (root / path).mkdir()
        else:
            (root / path).write_bytes(data)
    trace = build.trace()
    return contains(trace, model, len(trace.operations), snapshot(str(root)))


def saved() -> Build:
    build = Build({"f": b"old"})
    build.create("tmp", b"n" * 10_000)
    build.fsync("tmp")
    build.rename("tmp", "f")
    return build


@pytest.mark.parametrize("model", ALL)
def test_before_and_after_a_rename_are_allowed(model: str, tmp_path: Path) -> None:
    assert ask(saved(), model, tmp_path / "1", {"f": b"n" * 10_000}) is None
    assert ask(saved(), model, tmp_path / "2", {"f": b"old", "tmp": b"n" * 10_000}) is None


@pytest.mark.parametrize("model", ALL)
def test_what_was_synced_cannot_be_short(model: str, tmp_path: Path) -> None:
    problem = ask(saved(), model, tmp_path / "1", {"f": b"n" * 4096})
    assert problem is not None
    assert problem.startswith("f: is 4096 bytes long, and must be ")


@pytest.mark.parametrize("model", ALL)
def test_a_file_of_no_operation_is_named(model: str, tmp_path: Path) -> None:
    problem = ask(saved(), model, tmp_path / "1", {"f": b"n" * 10_000, "stray": b""})
    assert problem == "stray: is there, and must not be"


@pytest.mark.parametrize("model", ALL)
def test_neither_name_is_not_allowed_when_the_rename_is_atomic(model: str, tmp_path: Path) -> None:
    assert ask(saved(), model, tmp_path / "1", {}) == "f: is missing"


@pytest.mark.parametrize("model", ALL)
def test_a_directory_for_a_file_is_named(model: str, tmp_path: Path) -> None:
    assert ask(saved(), model, tmp_path / "1", {"f": None}) == (
        "f: is a directory, and must be a file"
    )


def two_files() -> Build:
    build = Build()
    build.create("a")
    build.create("b")
    return build


@pytest.mark.parametrize("model", ALL)
def test_the_order_of_names_is_checked_together(model: str, tmp_path: Path) -> None:
    """Each name by itself is possible; both together only where no order is kept."""
    problem = ask(two_files(), model, tmp_path / "1", {"b": b""})
    assert (problem is None) is (model == "posix")
    if problem is not None:
        assert problem == "b: is there, and must not be"
    assert ask(two_files(), model, tmp_path / "2", {"a": b""}) is None


@pytest.mark.parametrize(
    ("content", "allowed_by"),
    [
        (b"o" * 8192 + b"n" * 8192, {"posix", "ext4", "xfs", "btrfs"}),  # written to the end
        (b"n" * 4096 + b"o" * 4096, {"posix", "ext4", "xfs", "btrfs"}),  # only the overwrite
        (b"o" * 8192 + b"n" * 4096, {"posix", "ext4", "xfs", "btrfs"}),  # cut at a page
        (b"o" * 8192 + bytes(8192), {"posix", "ext4"}),  # grown, and zero
        (b"o" * 8192 + b"n" * 5000, {"posix"}),  # cut inside a page
        (b"n" * 512 + b"o" * 7680, {"posix"}),  # torn at a sector
        (b"n" * 100 + b"o" * 8092, set()),  # torn inside a sector of old bytes
        (b"x" * 8192, set()),  # never written
        (b"o" * 4096, set()),  # shorter than it ever was
    ],
)
def test_what_may_come_back_of_unsynced_bytes(
    content: bytes, allowed_by: set[str], tmp_path: Path
) -> None:
    for number, model in enumerate(ALL):
        build = Build({"f": b"o" * 8192})
        build.write("f", b"n" * 4096, offset=0)
        build.write("f", b"n" * 8192)
        problem = ask(build, model, tmp_path / str(number), {"f": content})
        assert (problem is None) is (model in allowed_by), (model, problem)


@pytest.mark.parametrize("model", ALL)
def test_pages_may_come_back_of_different_moments(model: str, tmp_path: Path) -> None:
    """A mixture that the enumeration does not try: pages 0 and 2 of the first write, 1 and 3 of
    the second."""
    build = Build({"f": b"o" * 16384})
    build.write("f", b"1" * 16384, offset=0)
    build.write("f", b"2" * 16384, offset=0)
    mixed = b"1" * 4096 + b"2" * 4096 + b"1" * 4096 + b"2" * 4096
    assert ask(build, model, tmp_path / "1", {"f": mixed}) is None


@pytest.mark.parametrize("model", ALL)
def test_two_names_of_one_file_and_a_symlink(model: str, tmp_path: Path) -> None:
    build = Build({"f": b"f"})
    build.link("f", "g")
    build.symlink("f", "s")
    build.fsync()
    root = tmp_path / "1"
    root.mkdir()
    (root / "f").write_bytes(b"f")
    os.link(root / "f", root / "g")
    os.symlink("f", root / "s")
    trace = build.trace()
    assert contains(trace, model, len(trace.operations), snapshot(str(root))) is None
    (root / "s").unlink()
    os.symlink("g", root / "s")
    problem = contains(trace, model, len(trace.operations), snapshot(str(root)))
    assert problem == "s: points to g"


def test_a_replacing_rename_on_ext4_cannot_be_empty(tmp_path: Path) -> None:
    def replaced() -> Build:
        build = Build({"f": b"old"})
        build.create("tmp", b"new")
        build.rename("tmp", "f")
        return build

    assert ask(replaced(), "xfs", tmp_path / "1", {"f": b""}) is None
    assert ask(replaced(), "ext4", tmp_path / "2", {"f": b""}) is not None
    assert ask(replaced(), "ext4", tmp_path / "3", {"f": b"new"}) is None
    assert ask(replaced(), "ext4", tmp_path / "4", {"f": b"old", "tmp": b""}) is None
    # Seen on real ext4 in a few of a hundred cuts: a commit overtook the writing of the bytes.
    assert ask(replaced(), "ext4", tmp_path / "5", {"f": bytes(3)}) is None
    assert ask(replaced(), "ext4", tmp_path / "6", {"f": b"ne"}) is not None


@pytest.mark.parametrize("model", ALL)
def test_btrfs_may_leave_the_old_name_of_a_rename_across_directories(
    model: str, tmp_path: Path
) -> None:
    """Seen on real btrfs after an fsync of only the new directory."""
    build = Build({"d": None, "f": b"f"})
    build.rename("f", "d/f")
    build.fsync("d")
    problem = ask(build, model, tmp_path / "1", {"d": None, "d/f": b"f", "f": b"f"})
    assert (problem is None) is (model in ("posix", "btrfs"))


@pytest.mark.parametrize("model", ALL)
def test_btrfs_may_leave_one_half_of_an_exchange_across_directories(
    model: str, tmp_path: Path
) -> None:
    """Seen on real btrfs: the root was synced after both were gone, the directory was not."""
    build = Build({"d": None, "d/f": b"in d", "f": b"in root"})
    build.exchange("d/f", "f")
    build.unlink("d/f")
    build.unlink("f")
    build.fsync()
    problem = ask(build, model, tmp_path / "1", {"d": None, "d/f": b"in d"})
    assert (problem is None) is (model in ("posix", "btrfs"))


@pytest.mark.parametrize("model", ALL)
def test_btrfs_may_lose_the_other_end_of_an_exchange(model: str, tmp_path: Path) -> None:
    """Seen on real btrfs: only the file that came to this name was synced."""
    build = Build({"a": b"a"})
    build.create("b", b"b")
    build.exchange("a", "b")
    build.fsync("a")
    problem = ask(build, model, tmp_path / "1", {"a": b"b"})
    assert (problem is None) is (model in ("posix", "btrfs"))


@pytest.mark.parametrize("model", ALL)
def test_btrfs_may_bring_all_names_of_a_file_that_it_logged(model: str, tmp_path: Path) -> None:
    """Seen on real btrfs: a name in the root without the directory that was made before it."""
    build = Build({"d": None, "f": b"f"})
    build.mkdir("e")
    build.link("f", "g")
    build.link("g", "d/f")
    build.fsync("d")
    problem = ask(build, model, tmp_path / "1", {"d": None, "d/f": b"f", "f": b"f", "g": b"f"})
    assert (problem is None) is (model in ("posix", "btrfs"))


def test_many_names_that_look_alike_are_decided(tmp_path: Path) -> None:
    """Forty renames over one name, all of the same bytes: no search through all subsets."""
    build = Build({"f": b"same"})
    for n in range(40):
        build.create(f"tmp{n}", b"same")
        build.rename(f"tmp{n}", "f")
    assert ask(build, "posix", tmp_path / "1", {"f": b"same"}) is None
    assert ask(build, "posix", tmp_path / "2", {"f": b"same", "tmp7": b"same"}) is None
    problem = ask(build, "posix", tmp_path / "3", {"f": b"other!"})
    assert problem is not None
    assert problem.startswith("f: ")


def test_a_place_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="crash place 9: the trace has 0 to 2"):
        contains(two_files().trace(), "posix", 9, snapshot(str(tmp_path)))
