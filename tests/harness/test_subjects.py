"""The subject file and the command-line form: strict, with a sentence for each mistake."""

import os
import sys
from pathlib import Path

import pytest

from harness.commands.gate import smoke_configs
from harness.errors import UsageError
from harness.subjects import (
    FILE_LIMIT_BYTES,
    Pattern,
    as_json,
    checked,
    discover,
    from_json,
    load_subject,
    subject_from_command,
    tinyllm_subject,
    with_timeout,
)

GOOD = """
name   = "my-trainer"
train  = ["python", "train.py", "--out", "{root}"]
env    = { OMP_NUM_THREADS = "1" }
timeout = 60
preload = ["json"]

[losses]
from    = "stdout"
pattern = 'step=(?P<step>\\d+) loss=(?P<loss>\\S+)'

[acknowledged]
from    = "log/acks.txt"
pattern = 'saved step=(?P<step>\\d+)'

[final]
files   = ["final.bin"]
compare = "tensors"
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "subject.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_subject_file_is_read_whole(tmp_path: Path) -> None:
    subject = load_subject(write(tmp_path, GOOD))
    assert subject.name == "my-trainer"
    assert subject.resume == subject.train
    assert subject.cwd == str(tmp_path.resolve())
    assert subject.timeout_s == 60
    assert subject.losses == Pattern("stdout", r"step=(?P<step>\d+) loss=(?P<loss>\S+)")
    assert subject.watched() == ("log/acks.txt",)
    assert (subject.final, subject.compare) == (("final.bin",), "tensors")
    assert from_json(as_json(subject)) == subject


def test_root_is_replaced_inside_longer_words_and_python_is_this_interpreter(
    tmp_path: Path,
) -> None:
    subject = load_subject(
        write(tmp_path, GOOD.replace('"--out", "{root}"', '"--out={root}/a:{root}"'))
    )
    command = subject.command(root="/r", resuming=False)
    assert command.argv == (sys.executable, "train.py", "--out=/r/a:/r")
    assert dict(command.env)["OMP_NUM_THREADS"] == "1"
    with pytest.raises(UsageError, match="only tinyllm can be told to go back to step-000006"):
        subject.command(root="/r", resuming=True, rewind="step-000006")


def test_tinyllm_goes_back_to_a_step_directory() -> None:
    subject = tinyllm_subject(smoke_configs() / "adamw.json")
    argv = subject.command(root="/r", resuming=True, rewind="step-000006").argv
    assert argv[-2:] == ("--resume", "/r/runs/run/ckpt/step-000006")
    assert argv[:-1] == subject.command(root="/r", resuming=True).argv


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("timeout = 60", "timeuot = 60", "timeuot"),
        ('from    = "stdout"', 'form = "stdout"', "form"),
        ("timeout = 60", 'timeout = "60"', "timeout"),
        ("timeout = 60", "timeout = -1", "timeout"),
        ("(?P<loss>\\S+)", "(\\S+)", "(?P<loss>...)"),
        ("(?P<loss>\\S+)", "(?P<loss>", "no regular expression"),
        ('"my-trainer"', '"my/trainer"', "my/trainer"),
        ('"my-trainer"', '""', "name"),
        ('["python", "train.py", "--out", "{root}"]', "[]", "train"),
        ('["python", "train.py", "--out", "{root}"]', '["python", "train.py"]', "{root}"),
        ('"python", "train.py"', '"no-such-command-here", "x"', "no-such-command-here"),
        ('"log/acks.txt"', '"../acks.txt"', "../acks.txt"),
        ('"log/acks.txt"', '"/acks.txt"', "/acks.txt"),
        ('["final.bin"]', '["/final.bin"]', "/final.bin"),
        ('"tensors"', '"tensor"', "tensor"),
        ('["json"]', '["json; import os"]', "json; import os"),
        ("[final]", "[finale]", "finale"),
        ('name   = "my-trainer"', "name = ", "not TOML"),
    ],
)
def test_each_mistake_is_named(tmp_path: Path, old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(UsageError) as error:
        load_subject(write(tmp_path, GOOD.replace(old, new, 1)))
    assert said in str(error.value)
    assert "subject.toml" in str(error.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gone\.toml"):
        load_subject(tmp_path / "gone.toml")


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_file_that_is_no_file_is_refused_and_not_waited_for(tmp_path: Path, suffix: str) -> None:
    """A FIFO would be waited on for ever, and what never ends would be read to the end."""
    path = tmp_path / f"subject.{suffix}"
    os.mkfifo(path)
    with pytest.raises(UsageError, match="is not a regular file"):
        discover([path])
    path.unlink()
    path.symlink_to("/dev/zero")
    with pytest.raises(UsageError, match="is not a regular file"):
        discover([path])
    path.unlink()
    with path.open("wb") as file:
        file.truncate(FILE_LIMIT_BYTES + 1)
    with pytest.raises(UsageError, match="more than 16,777,216"):
        discover([path])


def test_a_subject_file_may_be_a_symlink(tmp_path: Path) -> None:
    (tmp_path / "real.toml").write_text(GOOD)
    (tmp_path / "link.toml").symlink_to("real.toml")
    assert load_subject(tmp_path / "link.toml") == load_subject(tmp_path / "real.toml")


def test_a_missing_working_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nowhere"):
        load_subject(write(tmp_path, 'cwd = "nowhere"\n' + GOOD))


def test_the_command_form_takes_its_name_from_the_script() -> None:
    subject = subject_from_command(["python", "some dir/my train.py", "{root}"])
    assert subject.name == "my-train"
    assert subject.losses is None


def test_the_time_limit_is_ten_times_the_baseline_and_at_least_half_a_minute() -> None:
    subject = subject_from_command(["python", "train.py", "{root}"])
    assert with_timeout(subject, baseline_seconds=0.2).timeout_s == 30
    assert with_timeout(subject, baseline_seconds=7).timeout_s == 70
    explicit = subject_from_command(["python", "train.py", "{root}"], timeout_s=2)
    assert with_timeout(explicit, baseline_seconds=7).timeout_s == 2


def test_checked_returns_a_right_subject_unchanged() -> None:
    subject = subject_from_command(["python", "train.py", "{root}"])
    assert checked(subject, where="here") is subject
