"""The command line: what needs torch and what does not, and how it fails."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.tinyllm import runs

WATCHED = ("torch", "numpy", "tokenizers", "msgspec")


def _modules_after(*argv: str) -> set[str]:
    """Which of the watched modules a command has loaded when it ends."""
    program = (
        "import sys\nfrom tinyllm.cli import main\n"
        f"try:\n    main({list(argv)!r})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {WATCHED!r} if name in sys.modules])\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    loaded = ended.stdout.splitlines()[-1]
    return {name for name in WATCHED if repr(name) in loaded}


@pytest.mark.parametrize(
    "argv", [["--help"], ["train", "--help"], ["verify", "."], ["runs", "--artifacts", "."]]
)
def test_what_needs_no_torch_does_not_load_it(argv: list[str]) -> None:
    """msgspec is loaded by all of them, which shows that the probe sees what is there."""
    assert _modules_after(*argv) == {"msgspec"}


def test_python_m_and_the_exit_codes_of_usage() -> None:
    for argv, says in [
        ([], "the following arguments are required: COMMAND"),
        (["train", "spec.json"], "the following arguments are required: --run-id"),
        (["train", "spec.json", "--run", "x"], "the following arguments are required: --run-id"),
    ]:
        ended = subprocess.run(
            [sys.executable, "-m", "tinyllm", *argv],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (ended.returncode, says in ended.stderr) == (2, True), ended.stderr


def test_an_error_of_a_call_is_a_sentence_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("in the way")
    ended = runs.train(tmp_path, "adamw")
    assert (ended.code, "Traceback" in ended.stderr) == (5, False)
    assert f"{tmp_path}/runs" in ended.stderr


def test_what_a_fork_server_imports(tmp_path: Path) -> None:
    """PRELOAD starts no thread, makes no file and sets no handler, and leaves a run almost nothing
    to import: a fork of a process that has it must not spend its time on that."""
    program = (
        "import importlib, os, signal, sys, threading, tinyllm\n"
        "for name in tinyllm.PRELOAD:\n    importlib.import_module(name)\n"
        "import tinyllm.cli\n"
        "print(threading.active_count(), len(os.listdir('.')),\n"
        "      signal.getsignal(signal.SIGTERM) == signal.SIG_DFL)\n"
        "before = set(sys.modules)\n"
        f"spec = {str(runs.SMOKE / 'file-tokenizer.json')!r}\n"
        "tinyllm.cli.main(['train', spec, '--run-id', 'r', '--artifacts', '.'])\n"
        "print(sorted(set(sys.modules) - before))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    effects, new = ended.stdout.splitlines()
    assert effects.split() == ["1", "0", "True"]
    assert new.count("'") // 2 <= 3, new
