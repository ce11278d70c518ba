"""Real file systems behave as measured when their power goes, and leave nothing behind."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from fault_injection import filesystems, leftovers, mounts, volumes
from fault_injection.filesystems import FILE_SYSTEMS, VolumeError
from fault_injection.volumes import Image, Volume, volume
from tests.fault_injection import fidelity_workloads as work
from tests.fault_injection.realfs_support import require, tree

UNTOUCHED = {
    "directory": None,
    "directory/inside": work.OLD,
    "old": work.OLD,
    "pages": work.PAGES,
}
NEW, OLD = work.NEW, work.OLD


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def prepared(request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Image]]:
    require(request.param)
    with volume(request.param) as made:
        work.prepare(made.path)
        yield made, made.keep()


def _after(made: Volume, image: Image, name: str, *, committed: bool) -> dict[str, bytes | None]:
    """What changed, against the starting tree, when power was lost at the end of a workload."""
    made.reset(image)
    work.WORKLOADS[name](made.path, lambda: None)
    work.settle(made.path)
    made.cut(committed=committed)
    made.remount()
    left = tree(made.path)
    gone = {path: b"(gone)" for path in UNTOUCHED if path not in left}
    return gone | {p: v for p, v in left.items() if p not in UNTOUCHED or UNTOUCHED[p] != v}


# What is forced so far, and what the file system might have written by itself a moment later. The
# same on all three, but for the rows below.
FORCED = {
    "nothing-synced": {},
    "file-synced": {"tmp": NEW},
    "directory-synced": {"new": b""},
    "both-synced": {"new": NEW},
    "replace": {},
    "one-megabyte": {},
    "append": {},
    "append-pages": {},
    "file-in-new-directory": {"made": None, "made/file": NEW},
    "rename-directory": {},
}
COMMITTED = FORCED | {
    "nothing-synced": {"new": b""},
    "file-synced": {"new": NEW},
    "replace": {"old": NEW},
    "one-megabyte": {"big": b""},
    "rename-directory": {
        "directory": b"(gone)",
        "directory/inside": b"(gone)",
        "moved": None,
        "moved/inside": OLD,
    },
}
# xfs knows no rule for a rename that replaces: both contents are lost. ext4 records the new length
# of an append within a block that it had already, and not its bytes.
COMMITTED_BY = {
    "xfs": {"replace": {"old": b""}},
    "ext4": {"append": {"old": OLD + bytes(len(b"appended"))}},
    "btrfs": {},
}


def test_only_what_was_forced_survives_a_cut(prepared: tuple[Volume, Image]) -> None:
    found = {name: _after(*prepared, name, committed=False) for name in FORCED}
    assert found == FORCED


def test_more_survives_once_the_file_system_has_committed(prepared: tuple[Volume, Image]) -> None:
    file_system = prepared[0].file_system
    found = {name: _after(*prepared, name, committed=True) for name in COMMITTED}
    if file_system == "btrfs":
        # btrfs starts to write at the rename, as ext4 does, and nothing tells when it is done:
        # the commit has the old length or the new one.
        assert found.pop("replace") in ({"old": NEW}, {"old": b""})
        found["replace"] = COMMITTED["replace"]
    assert found == COMMITTED | COMMITTED_BY[file_system]


def test_an_fsync_of_something_clean_commits_all_on_ext4_only(
    prepared: tuple[Volume, Image],
) -> None:
    found = _after(*prepared, "clean-directory-synced", committed=False)
    assert found == ({"new": b""} if prepared[0].file_system == "ext4" else {})


def test_a_cut_in_the_middle_forgets_what_is_done_after_it(prepared: tuple[Volume, Image]) -> None:
    made, image = prepared
    made.reset(image)
    made.cut()
    with contextlib.suppress(OSError), open(f"{made.path}/late", "wb") as file:
        file.write(b"late")
        os.fsync(file.fileno())
    made.remount()
    assert tree(made.path) == UNTOUCHED


def test_without_a_cut_a_remount_keeps_everything(prepared: tuple[Volume, Image]) -> None:
    """The control: it is the cut that loses, not the remount."""
    made, image = prepared
    made.reset(image)
    work.nothing_synced(made.path, lambda: None)
    made.remount()
    assert tree(made.path) == UNTOUCHED | {"new": NEW}


@pytest.mark.parametrize(
    ("options", "name", "expected"),
    [
        # Without the rule for replacing renames ext4 loses both contents, as xfs does.
        (("noauto_da_alloc",), "replace", {"old": b""}),
        # Blocks given at once are written before the commit that makes them reachable.
        (("nodelalloc",), "nothing-synced", {"new": NEW}),
        # ... or not before it: the length is there, the blocks hold what they held.
        (("nodelalloc", "data=writeback"), "nothing-synced", {"new": bytes(len(NEW))}),
        (("data=journal",), "nothing-synced", {"new": NEW}),
        (("data=ordered",), "nothing-synced", {"new": b""}),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, tuple) else None,
)
def test_options_of_ext4_change_what_a_commit_saves(
    options: tuple[str, ...], name: str, expected: dict[str, bytes]
) -> None:
    require("ext4")
    with volume("ext4", options=options) as made:
        work.prepare(made.path)
        assert _after(made, made.keep(), name, committed=True) == expected


def _ours() -> list[str]:
    """Our loop devices, mounts and workspaces; what a fixture still holds open among them."""
    found = []
    for device in os.listdir("/sys/block"):
        with contextlib.suppress(OSError), open(f"/sys/block/{device}/loop/backing_file") as file:
            found += [line for line in file if f".{os.getpid()}." in line]
    for home in leftovers.homes():
        with contextlib.suppress(OSError):
            found += os.listdir(os.path.join(home, leftovers.this_process().name))
    return sorted(found + _mounted(os.getpid()))


def _mounted(pid: int) -> list[str]:
    """The mounts of our volumes that a process sees."""
    with open(f"/proc/{pid}/mountinfo") as file:
        return [line for line in file if f".{os.getpid()}." in line]


@pytest.mark.parametrize("file_system", FILE_SYSTEMS)
def test_two_at_once_and_nothing_is_left(file_system: str) -> None:
    require(file_system)
    before = _ours()
    with volume(file_system) as one, volume(file_system) as other:
        with open(f"{one.path}/one", "wb") as file:
            file.write(b"1")
        one.reset(one.keep())
        assert (os.listdir(one.path), os.listdir(other.path)) == (["one"], [])
        # Each: a workspace, a tmpfs on it, a loop device, a file system; unseen from outside.
        assert len(_ours()) == len(before) + 8
        assert _mounted(os.getppid()) == []
    assert _ours() == before


def test_a_file_still_open_is_an_error_that_names_the_process_and_still_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("ext4")
    before = _ours()
    monkeypatch.setattr(volumes, "_UNMOUNT_PAUSE_S", 0.0)
    with contextlib.ExitStack() as stack, volume("ext4") as made:
        stack.enter_context(open(f"{made.path}/open", "wb"))
        with pytest.raises(VolumeError, match=rf"in use; processes: {os.getpid()}$"):
            made.remount()
    assert _ours() == before


def test_a_copy_taken_while_the_device_is_written_to_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    require("btrfs")
    counts = iter(range(1000))
    monkeypatch.setattr(volumes, "_writes", lambda _: (str(next(counts)), "0", "0"))
    with volume("btrfs") as made, pytest.raises(VolumeError, match="written to during each of 50"):
        made.cut()


def test_unknown_names_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'zfs' is none of ext4, xfs, btrfs"), volume("zfs"):
        pass
    with (
        pytest.raises(ValueError, match="xfs has no option 'data=journal' here; known: none"),
        volume("xfs", options=["data=journal"]),
    ):
        pass


def test_a_missing_mkfs_is_named_with_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    require("ext4")
    monkeypatch.setattr(filesystems.shutil, "which", lambda *_, **__: None)
    with (
        pytest.raises(VolumeError, match=r"^mkfs.ext4 not found; install e2fsprogs$"),
        volume("ext4"),
    ):
        pass
    volumes.unavailable.cache_clear()
    try:
        assert volumes.unavailable("xfs") == "mkfs.xfs not found; install xfsprogs"
    finally:
        volumes.unavailable.cache_clear()


def test_a_size_too_small_for_the_file_system_is_what_mkfs_says() -> None:
    require("xfs")
    before = _ours()
    with pytest.raises(VolumeError, match=r"^mkfs\.xfs failed"), volume("xfs", size_bytes=1 << 20):
        pass
    assert _ours() == before


def test_a_plain_user_is_told_that_root_is_needed() -> None:
    if os.geteuid() != 0:
        assert volumes.unavailable("ext4") == "needs root"
        return
    # The user changes after the imports: the interpreter may lie where only root can read.
    program = (
        "import os; from fault_injection import volumes; os.setuid(65534);"
        " print(volumes.unavailable('ext4'))"
    )
    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (said.stdout, said.stderr) == ("needs root\n", "")


def test_the_private_namespace_is_made_once() -> None:
    require("ext4")
    mounts.enter_private_namespace()
    first = os.readlink("/proc/thread-self/ns/mnt")
    mounts.enter_private_namespace()
    assert (
        os.readlink("/proc/thread-self/ns/mnt")
        == first
        != os.readlink(f"/proc/{os.getppid()}/ns/mnt")
    )
