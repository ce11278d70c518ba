"""The list of damages is complete and stable, and each does what it says and nothing else."""

import json
import os
import shutil
import stat
from pathlib import Path

import pytest

from fault_injection import rubbish
from fault_injection.corruption import Damage, damages, find
from fault_injection.damaging import DamageError, apply
from fault_injection.fingerprint import destroyed, fingerprint
from fault_injection.rubbish import Content


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Two steps with a pointer, as checkpoints lie on a disk; a name that is not UTF-8."""
    tree = tmp_path / "tree"
    for step, fill in (("step-1", b"a"), ("step-2", b"b")):
        (tree / step).mkdir(parents=True)
        (tree / step / "state.json").write_bytes(b'{"step": "' + fill + b'"}')
        (tree / step / "weights").write_bytes(fill * 9000)
    (tree / "LATEST").write_bytes(b"step-2\n")
    Path(os.fsdecode(os.fsencode(tree) + b"/odd\xff name")).write_bytes(b"z")
    return tree


def _copy(root: Path) -> Path:
    copy = root.parent / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(root, copy)
    return copy


def _all(root: Path, **more: object) -> tuple[Damage, ...]:
    return damages(str(root), pointers=["LATEST"], unreadable=False, **more)  # type: ignore[arg-type]


def test_the_list_for_a_file_is_this(root: Path) -> None:
    places = [damage.place for damage in _all(root)]
    assert [p for p in places if p.endswith(",step-2/weights")] == [
        "flip-first,step-2/weights",
        "flip-7,step-2/weights",
        "flip-8,step-2/weights",
        "flip-middle,step-2/weights",
        "flip-last,step-2/weights",
        "cut-0,step-2/weights",
        "cut-half,step-2/weights",
        "cut-last-byte,step-2/weights",
        "zero-page-first,step-2/weights",
        "zero-page-middle,step-2/weights",
        "zero-page-last,step-2/weights",
        "remove,step-2/weights",
        "replace-directory,step-2/weights",
        "replace-fifo,step-2/weights",
        "replace-symlink-to-itself,step-2/weights",
        "replace-symlink-dangling,step-2/weights",
        "replace-symlink-outside,step-2/weights",
        "foreign-step-1,step-2/weights",
    ]
    assert [p for p in places if p.endswith(",odd%ff%20name")] == [
        "flip-first,odd%ff%20name",
        "cut-0,odd%ff%20name",
        "zero-page-first,odd%ff%20name",
        "remove,odd%ff%20name",
        "replace-directory,odd%ff%20name",
        "replace-fifo,odd%ff%20name",
        "replace-symlink-to-itself,odd%ff%20name",
        "replace-symlink-dangling,odd%ff%20name",
        "replace-symlink-outside,odd%ff%20name",
    ]
    assert [p for p in places if p.endswith(",step-1") or p.startswith("extra")] == [
        "extra,extra.bin",
        "extra,step-1/extra.bin",
        "empty-files,step-1",
        "remove-files,step-1",
        "remove,step-1",
        "replace-file,step-1",
        "replace-symlink-to-itself,step-1",
        "replace-symlink-outside,step-1",
        "extra,step-2/extra.bin",
    ]
    assert [p for p in places if p.startswith("swap")] == [
        "swap-odd%ff%20name,LATEST",
        "swap-weights,step-1/state.json",
        "swap-weights,step-2/state.json",
    ]


def test_the_list_is_the_same_every_time_and_changes_nothing(root: Path) -> None:
    before = fingerprint(str(root))
    assert _all(root) == _all(_copy(root))
    assert fingerprint(str(root)) == before


def test_every_damage_hurts_what_it_says_and_nothing_else(root: Path) -> None:
    before = fingerprint(str(root))
    outside = root.parent / "outside"
    listed = _all(root)
    assert len(listed) == 177
    for damage in listed:
        if "1-gib" in damage.label:
            continue  # has a test of its own: to read it twice takes seconds
        shutil.rmtree(outside, ignore_errors=True)
        outside.mkdir()
        copy = _copy(root)
        apply(damage, str(copy), outside=str(outside))
        after = fingerprint(str(copy))
        assert after != before or damage.place.startswith("replace-symlink-outside"), damage.place
        hurt = {line.rsplit(" ", 2)[0] for line in destroyed(before, after)}
        allowed = {p for p in before if any(p == h or p.startswith(h + "/") for h in damage.hurts)}
        assert hurt <= allowed, damage.place
        assert hurt or damage.kind == "extra", damage.place
        without = fingerprint(str(copy), without=damage.hurts)
        assert without == fingerprint(str(root), without=damage.hurts), damage.place


def test_what_a_flip_a_cut_and_a_zeroed_page_leave(root: Path) -> None:
    weights = root / "step-2" / "weights"
    listed = _all(root)
    apply(find(listed, "flip-middle,step-2/weights"), str(root))
    assert weights.read_bytes() == b"b" * 4500 + b"c" + b"b" * 4499
    apply(find(listed, "zero-page-last,step-2/weights"), str(root))
    assert weights.read_bytes() == b"b" * 4500 + b"c" + b"b" * 3691 + bytes(808)
    apply(find(listed, "cut-half,step-2/weights"), str(root))
    assert weights.read_bytes() == b"b" * 4500
    apply(find(listed, "foreign-step-1,step-2/weights"), str(root))
    assert weights.read_bytes() == b"a" * 9000
    apply(find(listed, "swap-weights,step-2/state.json"), str(root))
    assert weights.read_bytes() == b'{"step": "b"}'


def test_what_takes_a_files_place(root: Path, tmp_path: Path) -> None:
    listed, latest = _all(root), root / "LATEST"
    (tmp_path / "outside").mkdir()
    apply(find(listed, "replace-symlink-outside,LATEST"), str(root), outside=f"{tmp_path}/outside")
    assert os.readlink(latest) == f"{tmp_path}/outside/LATEST"
    assert latest.read_bytes() == b"step-2\n"
    apply(find(listed, "replace-symlink-to-itself,LATEST"), str(root))
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        latest.read_bytes()
    apply(find(listed, "replace-fifo,LATEST"), str(root))
    assert stat.S_ISFIFO(latest.stat().st_mode)
    assert fingerprint(str(root))["LATEST"] == "special"
    apply(find(listed, "replace-directory,LATEST"), str(root))
    assert latest.is_dir()


POINTER_NONSENSE = {
    "empty": b"",
    "newline": b"\n",
    "no-newline": b"step-2",
    "crlf": b"step-2\r\n",
    "bom": b"\xef\xbb\xbfstep-2\n",
    "4096-nuls": bytes(4096),
    "parent": b"../other/step-2\n",
    "slash-after": b"step-2/\n",
    "missing-target": b"step-29\n",
    "other-digits": "step-٣٠\n".encode(),
}


@pytest.mark.parametrize("label", POINTER_NONSENSE)
def test_the_nonsense_that_pointers_are_given(root: Path, label: str) -> None:
    apply(find(_all(root), f"pointer-{label},LATEST"), str(root))
    assert (root / "LATEST").read_bytes() == POINTER_NONSENSE[label]


def test_an_absolute_pointer_leads_into_the_tree_that_was_hurt(root: Path) -> None:
    listed = _all(root)
    copy = _copy(root)
    apply(find(listed, "pointer-absolute,LATEST"), str(copy))
    assert (copy / "LATEST").read_bytes() == os.fsencode(copy.resolve()) + b"/step-2\n"


def test_a_pointer_of_one_gib_takes_no_room(root: Path) -> None:
    apply(find(_all(root), "pointer-1-gib,LATEST"), str(root))
    status = (root / "LATEST").stat()
    assert (status.st_size, status.st_blocks * 512 < 1 << 20) == (1 << 30, True)


def test_json_loses_each_of_its_keys_in_turn(root: Path) -> None:
    (root / "step-1" / "state.json").write_bytes(b'{"step": 7, "cursor": null}')
    listed = _all(root)
    places = [damage.place for damage in listed if damage.path == "step-1/state.json"]
    # cursor is null already, so to make it null would be no damage.
    assert [p.split(",")[0] for p in places if "-without-" in p or "-null-" in p] == [
        "json-without-cursor",
        "json-without-step",
        "json-null-step",
    ]
    apply(find(listed, "json-without-cursor,step-1/state.json"), str(root))
    assert json.loads((root / "step-1" / "state.json").read_bytes()) == {"step": 7}


def test_the_caller_gives_contents_of_its_own_format(root: Path) -> None:
    names = rubbish.hostile_names("weights")
    wanted = [Content(label, json.dumps({"files": [name]}).encode()) for label, name in names]
    listed = _all(root, contents={"step-1/state.json": wanted})
    damage = find(listed, "write-parent,step-1/state.json")
    apply(damage, str(root))
    assert (root / "step-1" / "state.json").read_bytes() == b'{"files": ["../weights"]}'
    assert damage.describe() == "write parent: step-1/state.json"
    assert len({name for _, name in names}) == len(names) == 22


def test_permissions_are_taken_from_a_plain_user_only(root: Path) -> None:
    as_user = damages(str(root), unreadable=True)
    assert find(as_user, "replace-unreadable,LATEST").hurts == ("LATEST",)
    by_default = [d.place for d in damages(str(root)) if d.label == "unreadable"]
    assert by_default == (
        [] if os.geteuid() == 0 else [d.place for d in as_user if d.label == "unreadable"]
    )


def test_a_damage_that_changes_nothing_is_an_error(root: Path) -> None:
    listed = _all(root)
    (root / "LATEST").write_bytes(b"")
    with pytest.raises(DamageError, match="cut 0: LATEST: it changed nothing"):
        apply(find(listed, "cut-0,LATEST"), str(root))
    with pytest.raises(DamageError, match="flip first: LATEST: the file has no byte 0"):
        apply(find(listed, "flip-first,LATEST"), str(root))
    (root / "LATEST").unlink()
    with pytest.raises(DamageError, match=r"remove: LATEST: .*No such file"):
        apply(find(listed, "remove,LATEST"), str(root))


def test_a_link_out_of_the_tree_needs_a_place_out_of_the_tree(root: Path) -> None:
    damage = find(_all(root), "replace-symlink-outside,LATEST")
    for outside in ("", str(root), str(root / "step-1")):
        with pytest.raises(DamageError, match="needs a directory outside of the tree"):
            apply(damage, str(root), outside=outside)
    assert (root / "LATEST").read_bytes() == b"step-2\n"


def test_an_unknown_place_is_an_error(root: Path) -> None:
    with pytest.raises(ValueError, match="no damage 'flip-9,x' among the 177"):
        find(_all(root), "flip-9,x")


def test_what_was_destroyed_is_said_and_what_was_added_is_not(root: Path) -> None:
    before = fingerprint(str(root))
    (root / "step-1" / "weights").unlink()
    (root / "step-2" / "weights").write_bytes(b"other")
    (root / "new").write_bytes(b"new")
    assert destroyed(before, fingerprint(str(root))) == (
        "step-1/weights is gone",
        "step-2/weights has changed",
    )
    without = fingerprint(str(root), without=["step-1", "step-2/weights"])
    assert sorted(without) == [
        "LATEST",
        "new",
        os.fsdecode(b"odd\xff name"),
        "step-2",
        "step-2/state.json",
    ]
