"""The fixture ``crash_explorer`` as its users have it: in a pytest of their own."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from fault_injection import leftovers, seccomp

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "test_settings_file.py"
needs_seccomp = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)


def run_pytest(directory: Path, *words: str) -> str:
    """The output of pytest on ``directory``, with warnings as errors; nothing may be left."""
    home = directory / "workspaces"
    home.mkdir()
    environment = {**os.environ, leftovers.ENV_HOME: str(home), "PYTHONDONTWRITEBYTECODE": "1"}
    (directory / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    options = ("-p", "no:cacheprovider", "--strict-markers", "--strict-config", "-rA", *words)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(directory)],
        capture_output=True,
        text=True,
        check=False,
        cwd=directory,
        env=environment,
        timeout=100,
    )
    assert done.stderr == ""
    assert list(home.iterdir()) == []
    return done.stdout


def write_test(directory: Path, source: str, name: str = "test_it.py") -> None:
    (directory / name).write_text(textwrap.dedent(source))


SAVES = """
import os

def save(root, text):
    with open(root / "note.tmp", "w") as file:
        file.write(text)
    os.replace(root / "note.tmp", root / "note")

def load(root):
    return (root / "note").read_text()

def test_it(crash_explorer):
    found = crash_explorer(
        setup=lambda root: save(root, "old"),
        workload=lambda root: save(root, "new"),
        check=lambda root: load(root) in ("old", "new"),
        models=MODELS,
    )
    assert found.counts["ext4"].failed == 0
"""


@needs_seccomp
def test_the_assertion_shows_the_smallest_failing_state_and_a_passing_one_is_returned(
    tmp_path: Path,
) -> None:
    write_test(tmp_path, 'MODELS = ["ext4", "xfs"]\n' + SAVES, name="test_bad.py")
    write_test(tmp_path, 'MODELS = ["ext4"]\n' + SAVES, name="test_good.py")
    said = run_pytest(tmp_path)
    assert "1 failed, 1 passed" in said
    assert "AssertionError: the check fails on crash states   ext4 0 of 4, xfs 1 of 5" in said
    assert "needs   fsync(note.tmp) between #1 write note.tmp (3 bytes at 0) and #2 rename" in said
    assert "#1 LOST      write note.tmp (3 bytes at 0)   test_bad.py:6 save()" in said
    # Only the test's own frame is shown above it, none of the plugin's.
    assert "pytest_plugin.py" not in said


@needs_seccomp
def test_the_example_under_two_workers_at_once(tmp_path: Path) -> None:
    (tmp_path / EXAMPLE.name).write_text(EXAMPLE.read_text())
    said = run_pytest(tmp_path, "-n", "2")
    assert "2 passed, 2 xfailed" in said


def test_where_nothing_can_be_supervised_it_skips_with_the_reason(tmp_path: Path) -> None:
    write_test(
        tmp_path,
        """
        from fault_injection import seccomp

        seccomp.unavailable = lambda: "this kernel knows no seccomp"
        """,
        name="conftest.py",
    )
    write_test(tmp_path, 'MODELS = ["ext4"]\n' + SAVES)
    said = run_pytest(tmp_path)
    assert "1 skipped" in said
    assert "crash states cannot be explored here: this kernel knows no seccomp" in said


def test_the_plugin_costs_a_session_nothing_until_it_is_used(tmp_path: Path) -> None:
    write_test(
        tmp_path,
        """
        import sys

        def test_it():
            assert "harness.pytest_plugin" in sys.modules
            assert not {"numpy", "torch", "msgspec", "fault_injection"} & set(sys.modules)
        """,
    )
    assert "1 passed" in run_pytest(tmp_path)
