"""Each lint speaks on a broken trace, with operation and file, and is silent on correct ones."""

from collections.abc import Callable

import pytest

from fault_injection.trace import Kind
from harness.lints import LINTS, lint
from tests.fault_injection.traces import Build


def acks(build: Build) -> list[int]:
    return [op.index for op in build.operations if op.kind is Kind.OUTPUT]


def findings(build: Build, *, with_acks: bool = True) -> list[tuple[str, int, str]]:
    found = lint(build.trace(), acknowledged=acks(build) if with_acks else ())
    return [(f.name, f.index, f.file) for f in found]


# Correct programs ------------------------------------------------------------------------------


def plain(saves: int = 3) -> Build:
    """tmp, fsync, rename, fsync of the directory, then the acknowledgement."""
    build = Build()
    for step in range(saves):
        build.create("ckpt.tmp", b"%d" % step * 100)
        build.fsync("ckpt.tmp")
        build.rename("ckpt.tmp", "ckpt")
        build.fsync()
        build.output(f"saved step={step}")
    return build


def directory_per_step() -> Build:
    """The order of a checkpoint with a manifest, a pointer and retention."""
    build = Build({"LATEST": b"step-1\n", "step-1": None, "step-1/w": b"1", "log": b"{}\n"})
    for step in (2, 3):
        tmp, final = f"step-{step}.tmp", f"step-{step}"
        build.mkdir(tmp)
        for name, data in (("w", b"w"), ("opt", b"o"), ("MANIFEST", b'{"w": 1, "opt": 1}')):
            build.create(f"{tmp}/{name}", data)
            build.fsync(f"{tmp}/{name}")
        build.fsync(tmp)
        build.rename(tmp, final)
        build.fsync()
        build.create("LATEST.tmp", final.encode() + b"\n")
        build.fsync("LATEST.tmp")
        build.rename("LATEST.tmp", "LATEST")
        build.fsync()
        build.write("log", b'{"saved": %d}\n' % step)
        build.output(f"saved step={step}")
        build.rename(f"step-{step - 1}", f"step-{step - 1}.tmp")
        for name in ("w",) if step == 2 else ("w", "opt", "MANIFEST"):
            build.unlink(f"step-{step - 1}.tmp/{name}")
        build.rmdir(f"step-{step - 1}.tmp")
    return build


def journal() -> Build:
    """Appended records, each synced; a torn tail cut off first."""
    build = Build({"log": b"record 1\nreco"})
    build.truncate("log", 9)
    for step in range(3):
        build.write("log", b"record\n")
        build.fdatasync("log")
        build.output(f"saved step={step}")
    return build


def two_slots() -> Build:
    """Each save empties and rewrites the older of two slots."""
    build = Build({"slot0": b"0" * 20, "slot1": b"1" * 20})
    for step in range(4):
        slot = f"slot{step % 2}"
        build.truncate(slot, call="openat")
        build.write(slot, b"%d" % step * 20)
        build.fsync(slot)
        build.output(f"saved step={step}")
    return build


def hard_links() -> Build:
    build = Build({"ckpt": b"old"})
    build.create("new", b"new")
    build.fsync("new")
    build.link("ckpt", "ckpt.bak")
    build.rename("new", "ckpt")
    build.fsync()
    build.output("saved")
    build.unlink("ckpt.bak")
    return build


def nameless() -> Build:
    build = Build()
    inode = build.tmpfile(b"new")
    build.fsync(inode)
    build.link(inode, "ckpt")
    build.fsync()
    build.output("saved")
    return build


def rollback_journal() -> Build:
    """A database file changed in place under a journal that is emptied at each commit."""
    build = Build({"db": b"d" * 4096, "db-journal": b""})
    for step in range(3):
        build.write("db-journal", b"j" * 512, offset=0)
        build.fsync("db-journal")
        build.write("db", b"%d" % step * 4096, offset=0)
        build.fsync("db")
        build.truncate("db-journal")
        build.fsync("db-journal")
        build.output(f"saved step={step}")
    return build


def o_sync() -> Build:
    build = Build({"ckpt": b"old"})
    build.create("tmp")
    build.write("tmp", b"new", synced="all")
    build.rename("tmp", "ckpt")
    build.fsync()
    build.output("saved")
    return build


def exchanged() -> Build:
    build = Build({"ckpt": b"old"})
    build.create("tmp", b"new")
    build.fsync("tmp")
    build.exchange("tmp", "ckpt")
    build.fsync()
    build.output("saved")
    build.unlink("tmp")
    return build


CORRECT = (
    plain,
    directory_per_step,
    journal,
    two_slots,
    hard_links,
    nameless,
    rollback_journal,
    o_sync,
    exchanged,
)


@pytest.mark.parametrize("program", CORRECT)
@pytest.mark.parametrize("with_acks", [True, False])
def test_silent_on_a_correct_program(program: Callable[[], Build], with_acks: bool) -> None:
    assert findings(program(), with_acks=with_acks) == []


# Broken programs -------------------------------------------------------------------------------


def test_a_buffer_flushed_by_close_after_the_fsync() -> None:
    build = Build({"ckpt": b"old"})
    build.create("tmp")
    build.fsync("tmp")
    build.write("tmp", b"small enough for the buffer")
    build.rename("tmp", "ckpt")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("fsync-before-write", 1, "tmp"), ("rename-before-fsync", 3, "tmp")]
    message = lint(build.trace())[0].message
    assert "(#2, 27 bytes)" in message
    assert "flush the buffer first" in message


def test_the_tail_of_a_buffer_flushed_by_close() -> None:
    build = Build()
    build.create("ckpt", b"x" * 8192)
    build.fsync("ckpt")
    build.write("ckpt", b"tail")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("fsync-before-write", 2, "ckpt")]


def test_a_rename_of_a_file_that_was_not_synced() -> None:
    build = Build({"ckpt": b"old"})
    build.create("tmp", b"new")
    build.rename("tmp", "ckpt")
    build.fsync("ckpt")  # too late
    build.fsync()
    build.output("saved")
    assert findings(build) == [("rename-before-fsync", 2, "tmp")]


def test_a_rename_of_a_directory_with_a_file_that_was_not_synced() -> None:
    build = Build()
    build.mkdir("step.tmp")
    build.create("step.tmp/a", b"a")
    build.create("step.tmp/b", b"b")
    build.fsync("step.tmp/a")
    build.fsync("step.tmp")
    build.rename("step.tmp", "step")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("rename-before-fsync", 7, "step.tmp/b")]


def test_no_fsync_of_the_directory_before_the_acknowledgement() -> None:
    build = Build({"ckpt": b"old"})
    build.create("tmp", b"new")
    build.fsync("tmp")
    build.rename("tmp", "ckpt")
    build.output("saved")
    build.fsync()
    assert findings(build) == [("no-directory-fsync", 3, "ckpt")]
    assert findings(build, with_acks=False) == []  # nothing is known to have been promised


def test_no_fsync_of_the_directory_at_all() -> None:
    build = Build({"ckpt": b"old"})
    build.create("tmp", b"new")
    build.fsync("tmp")
    build.rename("tmp", "ckpt")
    assert findings(build, with_acks=False) == [("no-directory-fsync", 3, "ckpt")]


def test_the_parents_of_a_synced_file_never_synced() -> None:
    build = Build()
    build.mkdir("run")
    build.create("run/ckpt", b"c")
    build.fsync("run/ckpt")
    build.fsync("run")
    build.output("saved")
    assert findings(build) == [("no-directory-fsync", 0, "run")]
    assert "fsync the root directory after #0" in lint(build.trace())[0].message


def test_the_old_one_removed_before_the_new_one_is_renamed() -> None:
    build = plain(1)
    build.create("ckpt.tmp", b"new")
    build.fsync("ckpt.tmp")
    build.unlink("ckpt")
    build.rename("ckpt.tmp", "ckpt")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("unlink-before-rename", 9, "ckpt")]


def numbered(*, beside: str = "", synced: bool = True) -> Build:
    """Each save removes the numbered one before it; with another file written in between."""
    build = Build()
    for step in (2, 4):
        if step == 4:
            build.unlink("c-2")
            build.fsync()
        build.create("c.tmp", b"%d" % step)
        build.fsync("c.tmp")
        build.rename("c.tmp", f"c-{step}")
        if beside:
            build.create(f"{beside}.{step}", b"%d" % step)
            if synced:
                build.fsync(f"{beside}.{step}")
        build.fsync()
        build.output(f"saved step={step}")
    return build


@pytest.mark.parametrize("with_acks", [True, False])
def test_the_only_one_of_a_series_removed_before_the_next_is_renamed(with_acks: bool) -> None:
    build = numbered()
    assert findings(build, with_acks=with_acks) == [("unlink-before-rename", 6, "c-2")]
    assert lint(build.trace())[0].message == (
        "c-2 was removed before #11 gave the new one the name c-4: between the two there is none; "
        "first rename the new one, then remove the old one"
    )
    unsynced = numbered(beside="log", synced=False)
    assert ("unlink-before-rename", 8, "c-2") in findings(unsynced, with_acks=with_acks)


def test_a_removal_with_another_synced_file_beside_it_may_be_meant() -> None:
    """A log's segment, say, whose content is in the database by then."""
    assert findings(numbered(beside="other")) == []


def in_place() -> Build:
    build = Build()
    build.create("ckpt")
    build.fsync()
    for step in range(2):
        build.truncate("ckpt", call="openat")
        build.write("ckpt", b"%d" % step * 50)
        build.fsync("ckpt")
        build.output(f"saved step={step}")
    return build


def test_the_only_checkpoint_emptied_in_place() -> None:
    assert findings(in_place()) == [("truncate-in-place", 6, "ckpt")]
    assert findings(in_place(), with_acks=False) == [("truncate-in-place", 6, "ckpt")]


def through_scratch(*, synced: bool, size: int = 50) -> Build:
    """A scratch file is written, then copied to the one that is synced and renamed."""
    build = Build()
    build.create("scratch")
    for step in range(2):
        build.truncate("scratch", call="openat")
        build.write("scratch", b"%d" % step * 50)
        if synced:
            build.fsync("scratch")
        build.create("tmp", b"%d" % step * size)
        build.fsync("tmp")
        build.rename("tmp", "ckpt")
        build.fsync()
        build.output(f"saved step={step}")
    return build


def test_a_scratch_file_may_be_emptied() -> None:
    assert findings(through_scratch(synced=False)) == []
    # Where it was synced, or what was is shorter, it may be what the save consists of.
    assert findings(through_scratch(synced=True)) == [("truncate-in-place", 10, "scratch")]
    assert findings(through_scratch(synced=False, size=20)) == [("truncate-in-place", 9, "scratch")]


def test_a_file_that_a_manifest_vouches_for_emptied_in_place() -> None:
    build = Build({"w.bin": b"w" * 10, "other": b"o", "MANIFEST.json": b'{"w.bin": "sha256"}'})
    build.truncate("w.bin")
    build.write("w.bin", b"n" * 10)
    build.fsync("w.bin")
    build.output("saved")
    assert findings(build) == [("truncate-in-place", 0, "w.bin")]
    assert "while MANIFEST.json vouches for it" in lint(build.trace())[0].message


def pointer(*, first: bool, sync_between: bool = True) -> Build:
    build = Build({"LATEST": b"step-1", "step-1": b"1"})
    if not first:
        build.create("step-2.tmp", b"2")
        build.fsync("step-2.tmp")
        build.rename("step-2.tmp", "step-2")
        if sync_between:
            build.fsync()
    build.create("LATEST.tmp", b"step-2\n")
    build.fsync("LATEST.tmp")
    build.rename("LATEST.tmp", "LATEST")
    build.fsync()
    if first:
        build.create("step-2.tmp", b"2")
        build.fsync("step-2.tmp")
        build.rename("step-2.tmp", "step-2")
        build.fsync()
    build.output("saved")
    return build


def test_a_pointer_to_what_is_not_there_yet() -> None:
    assert findings(pointer(first=True)) == [("pointer-before-data", 3, "LATEST")]
    assert findings(pointer(first=False)) == []


def test_one_directory_fsync_for_two_renames() -> None:
    assert findings(pointer(first=False, sync_between=False)) == [
        ("pointer-before-data", 7, "LATEST")
    ]


def test_a_manifest_synced_before_the_data_it_vouches_for() -> None:
    build = Build()
    build.mkdir("step")
    build.create("step/w.bin", b"w" * 100)
    build.create("step/opt.bin", b"o" * 100)
    build.create("step/MANIFEST", b"w.bin sha\nopt.bin sha\n")
    build.fsync("step/MANIFEST")
    build.fsync("step/w.bin")
    build.fsync("step/opt.bin")
    build.fsync("step")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("pointer-before-data", 7, "step/MANIFEST")] * 2
    messages = [f.message for f in lint(build.trace())]
    assert messages == [
        f"step/MANIFEST was published while {name}, which it names, had bytes that were not synced"
        for name in ("opt.bin", "w.bin")
    ]


def test_a_symlink_swapped_before_its_target_is_there() -> None:
    build = Build({"step-1": b"1"})
    build.symlink("step-1", "latest")
    build.fsync()
    build.symlink("step-2", "latest.tmp")
    build.rename("latest.tmp", "latest")
    build.fsync()
    build.create("step-2", b"2")
    build.fsync("step-2")
    build.fsync()
    build.output("saved")
    assert findings(build) == [("pointer-before-data", 3, "latest")]


def test_every_lint_is_documented() -> None:
    import harness.lints

    for name in LINTS:
        assert f"\n{name} " in (harness.lints.__doc__ or "")


def test_exchanging_a_file_that_was_not_synced() -> None:
    build = Build({"ckpt": b"1"})
    build.create("tmp", b"2")
    build.exchange("tmp", "ckpt")
    build.fsync()
    assert ("rename-before-fsync", 2, "tmp") in findings(build)
