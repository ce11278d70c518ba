"""Each row of the measured tables as an exact test: what a model contains, and no more.

The rows were seen on real ext4 and xfs after a cut right after the last operation. A model must
contain what was seen; where a row shows a guarantee, it must contain nothing else.
"""

import pytest

from tests.fault_injection.traces import Build, shapes_at_the_end

JOURNALS = ("ext4", "xfs")
ALL = ("posix", "ext4", "xfs", "btrfs")
OLD, NEW = b"old content", b"new content!"


def create_write_rename(*, sync_file: bool, sync_directory: bool) -> Build:
    build = Build()
    build.create("tmp", NEW)
    if sync_file:
        build.fsync("tmp")
    build.rename("tmp", "final")
    if sync_directory:
        build.fsync()
    return build


@pytest.mark.parametrize("model", ALL)
def test_nothing_synced_may_leave_nothing(model: str) -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=False, sync_directory=False), model)
    assert () in shapes
    assert (("tmp", NEW),) in shapes
    assert (("final", NEW),) in shapes
    assert (("final", b""),) in shapes


@pytest.mark.parametrize("model", JOURNALS)
def test_file_synced_before_the_rename_keeps_its_old_name_or_has_the_new(model: str) -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=True, sync_directory=False), model)
    assert shapes == {(("tmp", NEW),), (("final", NEW),)}


def test_posix_promises_no_name_for_a_synced_file() -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=True, sync_directory=False), "posix")
    assert shapes == {(), (("tmp", NEW),), (("final", NEW),)}


@pytest.mark.parametrize("model", ALL)
def test_only_the_directory_synced_has_the_new_name_with_length_0(model: str) -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=False, sync_directory=True), model)
    whole_or_lost = {(("final", NEW),), (("final", b""),)}
    if model == "posix":
        half = NEW[: len(NEW) // 2]
        zeros = bytes(len(half))
        torn = {half, half + zeros, zeros + NEW[len(half) :], bytes(len(NEW))}
        assert shapes == whole_or_lost | {(("final", content),) for content in torn}
    else:
        assert shapes == whole_or_lost


@pytest.mark.parametrize("model", ALL)
def test_both_synced_is_whole_under_the_new_name(model: str) -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=True, sync_directory=True), model)
    assert shapes == {(("final", NEW),)}


def replace_then_sync_an_unrelated_file(target: str) -> Build:
    build = Build({"final": OLD})
    build.create("tmp", NEW)
    build.rename("tmp", target)
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    return build


def test_ext4_writes_the_data_of_a_replacing_rename() -> None:
    shapes = shapes_at_the_end(replace_then_sync_an_unrelated_file("final"), "ext4")
    assert shapes == {(("final", NEW), ("unrelated", b"u"))}


def placed_then(build: Build, *, append: bytes, offset: int | None = None) -> Build:
    """A synced file, more bytes for it that are not, a rename over the old one, a commit."""
    build.create("tmp", NEW)
    build.fsync("tmp")
    build.write("tmp", append, offset=offset)
    build.rename("tmp", "final")
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    return build


def test_ext4_does_not_write_what_has_its_place_already() -> None:
    """Within the blocks that the sync allocated nothing waits for a place (cut for real: lost)."""
    shapes = shapes_at_the_end(placed_then(Build({"final": OLD}), append=b"more"), "ext4")
    assert {dict(shape)["final"] for shape in shapes} >= {NEW, NEW + b"more"}
    shapes = shapes_at_the_end(placed_then(Build({"final": OLD}), append=b"X", offset=0), "ext4")
    assert {dict(shape)["final"] for shape in shapes} == {NEW, b"X" + NEW[1:]}


def test_ext4_writes_all_of_a_file_of_which_a_part_waits_for_its_place() -> None:
    more = bytes(5000)
    shapes = shapes_at_the_end(placed_then(Build({"final": OLD}), append=more), "ext4")
    assert {dict(shape)["final"] for shape in shapes} == {NEW + more}


def test_ext4_writes_a_file_that_was_emptied_and_written_again() -> None:
    build = Build({"final": OLD, "tmp": NEW})
    build.truncate("tmp")
    build.write("tmp", b"again")
    build.rename("tmp", "final")
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    shapes = shapes_at_the_end(build, "ext4")
    assert {dict(shape)["final"] for shape in shapes} == {b"again"}


def test_xfs_may_lose_old_and_new_in_a_replacing_rename() -> None:
    shapes = shapes_at_the_end(replace_then_sync_an_unrelated_file("final"), "xfs")
    assert shapes == {
        (("final", NEW), ("unrelated", b"u")),
        (("final", b""), ("unrelated", b"u")),
    }


@pytest.mark.parametrize("model", JOURNALS)
def test_a_rename_to_a_new_name_may_have_length_0(model: str) -> None:
    shapes = shapes_at_the_end(replace_then_sync_an_unrelated_file("other"), model)
    assert shapes == {
        (("final", OLD), ("other", NEW), ("unrelated", b"u")),
        (("final", OLD), ("other", b""), ("unrelated", b"u")),
    }


@pytest.mark.parametrize("model", JOURNALS)
def test_a_megabyte_that_was_not_synced_may_have_length_0(model: str) -> None:
    build = Build()
    build.create("big", b"b" * 1_000_000)
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    shapes = shapes_at_the_end(build, model)
    assert {(name for name, _ in shape) and shape[1] for shape in shapes} == {("unrelated", b"u")}
    lengths = {len(dict(shape)["big"]) for shape in shapes}
    assert lengths == {0, 4096, 499_712, 999_424, 1_000_000}  # lost, cut at a page, whole


def appended_then_synced_an_unrelated_file(old: bytes, new: bytes) -> Build:
    build = Build({"log": old})
    build.write("log", new)
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    return build


@pytest.mark.parametrize("model", JOURNALS)
def test_an_append_may_be_there_or_not(model: str) -> None:
    shapes = shapes_at_the_end(appended_then_synced_an_unrelated_file(b"line\n", b"more\n"), model)
    assert {dict(shape)["log"] for shape in shapes} == {
        b"line\n",
        b"line\nmore\n",
        b"line\n" + bytes(5),  # the length of the new, and zeros
    }


def test_an_append_in_whole_pages_may_come_back_long_and_zero_on_ext4() -> None:
    build = appended_then_synced_an_unrelated_file(b"a" * 4096, b"b" * 4096)
    contents = {dict(shape)["log"] for shape in shapes_at_the_end(build, "ext4")}
    assert contents == {b"a" * 4096, b"a" * 4096 + b"b" * 4096, b"a" * 4096 + bytes(4096)}


def test_an_append_in_whole_pages_never_comes_back_long_and_zero_on_xfs() -> None:
    build = appended_then_synced_an_unrelated_file(b"a" * 4096, b"b" * 4096)
    contents = {dict(shape)["log"] for shape in shapes_at_the_end(build, "xfs")}
    assert contents == {b"a" * 4096, b"a" * 4096 + b"b" * 4096}


@pytest.mark.parametrize("model", ALL)
def test_an_append_inside_a_page_may_leave_zeros_to_its_end(model: str) -> None:
    build = Build({"log": b"a" * 100})
    build.write("log", b"b" * 8000)
    contents = {dict(shape)["log"] for shape in shapes_at_the_end(build, model)}
    assert b"a" * 100 + bytes(3996) in contents


@pytest.mark.parametrize("model", [*JOURNALS, "btrfs"])
def test_a_synced_file_brings_its_new_directory(model: str) -> None:
    build = Build()
    build.mkdir("d")
    build.create("d/f", NEW)
    build.fsync("d/f")
    assert shapes_at_the_end(build, model) == {(("d/", b""), ("d/f", NEW))}


def test_posix_may_lose_the_directory_of_a_synced_file() -> None:
    build = Build()
    build.mkdir("d")
    build.create("d/f", NEW)
    build.fsync("d/f")
    assert shapes_at_the_end(build, "posix") == {
        (),
        (("d/", b""),),
        (("d/", b""), ("d/f", NEW)),
    }


@pytest.mark.parametrize("model", JOURNALS)
def test_a_renamed_directory_is_forced_by_any_sync_after_it(model: str) -> None:
    build = Build({"d": None, "d/f": OLD})
    build.rename("d", "e")
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    assert shapes_at_the_end(build, model) == {(("e/", b""), ("e/f", OLD), ("unrelated", b"u"))}


@pytest.mark.parametrize("model", ["posix", "btrfs"])
def test_an_unrelated_sync_forces_no_rename_on_posix_and_btrfs(model: str) -> None:
    build = Build({"d": None, "d/f": OLD})
    build.rename("d", "e")
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    shapes = shapes_at_the_end(build, model)
    assert (("d/", b""), ("d/f", OLD), ("unrelated", b"u")) in shapes


@pytest.mark.parametrize("model", ALL)
def test_a_clean_sync_forces_nothing(model: str) -> None:
    build = Build({"clean": OLD, "d": None})
    build.create("new", NEW)
    build.fsync("clean")
    build.fsync("d")
    assert (("clean", OLD), ("d/", b"")) in shapes_at_the_end(build, model)


@pytest.mark.parametrize("model", ["ext4"])
@pytest.mark.parametrize("how", ["exchange", "link"])
def test_exchange_and_link_do_not_flush_data_on_ext4(model: str, how: str) -> None:
    build = Build({"final": OLD})
    build.create("tmp", NEW)
    if how == "exchange":
        build.exchange("tmp", "final")
    else:
        build.unlink("final")
        build.link("tmp", "final")
    build.create("unrelated", b"u")
    build.fsync("unrelated")
    assert any(dict(shape)["final"] == b"" for shape in shapes_at_the_end(build, model))


@pytest.mark.parametrize("model", [*ALL, "kill"])
def test_after_a_kill_everything_is_there(model: str) -> None:
    shapes = shapes_at_the_end(create_write_rename(sync_file=False, sync_directory=False), model)
    assert (("final", NEW),) in shapes
    if model == "kill":
        assert len(shapes) == 1
