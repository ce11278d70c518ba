"""The programs under test are what their table says, whatever the harness makes of them.

A table that is wrong would judge the harness wrongly. What is proved here needs no harness: each
program is listed once, does the same work each time, and is not harmed by a resume that finds it
done.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from harness.subjects import load_subject
from tests.mutants.programs import catalogue

PROGRAMS = catalogue.load()
EXAMPLES = Path(__file__).resolve().parents[2] / "smoke_configs" / "subjects"
INVARIANTS = {
    "ack-after-durable",
    "never-mixed",
    "no-lost-ack",
    "no-silent-restart",
    "resumable",
    "same-final",
    "same-losses",
}
LIMIT_S = 60.0


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("build")
    if catalogue.compiler() is not None:
        catalogue.build(directory)
    return directory


def names(*kinds: str) -> list[str]:
    return [name for name, program in PROGRAMS.items() if program.kind in kinds]


def run(name: str, root: Path, build: Path) -> str:
    """Run to the end; its output. ``root`` is made when it is not there."""
    if "{build}" in PROGRAMS[name].train[0] and catalogue.compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) is on the PATH")
    root.mkdir(exist_ok=True)
    command = PROGRAMS[name].command(root=root, build=build)
    if command[0] == "python":
        command[0] = sys.executable
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(
        command,
        cwd=catalogue.HERE,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert finished.stderr == ""
    return finished.stdout


def matches(name: str, key: str, output: str, root: Path) -> list[tuple[str, ...]]:
    """What a pattern of the program finds, line by line, in the order of the lines."""
    pattern = getattr(PROGRAMS[name], key)
    if pattern is None:
        return []
    text = output if pattern["from"] == "stdout" else (root / pattern["from"]).read_text()
    found = (re.search(pattern["pattern"], line) for line in text.splitlines())
    return [match.groups() for match in found if match]


def final_files(name: str, root: Path) -> dict[str, bytes]:
    found = [p for glob in PROGRAMS[name].final for p in sorted(root.glob(glob))]
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


@pytest.fixture(autouse=True)
def monitors_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """One program leaves a child behind on purpose: end it, known by its environment."""
    monkeypatch.setenv("PROGRAM_UNDER_TEST", str(tmp_path))
    yield
    for process in psutil.process_iter(["name"]):
        if process.info["name"] != "sleep":
            continue
        try:
            if process.environ().get("PROGRAM_UNDER_TEST") == str(tmp_path):
                process.kill()
                process.wait(LIMIT_S)
        except psutil.Error:
            continue


def test_each_source_is_in_the_table_and_each_entry_has_a_source() -> None:
    helpers = {"toy.py", "catalogue.py"}
    sources = {p.name for p in catalogue.HERE.iterdir() if p.suffix in (".py", ".c", ".sh")}
    assert {program.source.name for program in PROGRAMS.values()} == sources - helpers


def test_the_table_claims_only_invariants_that_exist() -> None:
    claimed = {i for p in PROGRAMS.values() for cell in p.expect.values() for i in cell}
    assert claimed <= INVARIANTS


@pytest.mark.parametrize("name", names("broken"))
def test_a_broken_program_is_caught_somewhere_and_every_model_of_power_is_claimed(
    name: str,
) -> None:
    expect = PROGRAMS[name].expect
    assert any(expect.values())
    assert {f"power/{model}" for model in catalogue.MODELS} <= expect.keys()


@pytest.mark.parametrize("name", names("broken", "correct", "untraceable", "leaves-children"))
def test_two_runs_are_equal_and_a_finished_run_is_not_harmed_by_a_resume(
    name: str, tmp_path: Path, build: Path
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    outputs = [run(name, root, build) for root in (first, second)]
    losses = matches(name, "losses", outputs[0], first)
    assert losses == matches(name, "losses", outputs[1], second)
    assert len({step for step, _ in losses}) == len(losses) >= 4
    acks = matches(name, "acknowledged", outputs[0], first)
    assert acks == matches(name, "acknowledged", outputs[1], second)
    fewest = 1 if name == "one_late_word" else 2  # of which that program is the exception
    assert len(acks) >= fewest or PROGRAMS[name].acknowledged is None

    files = final_files(name, first)
    assert files == final_files(name, second)
    assert bool(files) == bool(PROGRAMS[name].final)
    run(name, first, build)
    assert final_files(name, first) == files


def test_the_one_without_a_seed_differs_from_itself(tmp_path: Path, build: Path) -> None:
    runs = [run("nondeterministic", tmp_path / side, build) for side in ("first", "second")]
    assert runs[0] != runs[1]


@pytest.mark.parametrize("name", sorted(PROGRAMS))
def test_the_table_makes_a_subject_file_that_is_accepted(
    name: str, tmp_path: Path, build: Path
) -> None:
    if "{build}" in PROGRAMS[name].train[0] and catalogue.compiler() is None:
        pytest.skip("no C compiler (cc, gcc or clang) is on the PATH")
    path = tmp_path / "subject.toml"
    path.write_text(catalogue.subject_file(PROGRAMS[name], build=build))
    subject = load_subject(path)
    assert subject.name == name
    assert subject.final == PROGRAMS[name].final
    assert (subject.acknowledged is None) == (PROGRAMS[name].acknowledged is None)


@pytest.mark.parametrize("example", ["numpy-trainer", "torch-trainer"])
def test_the_examples_to_copy_are_accepted(example: str) -> None:
    assert load_subject(EXAMPLES / example / "subject.toml").name == example
