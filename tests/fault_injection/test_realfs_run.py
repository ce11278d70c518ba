"""A program held at a place while its file system loses power, and what a resume then finds."""

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection import realfs, volumes
from fault_injection.attempt import Command, Settings
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.filesystems import FILE_SYSTEMS, VolumeError
from fault_injection.volumes import Image, Volume, volume
from tests.fault_injection.realfs_support import require, tree

# Saves "new" over "old" in the right order; a failpoint after each step.
SAVE = """
    import os, sys
    from fault_injection.points import point
    root = sys.argv[1]
    descriptor = os.open(root + "/tmp", os.O_WRONLY | os.O_CREAT)
    os.write(descriptor, b"new")
    point("written")
    os.fsync(descriptor)
    point("synced")
    os.rename(root + "/tmp", root + "/file")
    point("renamed")
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    point("durable")
    print("saved", flush=True)
"""


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("program") / "save.py"
    path.write_text(textwrap.dedent(SAVE))
    return path


@pytest.fixture(scope="module", params=FILE_SYSTEMS)
def prepared(request: pytest.FixtureRequest) -> Iterator[tuple[Volume, Image]]:
    require(request.param)
    with volume(request.param) as made:
        Path(made.path, "file").write_bytes(b"old")
        yield made, made.keep()


def _run(
    on: Volume, program: Path, fault: Fault, *, committed: bool = False, supervise: bool = True
) -> realfs.RealCut:
    command = Command(
        argv=(sys.executable, str(program), on.path),
        cwd=str(program.parent),
        env=tuple(sorted(os.environ.items())),
    )
    settings = Settings(root=on.path, timeout_s=30, fault=fault, fork=True, supervise=supervise)
    return realfs.run_on_real(command, settings, on=on, committed=committed)


def _at_point(name: str) -> Fault:
    return Fault(TriggerKind.POINT, f"{name}#1")


@pytest.mark.parametrize(
    ("point", "committed", "expected"),
    [
        ("synced", False, {"file": b"old", "tmp": b"new"}),
        ("renamed", False, {"file": b"old", "tmp": b"new"}),
        ("renamed", True, {"file": b"new"}),
        ("durable", False, {"file": b"new"}),
    ],
)
def test_the_cut_falls_while_the_program_is_held_at_the_point(
    prepared: tuple[Volume, Image],
    program: Path,
    point: str,
    committed: bool,
    expected: dict[str, bytes],
) -> None:
    on, image = prepared
    on.reset(image)
    done = _run(on, program, _at_point(point), committed=committed, supervise=False)
    assert done.cut
    how = "after a commit" if committed else "without a commit"
    killed = f"SIGKILL of the process tree at {point}#1"
    assert done.evidence == f"{on.file_system} lost power {how}, then {killed}"
    assert done.attempt.stdout == b""
    assert tree(on.path) == expected


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("fsync-tmp#1", {"file": b"old"}),
        ("rename-file#1", {"file": b"old", "tmp": b"new"}),
        ("output-stdout#1", {"file": b"new"}),
    ],
)
def test_the_cut_falls_right_before_a_recorded_call(
    prepared: tuple[Volume, Image], program: Path, place: str, expected: dict[str, bytes]
) -> None:
    on, image = prepared
    on.reset(image)
    done = _run(on, program, Fault(TriggerKind.CALL, place))
    assert done.cut
    assert f"before {place}" in done.evidence
    assert (done.attempt.stdout, tree(on.path)) == (b"", expected)


def test_the_cut_after_the_last_call_keeps_what_was_acknowledged(
    prepared: tuple[Volume, Image], program: Path
) -> None:
    on, image = prepared
    on.reset(image)
    done = _run(on, program, Fault(TriggerKind.AFTER_LAST_CALL, ""))
    assert (done.cut, done.attempt.stdout) == (True, b"saved\n")
    assert tree(on.path) == {"file": b"new"}


def test_a_place_that_is_never_reached_is_no_cut(
    prepared: tuple[Volume, Image], program: Path
) -> None:
    on, image = prepared
    on.reset(image)
    done = _run(on, program, _at_point("never"), supervise=False)
    assert (done.cut, done.evidence, done.attempt.exit_code) == (False, "", 0)
    assert tree(on.path) == {"file": b"new"}


def test_a_cut_that_fails_is_an_error_and_the_program_is_gone(
    prepared: tuple[Volume, Image], program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on, image = prepared
    on.reset(image)

    def fail(*_: object, **__: object) -> None:
        raise VolumeError("no power to lose")

    monkeypatch.setattr(volumes.Volume, "cut", fail)
    with pytest.raises(VolumeError, match="no power to lose"):
        _run(on, program, _at_point("renamed"), supervise=False)
    # The volume could be mounted again, so nobody holds it any more.
    assert tree(on.path) == {"file": b"new"}


def test_the_prepared_tree_is_what_each_cut_starts_from(
    prepared: tuple[Volume, Image], program: Path
) -> None:
    on, image = prepared
    on.reset(image)
    command = Command(
        argv=(sys.executable, str(program), on.path),
        cwd=str(program.parent),
        env=tuple(sorted(os.environ.items())),
    )
    settings = Settings(root=on.path, timeout_s=30, fork=True, supervise=False)
    attempt, kept = realfs.prepare(command, settings, on=on)
    assert (attempt.exit_code, tree(on.path)) == (0, {"file": b"new"})
    _run(on, program, _at_point("written"), supervise=False)
    assert tree(on.path) == {"file": b"new"}
    on.reset(image)
    assert tree(on.path) == {"file": b"old"}
    on.reset(kept)
    assert tree(on.path) == {"file": b"new"}


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (None, "not with no fault"),
        (Fault(TriggerKind.TIME, "0.1"), "not with SIGKILL after 0.1 s"),
        (
            Fault(TriggerKind.POINT, "renamed#1", ActionKind.SIGNAL, "SIGTERM"),
            "not with SIGTERM at renamed#1",
        ),
    ],
)
def test_a_fault_that_holds_nobody_is_refused(
    prepared: tuple[Volume, Image], fault: Fault | None, words: str
) -> None:
    on, _ = prepared
    settings = Settings(root=on.path, timeout_s=1, fault=fault)
    with pytest.raises(ValueError, match=words):
        realfs.run_on_real(Command(("true",), "/", ()), settings, on=on)


def test_a_root_that_is_not_the_volume_is_refused(prepared: tuple[Volume, Image]) -> None:
    settings = Settings(root="/elsewhere", timeout_s=1, fault=_at_point("x"))
    with pytest.raises(ValueError, match="the root /elsewhere is not the volume's"):
        realfs.run_on_real(Command(("true",), "/", ()), settings, on=prepared[0])
