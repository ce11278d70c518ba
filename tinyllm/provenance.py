"""Which commit of this code is running: the ``git_sha`` of a checkpoint.

``TINYLLM_GIT_SHA`` says it where there is no checkout, as in a container image. Otherwise, when the
package lies in a git checkout, it is read from git's own files, without starting git: HEAD, the
branch that it names, and the packed branches; work trees too. Anywhere else it is None. Uncommitted
changes are not seen.
"""

import os
import re
from pathlib import Path

ENV_GIT_SHA = "TINYLLM_GIT_SHA"
FILE_LIMIT_BYTES = 16 << 20  # packed-refs of a large repository has a few megabytes
_SHA = re.compile(r"[0-9a-f]{40}([0-9a-f]{24})?")


def git_sha() -> str | None:
    """40 or 64 hex digits, or None."""
    given = os.environ.get(ENV_GIT_SHA)
    if given is not None:
        return given if _SHA.fullmatch(given) else None
    return checkout_sha(Path(__file__).resolve().parent.parent)


def checkout_sha(root: Path) -> str | None:
    """The commit that is checked out at ``root``; None when that is not a checkout's root."""
    git_dir = root / ".git"
    if git_dir.is_file():
        pointer = _read(git_dir).removeprefix("gitdir:").strip()
        git_dir = root / pointer
    head = _read(git_dir / "HEAD").strip()
    if not head.startswith("ref:"):
        return head if _SHA.fullmatch(head) else None
    branch = head.removeprefix("ref:").strip()
    common = _read(git_dir / "commondir").strip()
    for directory in [git_dir, git_dir / common] if common else [git_dir]:
        sha = _read(directory / branch).strip()
        if _SHA.fullmatch(sha):
            return sha
        for line in _read(directory / "packed-refs").splitlines():
            sha, _, name = line.partition(" ")
            if name == branch and _SHA.fullmatch(sha):
                return sha
    return None


def _read(path: Path) -> str:
    """The text of a file, empty when there is none."""
    try:
        with path.open("rb") as file:
            return file.read(FILE_LIMIT_BYTES).decode("utf-8", "replace")
    except (OSError, ValueError):
        return ""
