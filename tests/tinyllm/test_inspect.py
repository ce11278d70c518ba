"""``verify`` and ``runs`` say what is there, change nothing, and do not load torch."""

import errno
import json
import os
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import find, flip, in_child, make_ckpt, save, tree
from tinyllm.cli import main

PLAIN_USER = 65534


@pytest.fixture
def artifacts(tmp_path: Path) -> Path:
    """Two runs: one good, one with a damaged step, leftovers and strays."""
    save(make_ckpt(tmp_path, "good"), 4, 8)
    bad = make_ckpt(tmp_path, "worse")
    save(bad, 4, 8, 12)
    flip(bad / "step-000012" / "config.json", 1)
    (bad / "step-000016.tmp").mkdir()
    (bad / "step-old").mkdir()
    (tmp_path / "runs" / "empty").mkdir()
    return tmp_path


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    """The exit code and what was printed."""
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out + captured.err


def test_verify_a_good_step(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    step_dir = artifacts / "runs/good/ckpt/step-000008"
    code, text = run(capsys, "verify", f"{step_dir}/")
    assert code == 0
    assert text.startswith(f"{step_dir}: verifies, 6 files, ")
    code, text = run(capsys, "verify", step_dir, "--json")
    (row,) = json.loads(text)
    assert (code, row["verifies"], row["kind"], row["step"]) == (0, True, "checkpoint", 8)
    assert row["problems"] == []


def test_verify_names_file_hash_and_expectation(
    artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_dir = artifacts / "runs/worse/ckpt/step-000012"
    code, text = run(capsys, "verify", step_dir)
    assert code == 1
    first, second = text.splitlines()
    assert first.startswith(f"{step_dir}: DOES NOT VERIFY")
    assert second.startswith("  config.json: sha256 is ")
    assert ", the manifest says " in second


@pytest.mark.parametrize("place", ["runs/worse", "runs/worse/ckpt"])
def test_verify_walks_a_run(
    artifacts: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, "verify", artifacts / place, "--json")
    assert code == 1
    assert [(row["step"], row["verifies"]) for row in json.loads(text)] == [
        (4, True),
        (8, True),
        (12, False),
    ]


def test_what_is_not_there_differs_from_what_is_damaged(
    artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = run(capsys, "verify", artifacts / "absent")
    assert (code, "there is no such directory" in text) == (2, True)
    code, text = run(capsys, "runs", "absent", "--artifacts", artifacts)
    assert (code, "there is no such run" in text) == (2, True)
    code, text = run(capsys, "runs", "../x", "--artifacts", artifacts)
    assert (code, "run id" in text) == (2, True)
    code, text = run(capsys, "runs", "--artifacts", artifacts / "absent")
    assert code == 2
    code, text = run(capsys, "verify", artifacts / "runs" / "empty")
    assert (code, "MANIFEST.json: is missing" in text) == (1, True)


def test_runs_lists_everything(artifacts: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = run(capsys, "runs", "--artifacts", artifacts, "--json")
    assert code == 1
    rows = {row["run_id"]: row for row in json.loads(text)}
    assert sorted(rows) == ["empty", "good", "worse"]
    good, worse, empty = rows["good"], rows["worse"], rows["empty"]
    assert (good["latest"], good["latest_problem"], good["resumes_from"]) == (
        "step-000008",
        "",
        "step-000008",
    )
    assert (worse["latest"], worse["latest_problem"], worse["resumes_from"]) == (
        "step-000012",
        "does not verify",
        "step-000008",
    )
    assert (worse["leftovers"], worse["strays"]) == (["step-000016.tmp"], ["step-old"])
    assert (empty["latest"], empty["steps"], empty["problem"]) == (None, [], "")
    assert good["disk_bytes"] > sum(step["size_bytes"] for step in good["steps"])
    code, text = run(capsys, "runs", "--artifacts", artifacts, "good")
    assert code == 0
    assert "LATEST       step-000008\n  resumes from step-000008\n" in text
    code, text = run(capsys, "runs", "--artifacts", artifacts)
    assert "  step-000016.tmp: left by a crash, the next save removes it\n" in text
    assert "  step-old: not ours" in text


@pytest.mark.parametrize("pointer", [None, "step-000008\n", "step-000099\n", "rubbish", "link"])
@pytest.mark.parametrize("damaged", [(), (12,), (8, 12), (4, 8, 12)])
def test_runs_says_what_resume_would_take(
    tmp_path: Path, pointer: str | None, damaged: tuple[int, ...]
) -> None:
    from tinyllm.inspect import list_runs

    ckpt = make_ckpt(tmp_path)
    save(ckpt, 4, 8, 12)
    for step in damaged:
        flip(ckpt / f"step-{step:06d}" / "config.json", 1)
    (ckpt / "LATEST").unlink()
    if pointer == "link":
        (ckpt / "LATEST").symlink_to("LATEST")
    elif pointer is not None:
        (ckpt / "LATEST").write_text(pointer)
    (row,) = list_runs(tmp_path)
    checkpoint = find(ckpt).checkpoint
    assert row.resumes_from == (checkpoint.path.name if checkpoint else None)


def test_a_tree_that_cannot_be_written_is_read_and_stays_as_it_is(
    artifacts: Path, request: pytest.FixtureRequest
) -> None:
    """As a plain user, on mode 0555: nothing of ours may want to write there."""
    entries = [artifacts, *artifacts.rglob("*")]
    for above in artifacts.parents:
        mode = above.stat().st_mode
        if not mode & 0o001 and above.owner() == artifacts.owner():
            above.chmod(mode | 0o055)
            request.addfinalizer(partial(above.chmod, mode))
    for path in entries:
        request.addfinalizer(partial(path.chmod, 0o755))
        path.chmod(0o555 if path.is_dir() else 0o444)
    before = tree(artifacts)

    def looking() -> None:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setgid(PLAIN_USER)
            os.setuid(PLAIN_USER)
        with pytest.raises(PermissionError):
            (artifacts / "new").touch()
        assert main(["runs", "--artifacts", str(artifacts)]) == 1
        assert main(["runs", "--artifacts", str(artifacts), "good"]) == 0
        assert main(["verify", str(artifacts / "runs/good/ckpt")]) == 0

    assert in_child(looking) == 0
    assert tree(artifacts) == before


def test_torch_is_not_loaded(artifacts: Path) -> None:
    program = (
        "import sys; from tinyllm.cli import main\n"
        "main(['runs', '--artifacts', sys.argv[1]]); main(['verify', sys.argv[1] + '/runs/good'])\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(artifacts)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.splitlines()[-1] == "False"


def test_looking_while_a_run_saves_never_says_damaged(tmp_path: Path) -> None:
    """Retention takes directories away under the reader's eyes."""
    from tinyllm.inspect import verify_below

    ckpt = make_ckpt(tmp_path)
    save(ckpt, 4, 8)

    def saving() -> None:
        save(ckpt, *range(12, 200, 4), keep=1)

    pid = os.fork()
    if pid == 0:
        try:
            saving()
        finally:
            os._exit(0)
    seen = set()
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        for verdict in verify_below(ckpt):
            seen |= {problem.reason for problem in verdict.problems}
    assert seen <= {"was removed while it was being read", "is missing"}
    assert checkpoints.found_step(ckpt) == 196


def test_a_link_to_a_step_given_by_hand_is_followed(
    artifacts: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a user types is the user's word; what stands in ckpt/ is not."""
    (artifacts / "here").symlink_to("runs/good/ckpt/step-000008")
    assert run(capsys, "verify", artifacts / "here")[0] == 0
    shutil.copytree(artifacts / "runs/good/ckpt/step-000008", artifacts / "copy")
    assert run(capsys, "verify", artifacts / "copy")[0] == 0


def test_a_run_that_may_not_be_read_is_named_and_the_others_are_listed(
    artifacts: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real_open = os.open

    def refusing(path: str, *rest: object, **more: object) -> int:
        if str(path).endswith("good/ckpt"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return real_open(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", refusing)
    code, text = run(capsys, "runs", "--artifacts", artifacts)
    assert code == 1
    assert "good/ckpt: cannot open the directory: Permission denied (EACCES)" in text
    assert "  resumes from step-000008\n" in text
