"""Bundles: complete, relocatable, written whole; read as if they came from a stranger."""

import io
import json
import os
import shutil
import stat
import tarfile
from pathlib import Path

import pytest

from fault_injection.faults import TriggerKind
from harness import states
from harness.bundles import (
    OUTPUT_LIMIT_BYTES,
    BundledAttempt,
    bundle_name,
    read_bundle,
    write_bundle,
)
from harness.cases import Case, kill_case
from harness.errors import UsageError
from tests.harness.report_samples import (
    ACK_CASE,
    ack_violations,
    loss_violations,
    timeline,
    write_sample_bundle,
)


@pytest.fixture
def plain_tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "ckpt" / "step-000040.tmp").mkdir(parents=True)
    (tree / "ckpt" / "LATEST").write_bytes(b"step-000030\n")
    (tree / "ckpt" / "step-000040.tmp" / "model.bin").write_bytes(bytes(5000))
    return tree


@pytest.fixture
def odd_tree(plain_tree: Path) -> Path:
    """Everything that a copied tree would lose or that no text can name."""
    raw = os.fsencode(plain_tree)
    with open(raw + b"/bad-\xff-\n-name", "wb") as file:
        file.write(b"x")
    os.mkdir(raw + b"/empty")
    os.symlink("/etc/passwd", raw + b"/absolute")
    os.symlink("nowhere/..", raw + b"/dangling")
    os.link(raw + b"/ckpt/LATEST", raw + b"/zz-hard")
    os.mkfifo(raw + b"/fifo")
    os.mkdir(raw + b"/closed")
    with open(raw + b"/closed/inside", "wb"):
        pass
    os.chmod(raw + b"/closed", 0o500)
    os.chmod(raw + b"/ckpt/step-000040.tmp/model.bin", 0o444)
    return plain_tree


def shape(tree: Path) -> dict[bytes, tuple[str, int, bytes]]:
    """Name, kind, mode and content of everything below a tree; hard links by their inode."""
    found = {}
    for path, status in states._walk(tree):
        kind, content = stat.filemode(status.st_mode)[0], b""
        if stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = file.read() + b"+%d" % status.st_nlink
        elif stat.S_ISLNK(status.st_mode):
            content = os.fsencode(os.readlink(path))
        mode = 0 if kind == "l" else stat.S_IMODE(status.st_mode)
        found[os.fsencode(os.path.relpath(path, tree))] = (kind, mode, content)
    return found


def test_a_bundle_reads_back_as_it_was_written(tmp_path: Path, plain_tree: Path) -> None:
    trace = tmp_path / "recorded"
    trace.mkdir()
    (trace / "trace.json").write_text("{}")
    path = write_bundle(
        tmp_path / "out" / bundle_name(ACK_CASE),
        ACK_CASE,
        subject={"name": "my-trainer", "timeout_s": 30},
        config="adamw",
        attempts=[
            BundledAttempt(command=["python"], signal=9, stdout=b"\xff\x00", fault="SIGKILL"),
            BundledAttempt(exit_code=3, stderr=b"oops\n", timed_out=True, seconds=0.5),
        ],
        verdict="fail",
        violations=ack_violations()[:1],
        versions={"torch": "2.13.0", "python": "3.11.7"},
        tree=plain_tree,
        trace_dir=trace,
        timeline=timeline(),
    )
    bundle = read_bundle(path)
    assert bundle.case == ACK_CASE
    assert bundle.subject == {"name": "my-trainer", "timeout_s": 30}
    assert bundle.config == "adamw"
    assert bundle.attempts == (
        BundledAttempt(command=["python"], signal=9, stdout=b"\xff\x00", fault="SIGKILL"),
        BundledAttempt(exit_code=3, stderr=b"oops\n", timed_out=True, seconds=0.5),
    )
    assert bundle.verdict == "fail"
    assert list(bundle.violations) == ack_violations()[:1]
    assert bundle.versions == {"python": "3.11.7", "torch": "2.13.0"}
    assert bundle.timeline == timeline()
    assert bundle.trace == path / "trace"
    assert (path / "trace" / "trace.json").read_text() == "{}"
    assert bundle.state == path / "state"
    states.unpack(bundle.state, tmp_path / "laid-out")
    assert shape(tmp_path / "laid-out") == shape(plain_tree)
    assert sorted(p.name for p in path.iterdir()) == [
        "README.md",
        "attempts",
        "case.json",
        "state",
        "timeline.json",
        "timeline.svg",
        "timeline.txt",
        "trace",
        "verdict.json",
        "versions.json",
    ]


def test_a_bundle_can_be_moved_and_names_no_place(tmp_path: Path, plain_tree: Path) -> None:
    path = write_sample_bundle(tmp_path / "here", tree=plain_tree)
    moved = tmp_path / "there"
    shutil.move(path, moved)
    assert read_bundle(moved).case == ACK_CASE
    for file in moved.rglob("*"):
        if file.is_file():
            assert os.fsencode(tmp_path) not in file.read_bytes(), file


def test_the_readme_has_the_one_command(tmp_path: Path, plain_tree: Path) -> None:
    path = write_sample_bundle(tmp_path, tree=plain_tree)
    said = (path / "README.md").read_text()
    assert said.startswith(f"# {ACK_CASE.id}\n")
    assert f"\n    durability reproduce {bundle_name(ACK_CASE)}\n" in said
    # The command, and the same again in the block: the digest alone means nothing elsewhere.
    assert said.count("durability reproduce ") == 2
    assert said.count(f"durability reproduce {bundle_name(ACK_CASE)}\n") == 2
    assert "step 40 was acknowledged as saved" in said
    assert "`state/`" in said


def test_writing_again_replaces_the_bundle_and_a_failure_keeps_the_old(
    tmp_path: Path, plain_tree: Path
) -> None:
    path = write_sample_bundle(tmp_path, tree=plain_tree)
    write_sample_bundle(tmp_path)
    assert read_bundle(path).state is None
    with pytest.raises(FileNotFoundError):
        write_sample_bundle(tmp_path, tree=tmp_path / "missing")
    assert read_bundle(path).case == ACK_CASE
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_state_that_is_too_large_is_left_out_and_said(tmp_path: Path, plain_tree: Path) -> None:
    path = write_bundle(
        tmp_path / "b",
        ACK_CASE,
        subject={},
        attempts=[],
        verdict="fail",
        violations=[],
        versions={},
        tree=plain_tree,
        state_limit_bytes=5011,  # one byte less than it has
    )
    assert read_bundle(path).state is None
    assert "too large; `reproduce` makes it" in (path / "README.md").read_text()


def test_long_output_is_cut_in_the_middle_and_says_so(tmp_path: Path) -> None:
    output = b"begin" + b"." * (2 * OUTPUT_LIMIT_BYTES) + b"end"
    path = write_bundle(
        tmp_path / "b",
        ACK_CASE,
        subject={},
        attempts=[BundledAttempt(stdout=output)],
        verdict="fail",
        violations=[],
        versions={},
    )
    [attempt] = read_bundle(path).attempts
    cut = len(output) - OUTPUT_LIMIT_BYTES
    assert f"\n[... {cut} bytes cut ...]\n".encode() in attempt.stdout
    assert attempt.stdout.startswith(b"begin.")
    assert attempt.stdout.endswith(b".end")


def test_names_are_plain_short_and_end_in_the_digest() -> None:
    case = kill_case("s", "double", TriggerKind.CALL, "rename-a%20b#1", "write-ü/é#2")
    name = bundle_name(case)
    assert name == f"s-double@rename-a_20b.1+write-_.2-{case.digest}"
    long = Case("s" * 64, "power/posix", place="p" * 300)
    assert len(bundle_name(long)) <= 120
    assert bundle_name(long).endswith(long.digest)
    assert bundle_name(Case("s", "kill", place="x"), config="a/b").startswith("a-b-s-kill@x-")


def test_odd_trees_become_a_tar_and_come_back_exactly(tmp_path: Path, odd_tree: Path) -> None:
    packed = states.pack(odd_tree, tmp_path / "state")
    assert packed == tmp_path / "state.tar"
    assert states.packed(tmp_path / "state") == packed
    states.unpack(packed, tmp_path / "laid-out")
    assert shape(tmp_path / "laid-out") == shape(odd_tree)


def test_the_same_tree_gives_the_same_tar(tmp_path: Path, odd_tree: Path) -> None:
    """No time and no owner goes into it."""
    one = states.pack(odd_tree, tmp_path / "one").read_bytes()
    os.utime(odd_tree / "ckpt" / "LATEST", (1, 1))
    two = states.pack(odd_tree, tmp_path / "two").read_bytes()
    assert one == two


@pytest.mark.parametrize(
    "make",
    [
        lambda t: (t / "empty").mkdir(),
        lambda t: (t / "a\nb").write_text(""),
        lambda t: (t / "é").write_text(""),
        lambda t: (t / "link").symlink_to("x"),
        lambda t: os.link(t / "ckpt" / "LATEST", t / "hard"),
        lambda t: os.mkfifo(t / "fifo"),
        lambda t: (t / "ckpt" / "LATEST").chmod(0o444),
        lambda t: (t / "ckpt").chmod(0o711),
        lambda t: shutil.rmtree(t / "ckpt"),
    ],
    ids=["empty", "newline", "accent", "symlink", "hard", "fifo", "mode", "dirmode", "nothing"],
)
def test_each_reason_for_a_tar(tmp_path: Path, plain_tree: Path, make: object) -> None:
    assert states.pack(plain_tree, tmp_path / "before") == tmp_path / "before"
    assert callable(make)
    make(plain_tree)
    packed = states.pack(plain_tree, tmp_path / "state")
    assert packed == tmp_path / "state.tar"
    states.unpack(packed, tmp_path / "laid-out")
    assert shape(tmp_path / "laid-out") == shape(plain_tree)


def member(name: str, *, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o755
    return info


def hostile_tar(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as tar:
        for one in members:
            one.size = 4 if one.isreg() else 0
            tar.addfile(one, io.BytesIO(b"evil") if one.isreg() else None)
    return path


@pytest.mark.parametrize(
    "members",
    [
        [member("../escaped")],
        [member("/tmp/escaped")],
        [member("a/../../escaped")],
        [member("out", kind=tarfile.SYMTYPE, target=".."), member("out/escaped")],
        [member("out", kind=tarfile.SYMTYPE, target="/"), member("out", kind=tarfile.DIRTYPE)],
        [member("h", kind=tarfile.LNKTYPE, target="../../victim")],
        [member("h", kind=tarfile.LNKTYPE, target="/etc/passwd")],
        [member("h", kind=tarfile.LNKTYPE, target="not-there")],
        [
            member("s", kind=tarfile.SYMTYPE, target="/etc/passwd"),
            member("h", kind=tarfile.LNKTYPE, target="s"),
        ],
        [member("null", kind=tarfile.CHRTYPE)],
        [member("disk", kind=tarfile.BLKTYPE)],
        [member("a"), member("a")],
        [member("a"), member("a/b")],
        [member("missing/b")],
        [member(".")],
        [member("")],
    ],
    ids=lambda members: "+".join(m.name or "empty" for m in members),
)
def test_a_hostile_tar_is_refused_and_writes_nothing_outside(
    tmp_path: Path, members: list[tarfile.TarInfo]
) -> None:
    (tmp_path / "victim").write_text("untouched")
    state = hostile_tar(tmp_path / "state.tar", *members)
    with pytest.raises(UsageError, match=r"state\.tar"):
        states.unpack(state, tmp_path / "to" / "here")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["state.tar", "to", "victim"]
    assert [p.name for p in (tmp_path / "to").iterdir()] == ["here"]
    assert (tmp_path / "victim").read_text() == "untouched"
    assert not Path("/tmp/escaped").exists()


def test_a_damaged_tar_is_a_sentence(tmp_path: Path, odd_tree: Path) -> None:
    packed = states.pack(odd_tree, tmp_path / "state")
    whole = packed.read_bytes()
    packed.write_bytes(b"rubbish" * 1000)
    with pytest.raises(UsageError, match="is damaged"):
        states.unpack(packed, tmp_path / "a")
    packed.write_bytes(whole[: whole.index(bytes(5000)) + 1000])
    with pytest.raises(UsageError, match=r"is damaged|is shorter"):
        states.unpack(packed, tmp_path / "b")


def test_a_state_tree_with_a_link_in_it_was_not_packed_by_us(
    tmp_path: Path, plain_tree: Path
) -> None:
    packed = states.pack(plain_tree, tmp_path / "state")
    (packed / "ckpt" / "LATEST").unlink()
    (packed / "ckpt" / "LATEST").symlink_to("/etc/passwd")
    with pytest.raises(UsageError, match="neither file nor directory"):
        states.unpack(packed, tmp_path / "laid-out")


def test_a_state_is_laid_out_in_an_empty_place_only(tmp_path: Path, plain_tree: Path) -> None:
    packed = states.pack(plain_tree, tmp_path / "state")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("")
    with pytest.raises(UsageError, match="is not empty"):
        states.unpack(packed, tmp_path / "full")


def test_a_changed_case_is_found_by_its_id(tmp_path: Path) -> None:
    path = write_sample_bundle(tmp_path)
    stored = json.loads((path / "case.json").read_text())
    stored["case"]["place"] = "elsewhere"
    (path / "case.json").write_text(json.dumps(stored))
    with pytest.raises(UsageError, match=r"case\.json was changed: it says"):
        read_bundle(path)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("case.json", b"", "case.json does not hold"),
        ("case.json", b'{"subject":{"a":' + b"[" * 100_000, "case.json does not hold"),
        ("verdict.json", b'{"verdict": 3}', "verdict.json does not hold"),
        ("versions.json", b"\xff", "versions.json does not hold"),
        ("timeline.json", b"[]", "timeline.json does not hold"),
        ("attempts/2/attempt.json", b"null", "attempt.json does not hold"),
        ("attempts/1/stdout", b"x" * (OUTPUT_LIMIT_BYTES + 5000), "more than 1,052,672"),
        ("case.json", None, "case.json cannot be read: No such file"),
        ("attempts/1/stderr", None, "stderr cannot be read: No such file"),
    ],
)
def test_a_damaged_bundle_is_named_by_file(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    path = write_sample_bundle(tmp_path)
    if content is None:
        (path / name).unlink()
    else:
        (path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        read_bundle(path)


def test_links_and_fifos_in_a_bundle_are_not_opened(tmp_path: Path) -> None:
    path = write_sample_bundle(tmp_path)
    (path / "case.json").rename(tmp_path / "elsewhere.json")
    (path / "case.json").symlink_to(tmp_path / "elsewhere.json")
    with pytest.raises(UsageError, match=r"case\.json cannot be read: Too many levels"):
        read_bundle(path)
    (path / "case.json").unlink()
    os.mkfifo(path / "case.json")
    with pytest.raises(UsageError, match=r"case\.json is not a regular file"):
        read_bundle(path)
    with pytest.raises(UsageError, match="is not a bundle"):
        read_bundle(path / "case.json")


def test_another_format_is_refused(tmp_path: Path) -> None:
    path = write_sample_bundle(tmp_path)
    text = (path / "case.json").read_text().replace("durability-bundle/1", "durability-bundle/2")
    (path / "case.json").write_text(text)
    with pytest.raises(UsageError, match="format 'durability-bundle/2' is not"):
        read_bundle(path)


def test_a_case_with_faults_and_names_of_any_byte_comes_back(tmp_path: Path) -> None:
    name = b"w\xff".decode("utf-8", "surrogateescape")
    case = kill_case("sgd", "double", TriggerKind.CALL, "rename-LATEST#2", "unlink-a#1")
    path = write_bundle(
        tmp_path / "b",
        case,
        subject={"name": "s", "env": {"A": name}},
        attempts=[BundledAttempt(command=["python", name], evidence=name)],
        verdict="fail",
        violations=loss_violations(),
        versions={},
    )
    bundle = read_bundle(path)
    assert bundle.case == case
    assert bundle.subject["env"] == {"A": "w\\xff"}
    assert bundle.attempts[0].command == ["python", "w\\xff"]
