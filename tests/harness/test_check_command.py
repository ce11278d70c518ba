"""``durability check`` from its command line to its exit code, on small programs."""

import json
import shlex
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fault_injection import seccomp
from harness import cli

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

RIGHT = """
    import json, os, sys
    root = sys.argv[1]
    path = os.path.join(root, "state.json")
    state = {"step": 0, "w": 1.0}
    if os.path.exists(path):
        state = json.load(open(path))
    while state["step"] < 4:
        state = {"step": state["step"] + 1, "w": state["w"] * 0.5 + 0.25}
        print(f"step={state['step']} loss={state['w']!r}", flush=True)
        with open(path + ".tmp", "w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        print(f"saved step={state['step']}", flush=True)
"""
IN_PLACE = RIGHT.replace('path + ".tmp", "w"', 'path, "w"').replace(
    'os.rename(path + ".tmp", path)', "pass"
)
NO_DIRECTORY_FSYNC = RIGHT.replace("os.fsync(directory)", "pass")
LOSS = r"step=(?P<step>\d+) loss=(?P<loss>\S+)"
ACK = r"saved step=(?P<step>\d+)"


def check(
    tmp_path: Path, source: str, *options: str, words: tuple[str, ...] = ("{root}",)
) -> tuple[int, dict[str, Any]]:
    """Exit code, and the result if there is one."""
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(source), encoding="utf-8")
    out = tmp_path / "out"
    code = cli.main(
        ["check", "--jobs", "1", "--out", str(out), *options, "--", "python", str(script), *words]
    )
    result = out / "result.json"
    return code, json.loads(result.read_text()) if result.exists() else {}


def described(*more: str) -> tuple[str, ...]:
    return ("--loss-regex", LOSS, "--ack-regex", ACK, "--final", "state.json", *more)


def test_a_right_program_passes_every_default_layer(tmp_path: Path) -> None:
    code, result = check(tmp_path, RIGHT, *described())
    assert (code, result["verdict"], result["violations"]) == (0, "pass", [])
    assert sorted(result["layers"]) == [
        "double",
        "kill",
        "power/btrfs",
        "power/ext4",
        "power/posix",
        "power/xfs",
        "signal",
    ]
    assert all(layer["failed"] == 0 for layer in result["layers"].values())
    assert result["baseline"]["steps"] == 4
    assert result["invariants"] == [
        "resumable",
        "no-lost-ack",
        "no-silent-restart",
        "ack-after-durable",
        "same-losses",
        "same-final",
    ]
    for name in ("junit.xml", "summary.md", "index.html", "cases.jsonl"):
        assert (tmp_path / "out" / name).stat().st_size > 0


def test_a_broken_program_fails_by_name_with_a_bundle(tmp_path: Path) -> None:
    code, result = check(tmp_path, IN_PLACE, *described("--faults", "kill"))
    assert (code, result["verdict"]) == (1, "fail")
    assert {v["invariant"] for v in result["violations"]} == {"resumable"}
    bundled = [v for v in result["violations"] if v.get("bundle")]
    assert bundled
    bundle = tmp_path / "out" / bundled[0]["bundle"]
    assert (bundle / "case.json").is_file()
    assert cli.main(["reproduce", str(bundle)]) == 1


@pytest.mark.parametrize("out", ["out of the way", "reports/mine"])
def test_the_printed_command_shows_the_case_again(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    out: str,
) -> None:
    """As it is printed, wherever the results went, and of the program that was run last."""
    monkeypatch.chdir(tmp_path)
    options = described("--faults", "kill", "--name", "mine", "--out", out)
    never_resumes = RIGHT.replace("state = json.load", "sys.exit('no')")
    for place, source in (("before", never_resumes), ("now", IN_PLACE)):
        capsys.readouterr()
        (tmp_path / place).mkdir()
        assert check(tmp_path / place, source, *options)[0] == 1
    result = json.loads((tmp_path / out / "result.json").read_text())
    printed = capsys.readouterr().out
    unbundled = [v for v in result["violations"] if not v.get("bundle")]
    bundled = [v for v in result["violations"] if v.get("bundle")]
    assert f"reproduce   {bundled[0]['reproduce']}" in printed
    for violation in (bundled[0], unbundled[0]):
        words = shlex.split(violation["reproduce"])
        assert words[0] == "durability"
        assert cli.main(words[1:]) == 1
        assert f"reproduced: {violation['case']}" in capsys.readouterr().out
    assert cli.main(["explain", *shlex.split(bundled[0]["reproduce"])[2:]]) == 0
    assert f"step by step   {bundled[0]['reproduce']}" in capsys.readouterr().out


def test_a_missing_directory_fsync_is_seen_by_power_and_not_by_kills(tmp_path: Path) -> None:
    code, result = check(
        tmp_path, NO_DIRECTORY_FSYNC, *described("--faults", "kill,power", "--models", "posix,xfs")
    )
    assert code == 1
    assert result["layers"]["kill"]["failed"] == 0
    assert result["layers"]["power/posix"]["failed"] > 0
    assert result["layers"]["power/xfs"]["failed"] > 0
    assert {v["invariant"] for v in result["violations"]} >= {"no-lost-ack", "ack-after-durable"}
    assert all("fsync(" in v["needs"] for v in result["violations"] if v.get("needs"))


def test_equal_reads_do_not_change_a_verdict(tmp_path: Path) -> None:
    options = described("--faults", "power", "--models", "posix")
    _, with_it = check(tmp_path, NO_DIRECTORY_FSYNC, *options)
    _, without = check(tmp_path, NO_DIRECTORY_FSYNC, *options, "--no-equal-reads")
    for key in ("cases", "failed", "states"):
        assert with_it["layers"]["power/posix"][key] == without["layers"]["power/posix"][key]
    assert with_it["layers"]["power/posix"]["equal_reads"] > 0
    assert without["layers"]["power/posix"].get("equal_reads", 0) == 0
    told = [[(v["case"], v["invariant"]) for v in r["violations"]] for r in (with_it, without)]
    assert told[0] == told[1]


def test_forks_and_processes_give_the_same_verdicts(tmp_path: Path) -> None:
    for source in (RIGHT, IN_PLACE):
        options = described("--faults", "kill")
        _, forked = check(tmp_path, source, *options)
        _, processes = check(tmp_path, source, *options, "--no-fork")
        told = [[(v["case"], v["invariant"]) for v in r["violations"]] for r in (forked, processes)]
        assert told[0] == told[1]
        assert forked["layers"]["kill"]["cases"] == processes["layers"]["kill"]["cases"]


UNSEEDED = RIGHT.replace("0.25}", "__import__('random').random()}")


@pytest.mark.parametrize(
    ("source", "options", "code", "said"),
    [
        (UNSEEDED, described(), 3, "not deterministic: step 1 had loss"),
        ("print('step=1 loss=1')", ("--loss-regex", LOSS), 2, "wrote nothing under {root}"),
        (RIGHT, ("--loss-regex", r"(?P<step>x)(?P<loss>y)"), 2, "no line matched the losses'"),
        (RIGHT, ("--ack-regex", r"never (?P<step>\d+)"), 2, "no line matched the acknowledg"),
        (RIGHT, ("--final", "final.bin"), 2, "matches nothing"),
        (RIGHT, ("--loss-regex", r"step=(\d+)"), 2, "(?P<step>...)"),
        ("import sys; sys.exit('boom')", (), 2, "boom"),
        (RIGHT.replace("saved step={state['step']}", "saved step=99"), described(), 2, "99"),
    ],
)
def test_each_mistake_has_its_sentence_and_exit_code(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    source: str,
    options: tuple[str, ...],
    code: int,
    said: str,
) -> None:
    assert check(tmp_path, source, *options)[0] == code
    assert said in capsys.readouterr().err


def test_words_are_looked_for_where_they_are_said_to_be(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs = RIGHT.replace(
        "saved step={state['step']}\"", "saved step={state['step']}\", file=sys.stderr"
    )
    assert check(tmp_path, logs, *described("--faults", "kill"))[0] == 2
    hint = 'stderr has lines that match: say from = "stderr" (or --ack-from stderr)'
    assert hint in capsys.readouterr().err
    assert check(tmp_path, logs, *described("--faults", "kill", "--ack-from", "stderr"))[0] == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--resume", "python x.py", "--", "python", "x.py", "{root}"), "the command that resumes"),
        (("{here}",), "is a directory; name one subject file"),
        (("one.toml", "--", "python", "x.py", "{root}"), "a subject file stands alone"),
    ],
)
def test_a_command_line_that_cannot_be_meant_is_told_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    line = [word.replace("{here}", str(tmp_path)) for word in words]
    assert cli.main(["check", "--out", str(tmp_path / "out"), *line]) == 2
    assert said in capsys.readouterr().err


def test_a_resume_that_acknowledges_too_early_is_killed_a_second_time(tmp_path: Path) -> None:
    """Only a resumed run says it before the rename, and the first kill finds nothing wrong."""
    early = RIGHT.replace("if os.path.exists(path):", "again = os.path.exists(path)\n    if again:")
    early = early.replace(
        '        os.rename(path + ".tmp", path)',
        """        if again:
            print(f"saved step={state['step']}", flush=True)
        os.rename(path + ".tmp", path)""",
    )
    code, result = check(tmp_path, early, *described("--faults", "kill,double"))
    assert code == 1
    assert {v["invariant"] for v in result["violations"]} >= {"no-lost-ack"}
    assert {v["case"].partition("/")[2].partition("@")[0] for v in result["violations"]} == {
        "double"
    }


def test_a_program_that_hangs_in_its_resume_is_bounded_and_named(tmp_path: Path) -> None:
    hangs = RIGHT.replace("state = json.load(open(path))", "__import__('time').sleep(600)")
    code, result = check(tmp_path, hangs, *described("--faults", "kill", "--timeout", "1s"))
    assert code == 1
    assert {v["invariant"] for v in result["violations"]} == {"resumable"}
    said = "were not run: 3 cases had reached their time limit with SIGKILL"
    assert any(said in note for note in result["notes"])


def test_ids_are_the_same_although_names_are_made_at_random(tmp_path: Path) -> None:
    source = NO_DIRECTORY_FSYNC.replace('path + ".tmp"', "new").replace(
        "        state = {", "        new = path + os.urandom(4).hex()\n        state = {", 1
    )
    options = described("--faults", "kill,power", "--models", "posix")
    found = []
    for number in (1, 2):
        directory = tmp_path / str(number)
        directory.mkdir()
        code, result = check(directory, source, *options)
        assert code == 1
        found.append([v["case"] for v in result["violations"]])
    assert found[0] == found[1]
    assert any("@output-stdout#" in case for case in found[0])


def test_a_program_that_says_much_is_heard_to_its_end(tmp_path: Path) -> None:
    """And where it says too much, that is said: what comes later is not kept."""
    chatty = RIGHT.replace("    while state", "    print('x' * (2 << 20))\n    while state", 1)
    code, result = check(tmp_path, chatty, *described("--faults", "kill"))
    assert (code, result["violations"]) == (0, [])
    assert result["configs"]["train"]["steps"] == 4


def test_a_program_that_says_too_much_cannot_be_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    floods = RIGHT.replace("    while state", "    print('x' * (9 << 20))\n    while state", 1)
    assert check(tmp_path, floods, *described("--faults", "kill"))[0] == 3
    assert "wrote more than 8,388,608 bytes to stdout" in capsys.readouterr().err


def test_what_a_resume_says_too_much_and_whom_it_leaves_behind_is_told(tmp_path: Path) -> None:
    floods = RIGHT.replace(
        "    while state",
        "    if state['step']: print('x' * (9 << 20)); sys.exit(1)\n    while state",
        1,
    )
    code, result = check(tmp_path, floods, *described("--faults", "kill"))
    assert code == 1
    assert "stdout was cut after 8,388,608 bytes" in result["violations"][0]["evidence"]


def test_processes_left_behind_are_told(tmp_path: Path) -> None:
    leaves = RIGHT + "    import subprocess; subprocess.Popen(['sleep', '600'])\n"
    _, result = check(tmp_path, leaves, *described("--faults", "kill", "--filter", "*@end*"))
    said = "the uninterrupted run: processes that it left behind were killed: sleep 600"
    assert any(note.endswith(said) for note in result["notes"])


def test_a_signal_after_which_the_program_hangs_does_not_hide_another(tmp_path: Path) -> None:
    """On SIGINT it never ends; on SIGTERM it loses what it had."""
    loses = "[os.unlink(os.path.join(root, n)) for n in os.listdir(root)]; sys.exit(1)"
    handlers = f"""
    import signal, time
    def gone(*_): {loses}
    signal.signal(signal.SIGINT, lambda *_: time.sleep(600))
    signal.signal(signal.SIGTERM, gone)
"""
    source = RIGHT.replace("    path =", f"{handlers}    path =", 1)
    code, result = check(tmp_path, source, *described("--faults", "signal", "--timeout", "1s"))
    assert code == 1
    assert all("SIGTERM" in v["case"] for v in result["violations"])
    said = "reached their time limit with SIGINT, and were killed then"
    assert any(said in note for note in result["notes"])


def test_no_root_in_the_command_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert check(tmp_path, RIGHT, words=("/tmp/elsewhere",))[0] == 2
    assert "{root}" in capsys.readouterr().err


@pytest.mark.parametrize("layer", ["kill", "power"])
def test_a_filter_that_matches_nothing_is_no_pass(tmp_path: Path, layer: str) -> None:
    options = ("--faults", layer, "--models", "posix", "--filter", "nothing*")
    code, result = check(tmp_path, RIGHT, *described(*options))
    assert (code, result["verdict"], result["layers"]) == (3, "inconclusive", {})
    assert [reason.partition(" (")[0] for reason in result["reasons"]] == [
        "no case was run: --filter 'nothing*' matches no case's id"
    ]


def records(tmp_path: Path) -> list[dict[str, Any]]:
    """What cases.jsonl says."""
    lines = (tmp_path / "out" / "cases.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def test_a_filter_chooses_among_the_states_of_a_power_loss(tmp_path: Path) -> None:
    options = described("--faults", "power", "--models", "posix,xfs")
    _, everything = check(tmp_path, NO_DIRECTORY_FSYNC, *options)
    all_records = records(tmp_path)
    posix = [r for r in all_records if r["layer"] == "power/posix"]
    _, layer = check(tmp_path, NO_DIRECTORY_FSYNC, *options, "--filter", "*power-posix*")
    assert records(tmp_path) == posix
    assert list(layer["layers"]) == ["power/posix"]
    for key in ("states", "failed"):
        assert layer["layers"]["power/posix"][key] == everything["layers"]["power/posix"][key]

    [first, *_] = [r for r in posix if r["verdict"] == "fail"]
    code, one = check(tmp_path, NO_DIRECTORY_FSYNC, *options, "--filter", first["case"])
    assert (code, records(tmp_path)) == (1, [first])
    assert {v["case"] for v in one["violations"]} == {first["case"]}
    assert [(c["cases"], c["failed"], c["states"]) for c in one["layers"].values()] == [(1, 1, 1)]
    # What a failing state would have to keep is named by its own id, and is judged by it too.
    [holds, *_] = [v["holds_if"] for v in one["violations"] if v.get("holds_if")]
    code, one = check(tmp_path, NO_DIRECTORY_FSYNC, *options, "--filter", holds)
    assert (code, one["verdict"], [r["case"] for r in records(tmp_path)]) == (0, "pass", [holds])

    [place, *_] = [r for r in posix if r["verdict"] == "pass"]
    check(tmp_path, NO_DIRECTORY_FSYNC, *options, "--filter", place["case"])
    assert place in records(tmp_path)


def test_the_progress_of_the_power_layer_ends_with_the_states_that_it_counts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = described("--name", "toy", "--faults", "power", "--models", "posix,xfs")
    _, result = check(tmp_path, RIGHT, *options)
    states = sum(layer["states"] for layer in result["layers"].values())
    said = [line.partition("   ")[0] for line in capsys.readouterr().err.splitlines()]
    assert said[0] == "toy power: 0/1"
    assert said[-1] == f"toy power: 1/1, {states} states judged"


def test_what_a_killed_program_leaves_in_its_temporary_directory_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the file system of the system's: a rename from there may cross to another one."""
    system = tmp_path / "system"
    system.mkdir()
    monkeypatch.setenv("TMPDIR", str(system))
    monkeypatch.setattr(tempfile, "tempdir", None)
    uses_it = f"""
    import tempfile
    kept = tempfile.mkdtemp()
    assert kept.startswith({str(system)!r} + "/durability-"), kept
    assert os.stat(kept).st_dev == os.stat({str(system)!r}).st_dev
    assert len(os.listdir(os.path.dirname(kept))) < 4, "earlier cases left theirs here"
    """
    source = RIGHT.replace("    root =", uses_it.strip("\n") + "\n    root =", 1)
    for more in (), ("--no-fork",):
        options = described("--faults", "kill,power", "--models", "posix", *more)
        assert check(tmp_path, source, *options)[0] == 0
        assert list(system.iterdir()) == []
