"""A recorded call of a Python program knows its line."""

import os
import sys
import types
from pathlib import Path

import pytest

from fault_injection import pylayout, pylines
from fault_injection.pylines import location_of
from fault_injection.pystack import StackReader
from tests.fault_injection.recorded import record


def test_the_line_and_the_function_that_made_the_call(tmp_path: Path) -> None:
    run = record(
        tmp_path,
        """import json, os, threading
class Trainer:
    def save(self):
        with open("f.tmp", "w") as f:
            json.dump({"a": [1,
                             2]}, f)
            f.flush()
            os.fsync(
                f.fileno()
            )

        os.rename("f.tmp", "f")
Trainer().save()
os.mkdir("d")
def in_thread():
    (lambda: os.mkdir("t"))()
thread = threading.Thread(target=in_thread)
thread.start(); thread.join()
if os.fork() == 0:
    os.rmdir("t")
    os._exit(0)
os.wait()
print("saved", flush=True)
""",
    )
    sites = [(op.place, op.site) for op in run.trace.operations]
    assert sites[:6] == [
        ("create-f.tmp#1", "program.py:4 Trainer.save()"),
        ("write-f.tmp#1", "program.py:7 Trainer.save()"),
        ("fsync-f.tmp#1", "program.py:8 Trainer.save()"),
        ("rename-f#1", "program.py:12 Trainer.save()"),
        ("mkdir-d#1", "program.py:14"),
        ("mkdir-t#1", "program.py:16 in_thread.<locals>.<lambda>()"),
    ]
    assert sites[6] == ("rmdir-t#1", "program.py:20")
    assert {site for place, site in sites[7:]} == {"program.py:23"}


def test_a_helper_is_told_with_its_caller(tmp_path: Path) -> None:
    """The helper's line is the same for all that call it: which of them did?"""
    (tmp_path / "helper.py").write_text("import os\ndef make(name):\n    os.mkdir(name)\n")
    (tmp_path / "trainer.py").write_text(
        "import helper\ndef first():\n    helper.make('a')\nfirst()\nhelper.make('b')\n"
    )
    program = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import trainer"
    run = record(tmp_path, program)
    made = [op.site for op in run.trace.operations if op.place.startswith("mkdir")]
    assert made == [
        "helper.py:3 make() from trainer.py:3 first()",
        "helper.py:3 make() from trainer.py:5",
    ]


def test_a_program_that_is_not_ours_has_no_sites(tmp_path: Path) -> None:
    run = record(tmp_path, program="/bin/sh", args=("-c", "true"), check=False)
    run = record(
        tmp_path,
        "import os; os.execv('/bin/mkdir', ['mkdir', 'd'])",
    )
    assert [op.site for op in run.trace.operations] == [""]


def test_no_layout_no_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter whose structures are not understood costs the sites, and nothing else."""
    pylayout.layout.cache_clear()
    monkeypatch.setattr(pylayout, "CODE_BYTES", 64)
    try:
        run = record(tmp_path, "import os; os.mkdir('d')")
        assert [op.site for op in run.trace.operations] == [""]
    finally:
        pylayout.layout.cache_clear()


def test_a_layout_that_reads_a_known_stack_wrong_is_not_believed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def wrong(*_: object) -> list[tuple[str, str, int]]:
        return [("elsewhere.py", "f", 1)] * 3

    pylayout.layout.cache_clear()
    monkeypatch.setattr(StackReader, "frames", wrong)
    try:
        assert pylayout.layout() is None
    finally:
        pylayout.layout.cache_clear()


def test_this_interpreter_is_understood() -> None:
    """Should a new version of Python fail here, sites are missing from reports under it."""
    assert pylayout.layout() is not None


@pytest.mark.parametrize("module", ["json.decoder", "textwrap"])
def test_lines_are_those_that_the_interpreter_reads(module: str) -> None:
    """The location tables of whole modules, every instruction."""
    __import__(module)
    path = sys.modules[module].__file__
    assert path is not None
    codes = [compile(Path(path).read_text(), os.path.basename(path), "exec")]
    checked = 0
    while codes:
        code = codes.pop()
        codes += [const for const in code.co_consts if isinstance(const, types.CodeType)]
        for number, (line, _, column, _) in enumerate(code.co_positions()):
            if line is not None:
                found = location_of(code.co_linetable, code.co_firstlineno, 2 * number)
                assert found == (line, -1 if column is None else column)
                checked += 1
    assert checked > 500


def test_a_table_that_ends_early_gives_the_last_line() -> None:
    assert location_of(b"", 7, 0) == (7, -1)
    assert location_of(bytes([0x80 | pylines._NO_COLUMN << 3, 4]), 7, 0) == (9, -1)
    assert location_of(bytes([0x80 | pylines._NO_COLUMN << 3, 5]), 7, 100) == (5, -1)
