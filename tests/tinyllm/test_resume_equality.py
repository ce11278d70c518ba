"""A run that was killed and resumed is the run that was not, bit for bit, for each config."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tinyllm import runs

KILLS = [
    ("step.optimizer-stepped", 3),  # before anything was saved
    ("save.step-renamed", 1),  # the first checkpoint is there, LATEST is not
    ("step.reported", 6),  # in the first epoch's last step
    ("save.pointer-durable", 3),  # at the end of an epoch, not yet acknowledged
    ("end.reported", 1),
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every config, uninterrupted, each a run by its name."""
    artifacts = tmp_path_factory.mktemp("whole")
    for config in runs.CONFIGS:
        ended = runs.train(artifacts, config, run_id=config)
        assert ended.code == 0, ended.stderr
    return artifacts


@pytest.mark.parametrize("config", runs.CONFIGS)
def test_killed_and_resumed(whole: Path, tmp_path: Path, config: str) -> None:
    expected = runs.tree(runs.ckpt(whole, config))
    for number, place in enumerate(KILLS if config == "adamw" else KILLS[2:4]):
        run_id = f"{config}-{number}"
        killed = runs.train(tmp_path, config, run_id=run_id, stop_at=place)
        assert killed.code == -9
        ended = runs.train(tmp_path, config, "--resume", run_id=run_id)
        assert ended.code == 0, ended.stderr
        assert runs.tree(runs.ckpt(tmp_path, run_id)) == expected, place
        assert runs.losses(tmp_path, run_id) == runs.losses(whole, config), place


def test_killed_again_and_again(whole: Path, tmp_path: Path) -> None:
    """Killed in each resume, too: always one step or one save further."""
    places = [
        ("save.announced", 1),
        ("resume.parameters-loaded", 1),
        ("step.reported", 1),
        ("resume.reported", 1),
        ("save.pointer-renamed", 1),
        ("retention.renames-durable", 1),
    ]
    assert runs.train(tmp_path, "muon", stop_at=places[0]).code == -9
    for place in places[1:]:
        assert runs.train(tmp_path, "muon", "--resume", stop_at=place).code == -9
    assert runs.train(tmp_path, "muon", "--resume").code == 0
    assert runs.tree(runs.ckpt(tmp_path)) == runs.tree(runs.ckpt(whole, "muon"))
    assert runs.losses(tmp_path) == runs.losses(whole, "muon")


def test_resumed_by_a_process_that_hashes_strings_otherwise(whole: Path, tmp_path: Path) -> None:
    """Nothing that is saved depends on the order of a set."""
    assert runs.train(tmp_path, "adamw", stop_at=("save.pointer-durable", 2)).code == -9
    words = ["train", str(runs.longer("adamw")), "--run-id", "r", "--resume"]
    subprocess.run(
        [sys.executable, "-m", "tinyllm", *words, "--artifacts", str(tmp_path)],
        env={**os.environ, "PYTHONHASHSEED": "12345", "TINYLLM_GIT_SHA": runs.GIT_SHA},
        capture_output=True,
        timeout=60,
        check=True,
    )
    assert runs.tree(runs.ckpt(tmp_path)) == runs.tree(runs.ckpt(whole, "adamw"))
    assert runs.losses(tmp_path) == runs.losses(whole, "adamw")


@pytest.mark.parametrize("config", runs.CONFIGS)
def test_a_smoke_config_covers_what_matters(whole: Path, config: str) -> None:
    """At least four saves, more than are kept; one within an epoch, one exactly at an end."""
    spec = runs.spec_content(config)
    saves = [line["step"] for line in runs.lines(whole, config) if line["kind"] == "ckpt"]
    epoch_steps = spec["data"]["max_windows"] // spec["batch_size"]
    assert len(saves) >= 4
    assert spec["keep_ckpts"] < len(saves)
    assert any(step % epoch_steps for step in saves)
    assert 2 * epoch_steps in saves
    assert saves[0] < epoch_steps < saves[1]
    assert saves[-1] == spec["steps"]
    kept = sorted(path.name for path in runs.ckpt(whole, config).iterdir())
    assert kept == ["LATEST", *(f"step-{step:06d}" for step in saves[-spec["keep_ckpts"] :])]
