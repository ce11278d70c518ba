"""``docs/commands.md`` lists what the code has: commands, options, layers, invariants, models."""

import argparse
import re
from pathlib import Path

import pytest

from fault_injection.processes import DidNotDie
from harness import cli, commands, errors, oracle, tinyllm_oracle
from harness.cases import LAYERS
from harness.commands import gate
from harness.commands.common import FILE_SYSTEMS, MODELS
from harness.layers import RELEASE
from harness.session import Request
from tests.harness.histories import a_subject

PAGE = (Path(__file__).parents[2] / "docs" / "commands.md").read_text(encoding="utf-8")


def parsers() -> dict[str, argparse.ArgumentParser]:
    parser = cli.build_parser()
    [action] = [a for a in parser._actions if isinstance(a, argparse._SubParsersAction)]
    return dict(action.choices)


def words(pattern: str) -> set[str]:
    return set(re.findall(pattern, PAGE, re.MULTILINE))


def test_every_command_is_documented_and_no_other() -> None:
    assert words(r"`durability ([a-z]+)") == set(parsers())


CAMPAIGNS = ("gate", "check", "nightly", "matrix")  # their common options have a table


def test_every_option_is_documented_where_its_command_is() -> None:
    table = words(r"^\| `(--[a-z-]+)")
    own = {"check": words(r"^`check` with a command takes (.*)$")}
    for name, parser in parsers().items():
        options = {o for a in parser._actions for o in a.option_strings if o.startswith("--")}
        row = " ".join(words(rf"^(\| `durability {name}\b.*)$") | own.get(name, set()))
        known = set(re.findall(r"--[a-z-]+", row)) | (table if name in CAMPAIGNS else set())
        missing = options - known - {"--help"}
        assert not missing, f"{name}: {sorted(missing)}"


def test_every_layer_and_model_is_documented() -> None:
    table = words(r"^\| `([a-z]+)` \|") | words(r"`((?:power|realfs)/[a-z0-9]+)`")
    for layer in LAYERS:
        if layer == "power":
            assert {f"power/{model}" for model in MODELS} <= table
        elif layer == "realfs":
            assert {f"realfs/{fs}" for fs in FILE_SYSTEMS} <= table
        else:
            assert layer in table


def test_every_invariant_is_documented() -> None:
    table = words(r"^\| `([a-z]+(?:-[a-z]+)+|resumable|retention)` \|")
    known = {*oracle.GENERAL, *tinyllm_oracle.CHECKS, "error-is-clear"}
    assert table == known
    assert set(oracle.invariants_of(a_subject(format="tinyllm"), layers=["error"])) == known


def test_every_exit_code_is_documented() -> None:
    codes = {errors.UsageError.exit_code, errors.CannotJudge.exit_code, cli.INTERNAL_ERROR, 130}
    assert codes <= {int(code) for code in words(r"^\| (\d+) \|")}


def test_modules_stand_in_the_order_of_the_help() -> None:
    shown = [module.__name__.rpartition(".")[2] for module in commands.in_order()]
    assert shown == list(parsers())


@pytest.mark.parametrize(
    "argv",
    [
        ["gate", "--faults", "nonsense"],
        ["gate", "--models", "zfs"],
        ["gate", "--budget", "soon"],
        ["gate", "--jobs", "0"],
        ["check"],
        ["check", "gone.toml"],
        ["reproduce", "zzz"],
        ["nonsense"],
    ],
)
def test_wrong_usage_is_exit_2(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    try:
        code = cli.main(argv)
    except SystemExit as error:
        code = int(error.code or 0)
    assert code == 2


def test_the_gate_kills_a_release_at_its_failpoints_and_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Request] = []

    def run(request: Request) -> int:
        seen.append(request)
        return 0

    monkeypatch.setattr(gate, "run", run)
    out = ["--out", str(tmp_path / "out")]
    for words in ([], ["--exhaustive"], ["--faults", "kill"], [str(gate.smoke_configs())]):
        assert cli.main(["gate", *words, *out]) == 0
    named = [[subject.name for subject in request.subjects] for request in seen]
    assert [names[-1] == "release" for names in named] == [True, True, False, False]
    assert all(names[:5] == named[0][:5] for names in named)
    for request in seen[:2]:
        *configs, release = request.subjects
        assert request.bounds(release) == RELEASE
        assert RELEASE not in [request.bounds(config) for config in configs]


def test_a_process_that_does_not_die_is_no_verdict(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def waits_for_a_disk(_: argparse.Namespace) -> int:
        raise DidNotDie("process 77 did not die of SIGKILL in 120 s; it is in state 'D'")

    monkeypatch.setattr(gate, "run", waits_for_a_disk)
    assert cli.main(["gate"]) == errors.CannotJudge.exit_code
    assert "nothing can be said: process 77 did not die" in capsys.readouterr().err
