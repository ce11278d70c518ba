"""What ``train`` does with what it finds: goes on, starts anew, refuses, or has nothing to do.

Every refusal is tested for leaving the run's directory exactly as it was.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tinyllm import runs
from tinyllm import pcg32, trainer, training
from tinyllm.retention import Line


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished adamw run of 8 steps, saved at 4 and 8, with its spec and data beside it."""
    here = tmp_path_factory.mktemp("finished")
    shutil.copy(runs.SMOKE / "corpus.txt", here)
    _spec(here)
    assert runs.train(here, here / "spec.json").code == 0
    return here


@pytest.fixture
def run(finished: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return shutil.copytree(finished, tmp_path / "copy")


@pytest.fixture
def half(run: Path) -> Path:
    """The run as it was after step 4, which LATEST names."""
    shutil.rmtree(runs.ckpt(run) / "step-000008")
    (runs.ckpt(run) / "LATEST").write_text("step-000004\n")
    progress = run / "runs/r/progress.jsonl"
    content = progress.read_bytes()
    progress.write_bytes(content[: content.index(b'{"kind":"step","attempt":1,"step":5')])
    return run


def _spec(here: Path, **changes: Any) -> Path:
    data = runs.spec_content()["data"]
    data["sources"][0]["path"] = "corpus.txt"
    return runs.write_spec(here / "spec.json", **({"steps": 8, "data": data} | changes))


def _resume(here: Path, *more: object, code: int = 0) -> str:
    """Resume; a refusal must not have changed a byte."""
    before = runs.tree(here / "runs")
    ended = runs.train(here, here / "spec.json", "--resume", *more)
    assert ended.code == code, ended.stderr
    if code:
        assert runs.tree(here / "runs") == before
        assert "Traceback" not in ended.stderr
    return ended.stderr


def _rehash(step_dir: Path, name: str, content: bytes) -> None:
    """Replace a file and put its hash into the manifest, so that only sense can tell."""
    (step_dir / name).write_bytes(content)
    manifest = json.loads((step_dir / "MANIFEST.json").read_bytes())
    manifest["files"][name] = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "size": len(content),
    }
    (step_dir / "MANIFEST.json").write_text(json.dumps(manifest))


def _edit_state(here: Path, edit: Callable[[dict[str, Any]], None]) -> None:
    step_dir = runs.ckpt(here) / "step-000004"
    state = json.loads((step_dir / "trainer_state.json").read_bytes())
    edit(state)
    _rehash(step_dir, "trainer_state.json", json.dumps(state).encode())


# --- starting ---------------------------------------------------------------------------------


def test_a_second_start_is_refused(run: Path) -> None:
    before = runs.tree(run / "runs")
    ended = runs.train(run, run / "spec.json")
    assert ended.code == 2
    assert "has checkpoints up to step-000008: use --resume" in ended.stderr
    assert runs.tree(run / "runs") == before


def test_a_start_after_a_kill_before_the_first_save_is_a_second_attempt(tmp_path: Path) -> None:
    assert runs.train(tmp_path, "adamw", stop_at=("step.reported", 2)).code == -9
    assert runs.train(tmp_path, "adamw").code == 0
    assert [line["attempt"] for line in runs.lines(tmp_path)][:4] == [1, 1, 1, 2]
    assert all(len(bits) == 1 for bits in runs.losses(tmp_path).values())


def test_resume_of_nothing_is_a_fresh_start_that_says_so(tmp_path: Path) -> None:
    ended = runs.train(tmp_path, "adamw", "--resume")
    assert ended.code == 0
    assert "has no checkpoint: starting from the first step" in ended.stderr
    assert runs.kinds(tmp_path)[:2] == ["start", "step 1"]


def test_an_explicit_step_of_nothing_is_an_error(tmp_path: Path) -> None:
    ended = runs.train(tmp_path, "adamw", "--resume", runs.ckpt(tmp_path) / "step-000004")
    assert ended.code == 4
    assert "there is no run at" in ended.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run_id", ["../r", "/r", "", ".r", "a/b", "x" * 65])
def test_a_run_id_that_leads_elsewhere_is_refused(tmp_path: Path, run_id: str) -> None:
    ended = runs.train(tmp_path / "artifacts", "adamw", run_id=run_id)
    assert ended.code == 2
    assert "run id" in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_wrong_spec_makes_nothing(tmp_path: Path) -> None:
    spec = runs.write_spec(tmp_path / "spec.json", steps=0)
    ended = runs.train(tmp_path / "artifacts", spec)
    assert (ended.code, "steps 0 is not in" in ended.stderr) == (2, True)
    assert not (tmp_path / "artifacts").exists()


def test_two_trainers_on_one_run(tmp_path: Path) -> None:
    """The second is refused while the first lives; a killed one's lock is no obstacle."""
    import fcntl

    assert runs.train(tmp_path, "adamw", stop_at=("start.locked", 1)).code == -9
    with open(tmp_path / "runs/r/lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        ended = runs.train(tmp_path, "adamw", "--resume")
    assert (ended.code, "trained already" in ended.stderr) == (3, True)
    assert runs.train(tmp_path, "adamw", "--resume").code == 0


# --- steps and saves --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("steps", "every", "saved"),
    [(5, 2, [2, 4, 5]), (4, 2, [2, 4]), (2, 9, [2]), (1, 1, [1])],
)
def test_the_last_step_is_saved_once(
    tmp_path: Path, steps: int, every: int, saved: list[int]
) -> None:
    spec = runs.write_spec(
        tmp_path / "spec.json",
        steps=steps,
        ckpt_every=every,
        schedule={"name": "constant"},
    )
    assert runs.train(tmp_path, spec).code == 0
    assert [line["step"] for line in runs.lines(tmp_path) if line["kind"] == "ckpt"] == saved
    assert (runs.ckpt(tmp_path) / "LATEST").read_text() == f"step-{steps:06d}\n"


def test_the_state_is_what_was_consumed(run: Path) -> None:
    state = json.loads((runs.ckpt(run) / "step-000008/trainer_state.json").read_bytes())
    generator = pcg32.seeded(1729, sequence=1)
    _, after = pcg32.shuffled(generator, 24)
    spec = (run / "spec.json").read_bytes()
    assert state["step"] == 8
    assert state["tokens_seen"] == 8 * 4 * 32
    assert state["cursor"] == {"epoch": 1, "next_window": 8}
    assert state["generator"] == {
        "state": str(after.state),
        "increment": str(after.increment),
    }
    assert state["lr"] == pytest.approx(0.0003)
    assert state["spec_sha256"] == hashlib.sha256(spec).hexdigest()


def test_the_library_reads_what_was_saved(run: Path) -> None:
    step_dir = runs.ckpt(run) / "step-000008"
    parameters = load_file(step_dir / "model.safetensors")
    states = load_file(step_dir / "optimizer.safetensors")
    assert {value.dtype for value in [*parameters.values(), *states.values()]} == {torch.float32}
    assert set(states) == {
        f"{name}.{kind}" for name in parameters for kind in ("exp_avg", "exp_avg_sq")
    }


def test_values_that_are_not_finite_are_not_saved(tmp_path: Path) -> None:
    """A rate that blows up after the first save: that save stays, and the tensor is named."""
    spec = runs.write_spec(
        tmp_path / "spec.json",
        "sgd",
        optimizer={"name": "sgd", "lr": 1000.0},
        schedule={"name": "constant", "warmup_steps": 18},
        ckpt_every=1,
    )
    ended = runs.train(tmp_path, spec)
    assert ended.code == 7
    assert "nothing was saved" in ended.stderr
    error = runs.lines(tmp_path)[-1]
    assert (error["kind"], " is nan at element " in error["message"]) == ("error", True)
    saved = [line["step"] for line in runs.lines(tmp_path) if line["kind"] == "ckpt"]
    assert saved == list(range(1, error["step"]))
    assert saved
    assert (runs.ckpt(tmp_path) / "LATEST").read_text() == f"step-{saved[-1]:06d}\n"
    for path in runs.ckpt(tmp_path).glob("step-*/model.safetensors"):
        assert all(bool(value.isfinite().all()) for value in load_file(path).values())


# --- going on ---------------------------------------------------------------------------------


def test_a_finished_run_has_nothing_to_do_and_writes_nothing(run: Path) -> None:
    before = runs.tree(run / "runs")
    assert "is the last step: nothing to do" in _resume(run)
    assert "nothing to do" in _resume(run, runs.ckpt(run) / "step-000008")
    assert runs.tree(run / "runs") == before


def test_a_finished_run_whose_last_line_was_lost_gets_it(run: Path) -> None:
    progress = run / "runs/r/progress.jsonl"
    progress.write_bytes(progress.read_bytes()[:-7])
    _resume(run)
    assert runs.kinds(run)[-3:] == ["ckpt 8", "resume 8", "done 8"]
    _resume(run)
    assert runs.kinds(run)[-3:] == ["ckpt 8", "resume 8", "done 8"]


@pytest.mark.parametrize("pointer", [None, "", "step-8\n", "step-000009\n"])
def test_a_useless_pointer_is_mended(run: Path, pointer: str | None) -> None:
    latest = runs.ckpt(run) / "LATEST"
    latest.unlink()
    if pointer is not None:
        latest.write_text(pointer)
    before = runs.tree(runs.ckpt(run))
    said = _resume(run)
    assert "skipped LATEST" in said
    assert latest.read_text() == "step-000008\n"
    assert runs.tree(runs.ckpt(run)) == before | {"LATEST": b"step-000008\n"}
    assert [line["kind"] for line in runs.lines(run)[-4:]] == ["skip", "resume", "ckpt", "done"]
    assert "nothing to do" in _resume(run)


def test_a_damaged_checkpoint_is_skipped_for_an_older_one(finished: Path, run: Path) -> None:
    """Its step comes again, and gets its own name again."""
    (runs.ckpt(run) / "step-000008/model.safetensors").write_bytes(b"")
    said = _resume(run)
    assert "skipped step-000008: model.safetensors" in said
    assert f"resuming from {runs.ckpt(run)}/step-000004" in said
    assert runs.tree(runs.ckpt(run)) == runs.tree(runs.ckpt(finished))
    assert runs.losses(run) == runs.losses(finished)
    skip = next(line for line in runs.lines(run) if line["kind"] == "skip")
    assert (skip["attempt"], skip["name"]) == (2, "step-000008")


def test_nothing_verifies(run: Path) -> None:
    for step_dir in runs.ckpt(run).glob("step-*"):
        (step_dir / "MANIFEST.json").unlink()
    said = _resume(run, code=4)
    assert "step-000004: MANIFEST.json" in said
    assert "step-000008: MANIFEST.json" in said


def test_a_checkpoint_at_the_end_of_an_epoch_goes_on_with_the_next(tmp_path: Path) -> None:
    spec = runs.write_spec(tmp_path / "spec.json", ckpt_every=3)
    for run_id, kill in [("whole", None), ("cut", ("save.announced", 2))]:
        ended = runs.train(tmp_path, spec, run_id=run_id, stop_at=kill)
        assert ended.code == (-9 if kill else 0)
    state = json.loads((runs.ckpt(tmp_path, "cut") / "step-000006/trainer_state.json").read_bytes())
    assert state["cursor"] == {"epoch": 1, "next_window": 0}
    assert runs.train(tmp_path, spec, "--resume", run_id="cut").code == 0
    assert runs.losses(tmp_path, "cut") == runs.losses(tmp_path, "whole")


def test_a_rewind(finished: Path, run: Path) -> None:
    """To an older step, explicitly; what comes after it is made again, the same."""
    said = _resume(run, runs.ckpt(run) / "step-000004")
    assert "step-000004" in said
    assert runs.kinds(run)[-7:] == [
        "resume 4",
        "step 5",
        "step 6",
        "step 7",
        "step 8",
        "ckpt 8",
        "done 8",
    ]
    assert runs.tree(runs.ckpt(run)) == runs.tree(runs.ckpt(finished))


def test_a_rewind_to_a_step_that_is_not_there_is_refused(run: Path) -> None:
    """Falling back to an older one would give up the newer ones for a slip of the pen."""
    said = _resume(run, runs.ckpt(run) / "step-000005", code=4)
    assert "step-000005 does not exist; there are step-000004, step-000008" in said


def test_a_rewind_to_a_damaged_step_takes_the_next_older_one(run: Path) -> None:
    (runs.ckpt(run) / "step-000008/config.json").unlink()
    said = _resume(run, runs.ckpt(run) / "step-000008")
    assert "skipped step-000008: config.json" in said
    assert "resume 4" in runs.kinds(run)


# --- refusing ---------------------------------------------------------------------------------


def test_a_changed_spec_is_refused_naming_both(half: Path) -> None:
    old = hashlib.sha256((half / "spec.json").read_bytes()).hexdigest()
    _spec(half, steps=12)
    new = hashlib.sha256((half / "spec.json").read_bytes()).hexdigest()
    said = _resume(half, code=2)
    assert f"the spec's sha256 was {old}" in said
    assert new in said
    assert "--allow-spec-change" in said
    _resume(half, "--allow-spec-change")
    assert runs.kinds(half)[-1] == "done 12"


def test_changed_data_is_refused(half: Path) -> None:
    with open(half / "corpus.txt", "a") as corpus:
        corpus.write("And another line.\n")
    assert "source essays's sha256 was" in _resume(half, code=2)
    _resume(half, "--allow-spec-change")


def test_a_changed_tokenizer_is_refused(tmp_path: Path) -> None:
    shutil.copy(runs.SMOKE / "tokenizer.json", tmp_path)
    spec = runs.write_spec(tmp_path / "spec.json", "file-tokenizer", tokenizer="tokenizer.json")
    assert runs.train(tmp_path, spec, stop_at=("save.announced", 1)).code == -9
    tokenizer = tmp_path / "tokenizer.json"
    tokenizer.write_text(tokenizer.read_text() + "\n")
    assert "tokenizer.json differs from the spec's tokenizer" in _resume(tmp_path, code=2)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"optimizer": {"name": "sgd", "lr": 0.1}}, "is of the optimizer adamw, the spec asks for"),
        (
            {"model": runs.spec_content()["model"] | {"width": 16}},
            "blocks.0.attention.norm.bias is F32 [32], not F32 [16]",
        ),
        (
            {"model": runs.spec_content()["model"] | {"layers": 2}},
            "blocks.1.attention.norm.weight is missing",
        ),
        ({"batch_size": 3}, ""),
    ],
)
def test_what_no_option_makes_fit(half: Path, changes: dict[str, Any], says: str) -> None:
    _spec(half, **changes)
    assert says in _resume(half, "--allow-spec-change", code=2 if says else 0)


@pytest.mark.parametrize(
    ("file", "edit", "says"),
    [
        ("model", lambda t: t.pop("head.weight"), "head.weight is missing"),
        ("model", lambda t: t.update(tail=t["norm.bias"].clone()), "tail is unknown"),
        (
            "model",
            lambda t: t.update({"norm.bias": t["norm.bias"].bfloat16()}),
            "norm.bias is BF16 [32], not F32 [32]",
        ),
        ("optimizer", lambda t: t.pop("norm.bias.exp_avg"), "norm.bias.exp_avg is missing"),
    ],
)
def test_a_parameter_that_does_not_fit(
    half: Path, file: str, edit: Callable[[dict[str, torch.Tensor]], object], says: str
) -> None:
    step_dir = runs.ckpt(half) / "step-000004"
    path = step_dir / f"{file}.safetensors"
    tensors = load_file(path)
    edit(tensors)
    metadata = {"format": "tinyllm", "optimizer": "adamw", "step": "4"}
    save_file(tensors, half / "new", metadata=metadata if file == "optimizer" else None)
    _rehash(step_dir, path.name, (half / "new").read_bytes())
    assert says in _resume(half, code=2)


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda s: s.update(tokens_seen=511), "tokens_seen is 511; 4 steps of this spec see 512"),
        (
            lambda s: s["cursor"].update(next_window=24),
            "at window 24 of an epoch, the data have 24",
        ),
        (lambda s: s["cursor"].update(next_window=15), "the data cursor (epoch 0, window 15)"),
        (lambda s: s["cursor"].update(epoch=1), "the data cursor (epoch 1, window 16)"),
        (
            lambda s: s["generator"].update(state=str(int(s["generator"]["state"]) ^ (1 << 40))),
            "the generator state is not that of seed 1729",
        ),
        (
            lambda s: s["generator"].update(increment=str(int(s["generator"]["increment"]) + 2)),
            "the generator state is not that of seed 1729",
        ),
        (lambda s: s.update(spec_sha256="0" * 64), "the spec's sha256 was 000000"),
    ],
)
def test_a_state_that_hashes_right_and_makes_no_sense(
    half: Path, edit: Callable[[dict[str, Any]], None], says: str
) -> None:
    _edit_state(half, edit)
    assert says in _resume(half, code=2)


@pytest.mark.parametrize("edit", [lambda s: s.pop("cursor"), lambda s: s.update(step=8)])
def test_a_state_without_a_key_or_of_another_step(
    half: Path, edit: Callable[[dict[str, Any]], None]
) -> None:
    """Nothing else is there, so that nothing can be resumed from."""
    _edit_state(half, edit)
    assert "step-000004: " in _resume(half, code=4)


@pytest.mark.parametrize("kind", ["fifo", "directory", "rubbish"])
def test_a_progress_file_that_is_not_one(half: Path, kind: str) -> None:
    path = half / "runs/r/progress.jsonl"
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_text("shopping list\n")
    said = _resume(half, code=2)
    assert str(path) in said
    assert "move" in said


def test_a_lost_progress_file_is_begun_again(half: Path) -> None:
    (half / "runs/r/progress.jsonl").unlink()
    _resume(half)
    assert runs.kinds(half)[:2] == ["resume 4", "step 5"]


# --- storage ----------------------------------------------------------------------------------


def test_a_write_that_fails_is_reported_and_costs_nothing(half: Path) -> None:
    """RLIMIT_FSIZE stands for a full disk: the progress file fits, the tensors do not."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = runs.tree(runs.ckpt(half))
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        ended = runs.train(half, half / "spec.json", "--resume")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ended.code == 5
    assert "model.safetensors: cannot write" in ended.stderr
    error = runs.lines(half)[-1]
    assert (error["kind"], error["step"]) == ("error", 8)
    assert "model.safetensors" in error["message"]
    assert runs.tree(runs.ckpt(half)) == before
    _resume(half)
    assert runs.kinds(half)[-1] == "done 8"


def test_the_lines_of_the_steps_are_durable_before_the_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a power loss could leave a checkpoint whose steps are not in the progress file."""
    calls: list[str] = []
    state = training.begin(training.read_inputs(runs.SMOKE / "adamw.json"))
    monkeypatch.setattr(trainer.progress, "sync", lambda _: calls.append("sync"))
    monkeypatch.setattr(trainer, "save_checkpoint", lambda *_, **__: calls.append("save"))
    path = tmp_path / "p"
    opened = trainer.progress.open_progress(path, trainer.progress.read_history(path))
    trainer.save(trainer.Run(tmp_path, opened, Line(), trainer.say), state)
    trainer.progress.close(opened)
    assert calls == ["sync", "save"]
