"""What a fork had to load of the standard library is loaded before the next, and nobody can tell.

``stringprep`` and the like stand for any module that nothing else here imports.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fault_injection.attempt import Attempt, Settings
from fault_injection.guardian import guarded

from .attempts import ENVIRONMENT, Remote, command, python

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs Linux: subreapers")


@pytest.fixture
def remote() -> Iterator[Remote]:
    """A worker that has forked nothing yet."""
    with guarded() as guard:
        (worker,) = guard.start_workers("tests.fault_injection.attempts:serve", 1, env=ENVIRONMENT)
        yield Remote(worker)


def forked(remote: Remote, directory: Path, source: str) -> Attempt:
    settings = Settings(str(directory), timeout_s=20, supervise=False, fork=True)
    return remote.run(python(directory, source), settings)


def said(attempt: Attempt) -> tuple[int | None, bytes, bytes]:
    return attempt.exit_code, attempt.stdout, attempt.stderr


def test_what_one_fork_loads_the_next_finds_loaded(remote: Remote, tmp_path: Path) -> None:
    source = "import sys; print('stringprep' in sys.modules); import stringprep"
    assert [said(forked(remote, tmp_path, source)) for _ in range(3)] == [
        (0, b"False\n", b""),
        (0, b"True\n", b""),
        (0, b"True\n", b""),
    ]


def test_a_fork_that_fails_tells_too_and_one_that_is_killed_does_not(
    remote: Remote, tmp_path: Path
) -> None:
    for end, known in (("os.kill(os.getpid(), 9)", b"False\n"), ("1 / 0", b"True\n")):
        source = f"""
            import os, sys
            print('stringprep' in sys.modules, flush=True)
            import stringprep
            {end}
        """
        forked(remote, tmp_path, source)
        assert forked(remote, tmp_path, source).stdout == known, end


def test_a_module_of_the_programs_own_is_never_loaded_for_it(
    remote: Remote, tmp_path: Path
) -> None:
    """Neither one that hides the library's, nor one of another name."""
    for name in ("stringprep", "its_own"):
        (tmp_path / f"{name}.py").write_text("print('loading', __name__)\n")
    source = "import stringprep, its_own"
    for _ in range(3):
        assert said(forked(remote, tmp_path, source)) == (
            0,
            b"loading stringprep\nloading its_own\n",
            b"",
        )


def test_a_module_that_finds_one_of_the_programs_own_is_not_loaded_for_it(
    remote: Remote, tmp_path: Path
) -> None:
    """Loaded by the worker, ``compileall`` would have the library's ``filecmp``."""
    (tmp_path / "filecmp.py").write_text("mine = 'its own'\n")
    source = "import sys; print('compileall' in sys.modules); import compileall as c"
    source += "; print(c.filecmp.mine)"
    for _ in range(3):
        assert said(forked(remote, tmp_path, source)) == (0, b"False\nits own\n", b"")


def test_a_program_whose_module_is_hidden_by_then_is_started_as_a_process(
    remote: Remote, tmp_path: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
    (second / "stringprep.py").write_text("mine = 'its own'\n")
    assert said(forked(remote, first, "import stringprep")) == (0, b"", b"")
    source = "import stringprep; print(stringprep.mine)"
    for _ in range(2):
        assert said(forked(remote, second, source)) == (0, b"its own\n", b"")


def test_a_module_that_was_loaded_by_hand_still_refuses_such_a_program(
    remote: Remote, tmp_path: Path
) -> None:
    """That some modules were loaded for another program is no leave to pass over the rest."""
    (tmp_path / "first").mkdir()
    forked(remote, tmp_path / "first", "import stringprep")
    (tmp_path / "dataclasses.py").touch()
    assert forked(remote, tmp_path, "pass").start_error.startswith("cannot be forked: ")


def test_a_module_that_warns_when_it_is_loaded_warns_in_every_fork(
    remote: Remote, tmp_path: Path
) -> None:
    own, *forks = (
        remote.run(
            python(tmp_path, "import sre_compile"),
            Settings(str(tmp_path), timeout_s=20, supervise=False, fork=fork),
        )
        for fork in (False, True, True, True)
    )
    assert b"DeprecationWarning: module 'sre_compile' is deprecated" in own.stderr
    assert [said(attempt) for attempt in forks] == [said(own)] * 3


def test_a_module_that_does_something_when_it_is_loaded_does_it_in_every_fork(
    remote: Remote, tmp_path: Path
) -> None:
    outputs = [forked(remote, tmp_path, "import this").stdout for _ in range(3)]
    assert outputs[0].startswith(b"The Zen of Python")
    assert len(set(outputs)) == 1


def test_the_modules_of_a_package_that_the_script_imports_count_too(
    remote: Remote, tmp_path: Path
) -> None:
    package = tmp_path / "trainer"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(
        "import sys\nprint('stringprep' in sys.modules)\nfrom . import part\n"
    )
    (package / "part.py").write_text("import stringprep\n")
    asked = command(sys.executable, "-m", "trainer", cwd=tmp_path)
    settings = Settings(str(tmp_path), timeout_s=20, supervise=False, fork=True)
    assert [remote.run(asked, settings).stdout for _ in range(2)] == [b"False\n", b"True\n"]


def test_what_a_program_writes_over_the_list_is_passed_over(remote: Remote, tmp_path: Path) -> None:
    """It is memory of the program's too."""
    source = """
        import sys
        from fault_injection import forkimports
        print('stringprep' in sys.modules)
        shared = forkimports._shared
        forkimports._shared = None  # nothing of ours comes after it
        shared[:40] = b'[["stringprep", 3], 7, "x"' .ljust(40, b"\\0")
    """
    assert [said(forked(remote, tmp_path, source)) for _ in range(2)] == [(0, b"False\n", b"")] * 2
