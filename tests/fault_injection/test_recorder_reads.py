"""What an attempt asks of its starting tree is taken down, and what it made itself is not."""

import shutil
from pathlib import Path

import pytest

from fault_injection.overlay import Overlay
from fault_injection.recorder import Recorder
from fault_injection.spool import Spool
from tests.fault_injection.recorded import SYSCALL, require_supervision, supervise

Asked = dict[str, set[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """step-1/{model,state}, step-2/{model}, LATEST, current -> step-2, log."""
    require_supervision()
    root = tmp_path / "root"
    for path in ("step-1/model", "step-1/state", "step-2/model", "LATEST", "log"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(path)
    (root / "current").symlink_to("step-2")
    return root


def asked(root: Path, code: str, *, spool: Path | None = None) -> Asked:
    recorder = Recorder(
        root, observe_reads=True, spool=None if spool is None else Spool(str(spool))
    )
    run = supervise(recorder, code=code, args=(str(root),), cwd=root.parent)
    assert run.exit_code == 0, run.stderr.decode()
    assert recorder.reads is not None
    return {path.decode(): set(words) for path, words in recorder.reads.items()}


def test_what_a_resume_looks_at(root: Path) -> None:
    assert asked(
        root,
        """
import os, sys
root = sys.argv[1]
os.chdir(root)
open("LATEST").read()
os.path.exists("step-3")
os.listdir(".")
os.stat("step-1")
os.access("step-1/state", os.R_OK)
os.readlink("current")
open("current/model", "rb").read()
os.path.exists("absent/deep/inside")
open(root + "/step-1/../step-1/model").close()
""",
    ) == {
        "": {"exists", "listing", "stat"},
        "LATEST": {"content", "stat"},
        "step-3": {"exists"},
        "step-1": {"stat"},
        "step-1/state": {"exists"},
        "current": {"link"},
        "step-2/model": {"content", "stat"},
        "absent": {"exists"},
        "step-1/model": {"content", "stat"},
    }


def test_what_it_made_itself_is_no_question(root: Path) -> None:
    assert asked(
        root,
        SYSCALL
        + """
import sys
os.chdir(sys.argv[1])
os.mkdir("step-3.tmp")
f = os.open("step-3.tmp/model", os.O_CREAT | os.O_WRONLY)
os.write(f, b"new")
os.rename("step-3.tmp", "step-3")
os.stat("step-3")
os.listdir("step-3")
open("step-3/model").read()
f = os.open("LATEST", os.O_WRONLY | os.O_TRUNC)
os.write(f, b"step-3")
os.close(os.open("LATEST", os.O_RDONLY))
os.rename("step-1", "old")
os.close(os.open("old/model", os.O_RDONLY))
os.path.exists("step-1")           # gone by its own doing
os.unlink("old/state")
os.stat("old/model")
try:
    os.stat("old/state")
except OSError:
    pass
""",
    ) == {
        "": {"exists"},
        "step-3.tmp": {"exists"},
        "step-3": {"exists"},
        "LATEST": {"exists"},
        "step-1": {"exists"},
        "old": {"exists"},
        "step-1/model": {"content", "stat"},
        "step-1/state": {"exists"},
    }


def test_questions_that_changes_ask(root: Path) -> None:
    assert asked(
        root,
        """
import os, sys
os.chdir(sys.argv[1])
def quietly(function, *args):
    try:
        function(*args)
    except OSError:
        pass
quietly(os.open, "LATEST", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
quietly(os.mkdir, "step-2")
quietly(os.rmdir, "step-1")                                # not empty: it fails
os.close(os.open("step-1/model", os.O_RDONLY))             # so this is still the start's
os.close(os.open("log", os.O_WRONLY | os.O_APPEND))
os.close(os.open("step-2/model", os.O_WRONLY))
quietly(os.rename, "LATEST", "step-1")
quietly(os.link, "LATEST", "log")
os.truncate("step-1/state", 3)
""",
    ) == {
        "": {"exists"},
        "LATEST": {"exists"},
        "step-2": {"exists"},
        "step-1": {"listing"},
        "step-1/model": {"content"},
        "log": {"stat", "exists"},
        "step-2/model": {"content"},
        "step-1/state": {"content"},
    }


def test_what_is_overwritten_is_not_asked_what_it_was(root: Path) -> None:
    assert asked(
        root,
        """
import os, sys
os.chdir(sys.argv[1])
os.umask(0o027)
open("LATEST", "wb").close()                               # emptied: it kept its mode
open("new", "wb").close()                                  # and this is made
os.close(os.open("step-1/state", os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600))
os.rename("log", "step-1/model")                           # over a file
os.rename("new", "other")                                  # over nothing
os.rename("step-2", "step-3")                              # no file, so no replacing
try:
    os.open("step-1", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
except OSError:
    pass
""",
    ) == {
        "": {"exists"},
        "LATEST": {"emptied-640"},
        "new": {"emptied-640"},
        "step-1/state": {"emptied-600"},
        "log": {"exists"},
        "step-1/model": {"replaced"},
        "other": {"replaced"},
        "step-2": {"exists"},
        "step-3": {"exists"},
        "step-1": {"exists"},
    }


def test_to_ask_whether_a_file_is_a_directory_is_not_to_look_into_it(root: Path) -> None:
    assert asked(
        root,
        """
import os, sys
os.chdir(sys.argv[1])
try:
    os.open("LATEST", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
except NotADirectoryError:
    os.unlink("LATEST")
""",
    ) == {"": {"exists"}, "LATEST": {"exists"}}


def test_only_a_seek_from_the_end_asks_for_the_length(root: Path) -> None:
    code = """
import os, sys
os.chdir(sys.argv[1])
log = os.open("log", os.O_WRONLY)
for whence in (os.SEEK_SET, os.SEEK_CUR, SEEK):
    os.lseek(log, 0, whence)
"""
    plain = asked(root, code.replace("SEEK)", "os.SEEK_SET)"))
    assert "stat" not in plain["log"]
    assert "stat" in asked(root, code.replace("SEEK)", "os.SEEK_END)"))["log"]


def test_which_directories_of_the_start_are_gone(root: Path) -> None:
    code = """
import os, shutil, sys
os.chdir(sys.argv[1])
os.rename("step-1", "aside")
shutil.rmtree("aside")                # gone, under another name
os.listdir("step-2")                  # listed, and still there
os.mkdir("own")
os.listdir("own")
os.rmdir("own")                       # its own
"""
    recorder = Recorder(root, observe_reads=True)
    run = supervise(recorder, code=code, args=(str(root),), cwd=root.parent)
    assert run.exit_code == 0, run.stderr.decode()
    assert recorder.removed == {b"step-1"}


def test_descriptors_links_from_outside_and_recording_at_the_same_time(root: Path) -> None:
    link = root.parent / "way-in"
    link.symlink_to("root/step-1")
    code = """
import os, sys
d = os.open(sys.argv[1], os.O_PATH)
os.stat("step-2/model", dir_fd=d)
os.stat("way-in/model")
os.stat("root/current/model")
os.listdir("way-in")
f = os.open(os.path.join(sys.argv[1], "log"), os.O_RDONLY)
os.fstat(f)
os.scandir(os.open("root/step-2", os.O_RDONLY)).close()
list(os.scandir("root/step-2"))
"""
    expected = {
        "": {"stat", "exists"},
        "step-2/model": {"stat"},
        "step-1/model": {"stat"},
        "step-1": {"exists", "stat", "listing"},
        "log": {"content", "stat"},
        "current": {"link"},
        "step-2": {"exists", "stat", "listing"},
    }
    plain = asked(root, code)
    expected[""] = plain[""]
    assert plain == expected
    spool = root.parent / "spool"
    assert asked(root, code, spool=spool) == expected
    shutil.rmtree(spool)


def test_overlay_knows_where_paths_come_from() -> None:
    overlay = Overlay()
    assert overlay.origin(b"a/b") == b"a/b"
    overlay.own(b"a")
    assert overlay.origin(b"a/b") is None
    overlay.move(b"x", b"a/y")
    assert overlay.origin(b"a/y/z") == b"x/z"
    assert overlay.origin(b"x/z") is None
    overlay.move(b"a", b"b")
    assert overlay.origin(b"b/y/z") == b"x/z"
    assert overlay.origin(b"b/other") is None
    assert overlay.origin(b"a/y/z") is None
    overlay.exchange(b"b", b"c")
    assert overlay.origin(b"c/y/z") == b"x/z"
    assert overlay.origin(b"b/q") == b"c/q"
    overlay.copy(b"b/q", b"linked")
    assert overlay.origin(b"linked") == b"c/q"
    overlay.move(b"c", None)
    assert overlay.origin(b"c/y/z") is None
    overlay.move(None, b"b")
    assert overlay.origin(b"b/q") is None
