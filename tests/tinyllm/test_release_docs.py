"""``docs/released-models.md`` says what is so: its options, its defaults, its first example."""

import argparse
import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.tinyllm import releases, runs
from tests.tinyllm.releases import FILES
from tinyllm import engine_cli, release_cli
from tinyllm.cli import main
from tinyllm.generation_config import GenerationConfig

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "released-models.md").read_text(encoding="utf-8")


def options_of(command: str) -> set[str]:
    subparsers = argparse.ArgumentParser().add_subparsers()
    release_cli.add_parsers(subparsers)
    engine_cli.add_parsers(subparsers)
    actions = subparsers.choices[command]._actions
    return {word for a in actions for word in a.option_strings if word.startswith("--")} - {
        "--help"
    }


def test_every_option_of_release_has_its_row_and_no_other() -> None:
    table = PAGE.partition("| option | meaning |")[2].partition("\n\n")[0]
    rows = [line.split(" | ")[0] for line in table.splitlines()[2:]]
    assert {o for row in rows for o in re.findall(r"--[a-z-]+", row)} == options_of("release")


def test_the_commands_that_are_shown_have_the_options_that_are_shown() -> None:
    for line in PAGE.splitlines():
        words = line.removeprefix("$ tinyllm ").split()
        if line.startswith("$ tinyllm ") and words[0] in ("release", "generate", "classify"):
            assert set(re.findall(r" (--[a-z-]+)", line)) <= options_of(words[0]), line


def test_the_defaults_of_sampling() -> None:
    how = GenerationConfig()
    shown = dict(re.findall(r"`(\w+)` \((\d+)", PAGE))
    assert {name: float(value) for name, value in shown.items()} == {
        "max_new_tokens": how.max_new_tokens,
        "temperature": how.temperature,
        "top_k": how.top_k,
        "top_p": how.top_p,
        "seed": how.seed,
    }


def test_every_file_of_a_release_has_its_row() -> None:
    table = PAGE.partition("| file | content |")[2].partition("\n\n")[0]
    named = set(
        re.findall(r"`([\w./<>]+)`", "".join(x.split(" | ")[0] for x in table.splitlines()))
    )
    assert named == {*FILES, "heads/<name>.json", "MANIFEST.json"} - {"heads/tone.json"}


def test_the_example_does_what_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The numbers may be another machine's; the rest is as it stands on the page."""
    shutil.copytree(releases.EXAMPLE, tmp_path / "release")
    for name in ("corpus.txt", "tokenizer.json"):
        shutil.copy(runs.SMOKE / name, tmp_path / name)
    monkeypatch.chdir(tmp_path / "release")
    commands = [shlex.split(x[10:]) for x in PAGE.splitlines() if x.startswith("$ tinyllm ")]
    train, release, verify, *serve = commands
    assert runs.run(*train).code == 0
    assert main(release) == 0
    shown = PAGE.partition(" --chat-template chat_template.jinja\n")[2].partition("\n```")[0]
    number = re.compile(r"[0-9.]+e-[0-9]+")
    printed = number.sub("N", capsys.readouterr().out).splitlines()
    assert {number.sub("N", line) for line in shown.splitlines()} - {"..."} <= set(printed)
    assert main(verify) == 0
    for words in serve:
        assert main(words) == 0, words
