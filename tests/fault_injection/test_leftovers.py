"""What dead runs leave behind is found by its name and removed; the living are never touched."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection import leftovers
from fault_injection.leftovers import Leftover, LeftoverError, Owner, parse_owner
from tests.fault_injection.realfs_support import require


@pytest.fixture(autouse=True)
def runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of this test alone, so that nothing of other runs is seen."""
    monkeypatch.setenv(leftovers.ENV_HOME, str(tmp_path))
    return tmp_path


@contextlib.contextmanager
def _program(text: str) -> Iterator[subprocess.Popen[str]]:
    """A Python program that printed one line and waits."""
    process = subprocess.Popen(
        [sys.executable, "-c", text], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout is not None
    try:
        process.ready = process.stdout.readline().strip()  # type: ignore[attr-defined]
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def _kill(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL


HOLD_WORKSPACE = """
import sys, time
from fault_injection import leftovers
path = leftovers.create_workspace(run_id="held")
open(path + "/file", "w").close()
print(path, flush=True)
time.sleep(60)
"""
# A grandchild in its own session outlives the harness, in the middle of a write on the volume.
HOLD_VOLUME = """
import subprocess, sys, time
from fault_injection.volumes import volume
with volume("ext4") as made:
    program = "import time; f = open('held', 'wb'); f.write(b'x'); f.flush(); time.sleep(60)"
    child = subprocess.Popen([sys.executable, "-c", program], cwd=made.path, start_new_session=True)
    if {survivor}:
        print(child.pid, made.path, flush=True)
    else:
        child.kill()
        child.wait()
        print(0, made.path, flush=True)
    time.sleep(60)
"""


def test_a_workspace_lives_as_long_as_its_block(runtime: Path) -> None:
    with leftovers.workspace(run_id="mine") as path:
        assert os.path.isdir(path)
        assert path.startswith(f"{runtime}/durability-{os.geteuid()}/mine.{os.getpid()}.")
        with leftovers.workspace(run_id="mine") as other:
            assert os.path.dirname(other) == os.path.dirname(path) != other
        assert leftovers.find() == ()
    assert os.listdir(runtime) == []


def test_a_workspace_of_a_killed_process_is_found_and_removed(runtime: Path) -> None:
    with _program(HOLD_WORKSPACE) as process:
        path: str = process.ready  # type: ignore[attr-defined]
        assert leftovers.find() == (), "its owner lives"
        _kill(process)
        directory = os.path.dirname(path)
        found = leftovers.find()
        assert found == (Leftover("directory", directory, os.path.basename(directory)),)
        assert found[0].describe() == (
            f"directory {directory} of the dead run {os.path.basename(directory)}"
        )
        assert os.path.exists(f"{path}/file"), "looking removes nothing"
        assert leftovers.clean(found) == ()
    assert os.listdir(runtime) == []


def _loop_devices_of(pid: int) -> list[str]:
    found = []
    for device in os.listdir("/sys/block"):
        with contextlib.suppress(OSError), open(f"/sys/block/{device}/loop/backing_file") as file:
            found += [device for line in file if f".{pid}." in line]
    return found


def _wait_until_detached(pid: int) -> None:
    """The kernel detaches when it has torn down the namespace, a moment after the last process."""
    deadline = time.monotonic() + 10
    while _loop_devices_of(pid):
        assert time.monotonic() < deadline, "the loop device stayed attached"
        time.sleep(0.005)


def test_a_sigkill_leaves_no_mount_and_no_loop_device(runtime: Path) -> None:
    require("ext4")
    with _program(HOLD_VOLUME.format(survivor=False)) as process:
        assert len(_loop_devices_of(process.pid)) == 1
        _kill(process)
        _wait_until_detached(process.pid)
        found = leftovers.find()
        assert [leftover.kind for leftover in found] == ["directory"]
        # What is left is the empty directory that the private tmpfs was mounted on.
        assert [files for _, _, files in os.walk(found[0].what) if files] == []
        assert leftovers.clean(found) == ()
    assert os.listdir(runtime) == []


def test_a_survivor_of_a_sigkill_is_ended_and_the_kernel_undoes_the_rest(runtime: Path) -> None:
    require("ext4")
    with _program(HOLD_VOLUME.format(survivor=True)) as process:
        survivor = int(process.ready.split()[0])  # type: ignore[attr-defined]
        assert leftovers.find() == (), "its owner lives"
        _kill(process)
        assert len(_loop_devices_of(process.pid)) == 1, "the survivor holds it"
        found = leftovers.find()
        assert (found[0].kind, found[0].what) == ("process", str(survivor))
        assert [f.kind for f in found] == ["process", "directory"]
        assert leftovers.clean(found) == ()
        assert not os.path.exists(f"/proc/{survivor}") or _is_zombie(survivor)
        _wait_until_detached(process.pid)
    assert leftovers.find() == ()
    assert os.listdir(runtime) == []


def _is_zombie(pid: int) -> bool:
    """Whoever inherited it (pid 1 of a container, perhaps) need not have reaped it yet."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def test_the_living_are_not_cleaned_even_when_somebody_asks(runtime: Path) -> None:
    with leftovers.workspace() as path:
        directory = os.path.dirname(path)
        wrong = (
            Leftover("directory", directory, os.path.basename(directory)),
            Leftover("process", str(os.getppid()), "x"),
        )
        assert leftovers.clean(wrong) == (f"{directory}: its owner lives; not touched",)
        assert os.path.isdir(path)
    assert os.path.isdir(runtime)


def _owner_like_this_process(**changes: int | str) -> Owner:
    me = leftovers.this_process()
    fields = {
        "run_id": "r",
        "pid": me.pid,
        "started": me.started,
        "boot": me.boot,
        "pid_namespace": me.pid_namespace,
    }
    return Owner(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changes", "dead"),
    [
        ({}, False),
        ({"started": 1}, True),  # the same pid, given to another process since
        ({"boot": "00000000"}, True),  # before the machine was started again
        ({"pid_namespace": 1}, False),  # in a container: nobody here can say
    ],
)
def test_pid_start_and_boot_together_name_a_process(
    changes: dict[str, int | str], dead: bool
) -> None:
    assert leftovers.is_dead(_owner_like_this_process(**changes)) is dead


@pytest.mark.parametrize(
    "name", ["x", "run.1.2.abc", "run.1.2.abc.4.5", "run.-1.2.abc.4", "../x.1.2.abc.4", "r.1.2.G.4"]
)
def test_a_name_that_is_not_ours_has_no_owner(name: str) -> None:
    assert parse_owner(name) is None


def test_what_others_put_into_the_home_stays(runtime: Path) -> None:
    home = runtime / f"durability-{os.geteuid()}"
    (home / "notes").mkdir(parents=True)
    home.chmod(0o700)
    assert leftovers.find() == ()
    assert (home / "notes").is_dir()


def test_a_home_that_others_may_write_to_is_refused(runtime: Path) -> None:
    home = runtime / f"durability-{os.geteuid()}"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(LeftoverError, match="is open to other users; chmod 700"):
        leftovers.create_workspace()
    home.rmdir()
    home.symlink_to("/")
    with pytest.raises(LeftoverError, match="is not a directory of user"):
        leftovers.find()


def test_a_run_id_that_could_be_a_path_is_refused() -> None:
    with pytest.raises(ValueError, match=r"run id '\.\./x'"):
        leftovers.this_process("../x")


def test_a_tree_without_permissions_is_removed_and_links_are_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_bytes(b"kept")
    closed = tmp_path / "tree" / "closed"
    (closed / "below").mkdir(parents=True)
    (tmp_path / "tree" / "link").symlink_to(outside)
    os.mkfifo(closed / "fifo")
    closed.chmod(0)
    leftovers.remove_tree(str(tmp_path / "tree"))
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "kept").read_bytes() == b"kept"
    leftovers.remove_tree(str(tmp_path / "tree"))  # already gone: fine


def test_a_mount_below_is_never_entered(tmp_path: Path) -> None:
    require("ext4")
    from fault_injection import mounts

    mounts.enter_private_namespace()
    (tmp_path / "tree" / "mounted here").mkdir(parents=True)
    point = str(tmp_path / "tree" / "mounted here")
    mounts.mount("test", point, kind="tmpfs")
    try:
        with pytest.raises(LeftoverError, match="mounted here is mounted below"):
            leftovers.remove_tree(str(tmp_path / "tree"))
    finally:
        mounts.unmount(point)


def test_a_directory_with_its_owner_inside_is_found_when_that_is_dead(runtime: Path) -> None:
    living, dead = runtime / "durability-living", runtime / "durability-dead"
    for directory in (living, dead):
        directory.mkdir()
        leftovers.mark(str(directory))
    gone = _owner_like_this_process(started=1).name
    (dead / ".owner").write_text(gone)
    (dead / "root").mkdir()
    (runtime / "durability-other").mkdir()  # no owner: not ours
    (runtime / "durability-fifo").mkdir()
    os.mkfifo(runtime / "durability-fifo" / ".owner")
    assert leftovers.find() == (Leftover("directory", str(dead), gone),)
    assert leftovers.clean(leftovers.find()) == ()
    assert sorted(path.name for path in runtime.iterdir()) == [
        "durability-fifo",
        "durability-living",
        "durability-other",
    ]


def test_what_dead_runs_left_beside_is_removed_by_the_next_one(tmp_path: Path) -> None:
    dead, living, unmarked = (tmp_path / f".bench-{name}" for name in ("dead", "living", "plain"))
    for directory in (dead, living, unmarked):
        directory.mkdir()
        (directory / "large").write_bytes(b"x")
    (dead / ".owner").write_text(_owner_like_this_process(started=1).name)
    leftovers.mark(str(living))
    with leftovers.beside(str(tmp_path), ".bench-") as made:
        assert os.path.dirname(made) == str(tmp_path)
        (Path(made) / "file").touch()
        assert not dead.exists()
    assert sorted(tmp_path.iterdir()) == sorted((living, unmarked))
