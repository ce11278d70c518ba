"""SIGTERM and SIGINT: finish the step, save, leave; the second one ends the run at once."""

import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from tests.tinyllm import runs
from tinyllm.signals import StopRequest, stop_on_signals


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("place", ["step.began", "step.optimizer-stepped"])
def test_the_step_is_finished_and_saved(tmp_path: Path, sent: int, code: int, place: str) -> None:
    ended = runs.train(tmp_path, "adamw", stop_at=(place, 6), send=sent)
    assert ended.code == code
    assert "finishing the step, then saving" in ended.stderr
    assert "stopped after step 6 of 16; --resume goes on" in ended.stderr
    assert runs.kinds(tmp_path)[-3:] == ["step 5", "step 6", "ckpt 6"]
    assert (runs.ckpt(tmp_path) / "LATEST").read_text() == "step-000006\n"
    assert runs.train(tmp_path, "adamw", "--resume").code == 0
    assert runs.kinds(tmp_path)[-1] == "done 16"


@pytest.mark.parametrize("place", ["save.manifest-synced", "save.announced"])
def test_during_a_save_that_save_is_the_last(tmp_path: Path, place: str) -> None:
    ended = runs.train(tmp_path, "adamw", stop_at=(place, 2), send=signal.SIGTERM)
    assert ended.code == 143
    assert runs.kinds(tmp_path)[-2:] == ["step 8", "ckpt 8"]


@pytest.mark.parametrize("place", ["end.reported", "end.progress-synced"])
def test_at_the_end_the_run_is_done(tmp_path: Path, place: str) -> None:
    ended = runs.train(tmp_path, "adamw", stop_at=(place, 1), send=signal.SIGTERM)
    assert ended.code == 0
    assert runs.kinds(tmp_path)[-1] == "done 16"


@pytest.mark.parametrize("place", ["start.inputs-read", "start.locked", "start.model-made"])
def test_during_start_up_nothing_is_begun(tmp_path: Path, place: str) -> None:
    ended = runs.train(tmp_path, "adamw", stop_at=(place, 1), send=signal.SIGTERM)
    assert ended.code == 143
    assert not (tmp_path / "runs/r/progress.jsonl").exists()


def test_between_the_first_line_and_the_first_step(tmp_path: Path) -> None:
    ended = runs.train(tmp_path, "adamw", stop_at=("start.reported", 1), send=signal.SIGTERM)
    assert ended.code == 143
    assert runs.kinds(tmp_path) == ["start"]
    assert list(runs.ckpt(tmp_path).iterdir()) == []


def test_during_a_resume_nothing_is_lost(tmp_path: Path) -> None:
    assert runs.train(tmp_path, "adamw", stop_at=("save.announced", 1)).code == -9
    before = runs.tree(runs.ckpt(tmp_path))
    place = ("resume.parameters-loaded", 1)
    ended = runs.train(tmp_path, "adamw", "--resume", stop_at=place, send=signal.SIGTERM)
    assert ended.code == 143
    assert runs.tree(runs.ckpt(tmp_path)) == before


def test_the_second_signal_ends_at_once() -> None:
    """The handler is gone after the first, so the second does what a signal does by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # see runs.run
        pid = os.fork()
    if pid == 0:
        with stop_on_signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            if stop.exit_code == 143:
                os.kill(os.getpid(), signal.SIGINT)
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGINT


def test_the_old_handlers_come_back_and_an_ignored_signal_stays_ignored() -> None:
    before = signal.getsignal(signal.SIGTERM)
    old = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            assert signal.getsignal(signal.SIGTERM) is not before
        assert signal.getsignal(signal.SIGTERM) is before
        assert stop == StopRequest(signum=0)
    finally:
        signal.signal(signal.SIGINT, old)


def test_while_torch_is_being_imported() -> None:
    """The signals are watched from before that, in a real process."""
    program = (
        "import os, signal, sys\n"
        "class Now:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch':\n"
        "            os.kill(os.getpid(), signal.SIGTERM)\n"
        "sys.meta_path.insert(0, Now())\n"
        "from tinyllm.cli import main\n"
        f"sys.exit(main(['train', {str(runs.SMOKE / 'adamw.json')!r}, '--run-id', 'r',\n"
        "    '--artifacts', '/dev/null/nowhere']))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 143, ended.stderr
