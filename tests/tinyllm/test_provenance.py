"""The commit is read from git's own files."""

import subprocess
from pathlib import Path

import pytest

from tinyllm.provenance import checkout_sha, git_sha

SHA = "0123456789abcdef0123456789abcdef01234567"
OTHER = "f" * 40


def _git(root: Path, **files: str) -> Path:
    for name, content in files.items():
        path = root / ".git" / name.replace("__", "/").replace("_", "-")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_a_branch(tmp_path: Path) -> None:
    _git(tmp_path, HEAD="ref: refs/heads/main\n", refs__heads__main=f"{SHA}\n")
    assert checkout_sha(tmp_path) == SHA


def test_a_packed_branch(tmp_path: Path) -> None:
    packed = (
        f"# pack-refs with: peeled\n{OTHER} refs/heads/other\n{SHA} refs/heads/main\n^{OTHER}\n"
    )
    _git(tmp_path, HEAD="ref: refs/heads/main\n", packed_refs=packed)
    assert checkout_sha(tmp_path) == SHA


def test_a_detached_head(tmp_path: Path) -> None:
    assert checkout_sha(_git(tmp_path, HEAD=f"{SHA}\n")) == SHA


def test_a_work_tree(tmp_path: Path) -> None:
    main = _git(tmp_path / "main", HEAD="ref: refs/heads/main\n", refs__heads__side=SHA)
    private = main / ".git/worktrees/side"
    private.mkdir(parents=True)
    (private / "HEAD").write_text("ref: refs/heads/side\n")
    (private / "commondir").write_text("../..\n")
    side = tmp_path / "side"
    side.mkdir()
    (side / ".git").write_text(f"gitdir: {private}\n")
    assert checkout_sha(side) == SHA


@pytest.mark.parametrize("head", ["", "ref: refs/heads/unborn\n", "nonsense", f"{SHA}0"])
def test_no_commit(tmp_path: Path, head: str) -> None:
    assert checkout_sha(_git(tmp_path, HEAD=head)) is None


def test_no_checkout(tmp_path: Path) -> None:
    assert checkout_sha(tmp_path) is None


def test_git_agrees(tmp_path: Path) -> None:
    """With a real repository, before and after it packs its branches."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for argv in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *argv], check=True)
    said = subprocess.run(
        [*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=True
    ).stdout.strip()
    assert checkout_sha(tmp_path) == said
    subprocess.run([*git, "pack-refs", "--all"], check=True)
    assert checkout_sha(tmp_path) == said


def test_the_environment_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TINYLLM_GIT_SHA", SHA)
    assert git_sha() == SHA
    monkeypatch.setenv("TINYLLM_GIT_SHA", "")
    assert git_sha() is None
