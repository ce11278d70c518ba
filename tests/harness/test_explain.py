"""Which fsyncs mend a program and which nobody needs; and ``durability explain`` as it is used."""

import os
import re
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.crash_states import State, cause_of, enumerate_states
from fault_injection.crash_states.space import world_sees
from fault_injection.trace import Kind
from harness import cli
from harness.commands.explain import model_lines
from harness.explaining import Explained, Why
from harness.mending import Mending, Search, Sparing, Sync, mended, spared
from harness.power.reasons import line_ended_by, reason_of
from tests.fault_injection.traces import Build

needs_seccomp = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)


def saves(build: Build, *, count: int = 3, file: bool, directory: bool) -> Build:
    """Some saves of one checkpoint by a rename, each acknowledged, synced as it is said."""
    for number in range(1, count + 1):
        build.create("state.tmp", b"state %d" % number)
        if file:
            build.fsync("state.tmp")
        build.rename("state.tmp", "state")
        if directory:
            build.fsync()
        build.output(f"saved step={number}\n")
    return build


def resumes(state: State) -> bool:
    """The newest acknowledged state, or a newer one, is whole."""
    tree = state.tree()
    if b"state" not in tree.entries:
        return state.outputs == 0
    found = tree.read(b"state")
    return found in [b"state %d" % n for n in range(max(1, state.outputs), 4)]


def search(build: Build, model: str, is_good: Callable[[State], bool] = resumes) -> Search:
    trace = build.trace()
    return Search(trace, model, world_sees(trace), is_good)


def words(syncs: tuple[Sync, ...]) -> list[str]:
    return [f"{sync.words} x{sync.times}" for sync in syncs]


@pytest.mark.parametrize("model", ["posix", "ext4", "xfs", "btrfs"])
def test_a_missing_directory_fsync_is_one_line_however_many_saves(model: str) -> None:
    found = mended(search(saves(Build(), file=True, directory=False), model))
    assert (found.complete, found.smallest, found.beyond) == (True, True, "")
    # An fsync of the file would do on most of them; that of the directory does on all.
    assert words(found.add) == ["fsync(the root directory) after #3 rename state.tmp -> state x3"]


def test_two_missing_lines_are_found_and_no_single_one_would_do() -> None:
    found = mended(search(saves(Build(), file=False, directory=False), "posix"))
    assert (found.complete, found.smallest) == (True, True)
    assert words(found.add) == [
        "fsync(state.tmp) after #1 write state.tmp (7 bytes at 0) x3",
        "fsync(the root directory) after #2 rename state.tmp -> state x3",
    ]


@pytest.mark.parametrize("model", ["posix", "ext4", "xfs", "btrfs"])
def test_a_file_that_has_no_name_any_more_is_not_to_be_synced(model: str) -> None:
    """A rollback journal's removal is the commit; most file systems commit it with any fsync."""
    build = Build({"db": b"old"})
    for number in (1, 2):
        build.create("db-journal", b"old")
        build.fsync("db-journal")
        build.fsync()
        build.write("db", b"n%d!" % number, offset=0)
        build.fsync("db")
        build.unlink("db-journal")
        build.output(f"saved step={number}\n")

    def committed(state: State) -> bool:
        tree = state.tree()
        rolls_back = b"db-journal" in tree.entries and tree.read(b"db-journal") == b"old"
        return state.outputs == 0 or not rolls_back or state.place not in (8, 16)

    found = mended(search(build, model, committed))
    assert (found.complete, found.smallest) == (True, True)
    assert words(found.add) == ["fsync(the root directory) after #6 unlink db-journal x2"]


def test_a_file_without_a_name_that_is_to_get_one_is_synced() -> None:
    build = Build()
    inode = build.tmpfile(b"state 1")
    build.link(inode, "state")
    build.fsync()
    build.output("saved\n")
    assert words(mended(search(build, "posix")).add) == [
        "fsync(the nameless file) after #1 write (nameless file) (7 bytes at 0) x1"
    ]


def on_line(build: Build, site: str, first: int) -> None:
    """Every operation from ``first`` on was made by one line."""
    for op in build.operations[first:]:
        build.operations[op.index] = replace(op, site=site, stack=f"{site} @4")


def test_one_line_is_one_fsync_whatever_its_files_are_called() -> None:
    build = Build()
    for number, name in enumerate(("tmp-xk", "tmp-qz", "tmp-ab"), start=1):
        build.create(name, b"state %d" % number)
        build.fsync(name)
        rename = build.rename(name, "state")
        on_line(build, "train.py:9", rename)
        build.output(f"saved step={number}\n")
    found = mended(search(build, "posix"))
    assert (found.complete, found.smallest) == (True, True)
    assert words(found.add) == ["fsync(the root directory) after #3 rename tmp-xk -> state x3"]


def test_what_a_line_syncs_of_several_files_is_named() -> None:
    """Those of one save; of names made at random the first."""
    build = Build()
    for number in (1, 2):
        for name in ("weights", "moments", f"tmp-{number}{'xy'[number - 1]}"):
            first = build.create(name) + 1
            build.write(name, b"%d" % number)
            on_line(build, "train.py:9", first)
        build.fsync()
        build.output(f"saved step={number}\n")
        for name in ("weights", "moments"):
            build.unlink(name)
    stable = frozenset({b"weights", b"moments"})

    def whole(state: State) -> bool:
        tree = state.tree()
        just_told = state.space.history.trace.operations[state.place - 1].kind is Kind.OUTPUT
        return (
            state.outputs != 1
            or not just_told
            or all(tree.read(name) == b"1" for name in tree.entries)
        )

    trace = build.trace()
    asked = Search(trace, "xfs", world_sees(trace), whole, names=stable)
    found = mended(asked)
    assert (found.complete, found.smallest) == (True, True)
    after = "after #1 write weights (1 bytes at 0)"
    files = "fsync(weights) and fsync(moments) and fsync(tmp-1x)"
    assert words(found.add) == [f"{files} {after} x6"]


@pytest.mark.parametrize("model", ["posix", "ext4", "xfs", "btrfs"])
def test_of_several_files_that_one_line_writes_the_one_that_needs_it_is_named(model: str) -> None:
    build = Build()
    for number in (1, 2, 3):
        directory = f"step-{number}"
        build.mkdir(directory)
        for shard in ("shard-0", "shard-1", "shard-2"):
            first = build.create(f"{directory}/{shard}") + 1
            build.write(f"{directory}/{shard}", b"%d" % number)
            on_line(build, "train.py:9", first)
            if shard != "shard-1":
                build.fsync(f"{directory}/{shard}")
        build.fsync(directory)
        build.fsync()
        build.output(f"saved step={number}\n")

    def whole(state: State) -> bool:
        tree = state.tree()
        return all(
            tree.entries.get(path) and tree.read(path) == b"%d" % number
            for number in range(1, state.outputs + 1)
            for path in (b"step-%d/shard-%d" % (number, shard) for shard in range(3))
        )

    found = mended(search(build, model, whole))
    assert (found.complete, found.smallest) == (True, True)
    after = "after #5 write step-1/shard-1 (1 bytes at 0)"
    assert words(found.add) == [f"fsync(step-1/shard-1) {after} x3"]


def test_of_two_slots_both_are_named() -> None:
    build = Build({"slot-0": b"0", "slot-1": b"0"})
    for number in (1, 2, 3, 4):
        first = build.write(f"slot-{number % 2}", b"%d" % number, offset=0)
        on_line(build, "train.py:9", first)
        build.output(f"saved step={number}\n")

    def newest(state: State) -> bool:
        tree = state.tree()
        return max(tree.read(b"slot-0"), tree.read(b"slot-1")) >= b"%d" % state.outputs

    found = mended(search(build, "ext4", newest))
    assert found.complete
    after = "after #0 write slot-1 (1 bytes at 0)"
    assert words(found.add) == [f"fsync(slot-1) and fsync(slot-0) {after} x4"]


def test_what_a_kill_breaks_no_fsync_mends() -> None:
    build = Build({"state": b"state 1"})
    build.truncate("state", 0)
    build.write("state", b"state 2", offset=0)
    found = mended(search(build, "xfs"))
    assert found == Mending(beyond="a kill does the same after #0 truncate state to 0 bytes")


def test_what_fails_whatever_is_synced_is_said_so() -> None:
    """A write in place of more than a sector may be torn in the moment in which it is made."""
    old, new = b"old " * 500, b"new " * 500
    build = Build({"state": old})
    build.write("state", new, offset=0)

    def whole(state: State) -> bool:
        return state.tree().read(b"state") in (old, new)

    assert mended(search(build, "posix", whole)) == Mending(
        beyond="a state after #0 write state (2000 bytes at 0) fails whatever is synced"
    )


def test_syncs_that_nobody_needs_are_found_by_line_and_by_model() -> None:
    build = saves(Build(), file=True, directory=True)
    assert words(spared(search(build, "posix")).needed) == [
        "#2 fsync state.tmp x3",
        "#4 fsync the root x3",
    ]
    twice = Build()
    twice.mkdir("unused")
    twice.fsync("unused")
    twice.sync()
    saves(twice, file=True, directory=True)
    found = spared(search(twice, "posix"))
    assert words(found.spare) == ["#1 fsync unused/ x1", "#2 sync x1"]
    assert found.all_spare


def test_spare_ones_that_stand_in_for_each_other_are_told_from_those_that_may_all_go() -> None:
    build = Build()
    build.create("state.tmp", b"state 1")
    build.fsync("state.tmp")
    build.fdatasync("state.tmp")
    build.rename("state.tmp", "state")
    build.fsync()
    build.output("saved\n")
    found = spared(search(build, "posix"))
    assert words(found.spare) == ["#2 fsync state.tmp x1", "#3 fdatasync state.tmp x1"]
    assert not found.all_spare


def test_two_calls_of_one_helper_are_two_lines() -> None:
    """One directory fsync before the rename, which nobody needs, and one after it."""
    build = Build()
    stacks = {}
    for number in range(1, 4):
        build.create("state.tmp", b"state %d" % number)
        build.fsync("state.tmp")
        stacks[build.fsync()] = "a.py:2 sync() < a.py:9 save() @4,8"
        build.rename("state.tmp", "state")
        stacks[build.fsync()] = "a.py:2 sync() < a.py:11 save() @4,8"
        build.output(f"saved step={number}\n")
    for index, stack in stacks.items():
        build.operations[index] = replace(
            build.operations[index], site="a.py:2 sync()", stack=stack
        )
    found = spared(search(build, "ext4"))
    assert [(s.site, s.times) for s in found.spare] == [("a.py:2 sync() from a.py:9 save()", 3)]
    assert ("a.py:2 sync() from a.py:11 save()", 3) in [(s.site, s.times) for s in found.needed]


def test_states_that_miss_one_fsync_share_a_signature_whatever_they_lost() -> None:
    build = saves(Build(), file=True, directory=False)
    bad = [s for s in enumerate_states(build.trace(), model="posix") if not resumes(s)]
    reasons = [reason_of(state, cause_of(state, resumes)) for state in bad]
    assert len({state.lost() for state in bad}) > 5
    assert {reason.signature for reason in reasons} == {"fsync(the root directory)"}
    assert reasons[0].needs == (
        "fsync(the root directory) between #3 rename state.tmp -> state and "
        '#4 the acknowledgement "saved step=1"'
    )


def test_an_acknowledgement_printed_in_two_writes_is_named_by_its_whole_line() -> None:
    build = Build()
    for part in ("an earlier line\nsaved ", "step=4", "\n", "more\n"):
        build.output(part)
    trace = build.trace()
    assert [line_ended_by(trace, i) for i in range(4)] == [
        "saved",
        "saved step=4",
        "saved step=4",
        "more",
    ]


def said(explained: Explained) -> list[str]:
    lines = model_lines(explained, with_why=True, budget_s=60.0)
    return [" ".join(line.split()) for line in lines]


def test_what_is_said_of_a_model() -> None:
    add = Sync("fsync(a/) after #3 rename b -> c", "train.py:9 save()", 4)
    failing = Explained("xfs", 40, 3, True, mending=Mending((add,), complete=True, smallest=False))
    assert said(failing) == [
        "power/xfs 3 of 40 crash states fail, sampled",
        "add fsync(a/) after #3 rename b -> c train.py:9 save() (4 times in this run)",
        "then no explored state (they are a sample) fails; a smaller set may do",
        "",
    ]
    spare = Sync("#2 fsync a", "", 1)
    correct = Explained("ext4", 7, 0, False, sparing=Sparing((spare,), (), False))
    assert said(correct)[:3] == [
        "power/ext4 none of 7 crash states fails",
        "spare #2 fsync a",
        "without the spare one no explored state fails under ext4",
    ]
    late = Explained("posix", 900, 0, False, stopped="not every crash state was judged")
    assert said(late)[1] == (
        "stopped after 60.0 s: not every crash state was judged (--budget gives it more)"
    )


def test_a_bad_state_without_an_order_is_not_given_one() -> None:
    build = Build({"state": b"state 1"})
    build.create("other")
    state = list(enumerate_states(build.trace(), model="posix"))[-1]
    why = Why((), reason_of(state, None))
    explained = Explained("posix", 2, 1, False, why=why)
    assert said(explained)[1].startswith(("needs no order", "crash"))


# The command, on a program.

PROGRAM = """
    import os, sys

    path = os.path.join(sys.argv[1], "state")
    step = int(open(path).read()) if os.path.exists(path) else 0
    while step < 2:
        step += 1
        print(f"step={step} loss={step / 7}", flush=True)
        with open(path + ".tmp", "w") as file:
            file.write(str(step))
            file.flush()
            os.fsync(file.fileno())
        os.rename(path + ".tmp", path)
        if SYNCED:
            os.fsync(os.open(sys.argv[1], os.O_RDONLY))
        print(f"saved step={step}", flush=True)
    """

SUBJECT = r"""
    name = "small"
    train = ["python", "train.py", "{root}"]
    [losses]
    from = "stdout"
    pattern = 'step=(?P<step>\d+) loss=(?P<loss>\S+)'
    [acknowledged]
    from = "stdout"
    pattern = 'saved step=(?P<step>\d+)'
    """


def subject(directory: Path, *, synced: bool) -> str:
    program = textwrap.dedent(PROGRAM).replace("SYNCED", str(synced))
    (directory / "train.py").write_text(program)
    (directory / "small.toml").write_text(textwrap.dedent(SUBJECT))
    return str(directory / "small.toml")


@needs_seccomp
def test_explain_of_a_program_that_is_correct(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["explain", subject(tmp_path, synced=True), "--models", "xfs"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("power/xfs none of ")
    # Where in the trace it stands depends on how many writes a printed line takes.
    assert re.search(r"#\d+ fsync state\.tmp train\.py:12", lines[1])
    assert lines[3] == "each of its syncs is needed"


@needs_seccomp
def test_explain_of_a_bundle_names_the_order_and_the_fsync_to_add(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = subject(tmp_path, synced=False)
    assert cli.main(["check", file, "--faults", "power", "--models", "xfs", "--jobs", "1"]) == 1
    [bundle] = (tmp_path / "reports" / "check" / "failures").iterdir()
    capsys.readouterr()
    assert cli.main(["explain", os.path.relpath(bundle), "--models", "xfs"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert lines[0].startswith("why small/power-xfs@")
    needs = next(line for line in lines if line.startswith("needs"))
    between = r"needs fsync\(the root directory\) between #\d+ rename state\.tmp -> state and "
    assert re.match(between, needs)
    assert "train.py:13" in needs
    adds = [line for line in lines if line.startswith("add")]
    assert len(adds) == 1
    after = r"add fsync\(the root directory\) after #\d+ rename state\.tmp -> state"
    assert re.match(after, adds[0])
    assert lines[-2] == "then no state fails; no smaller set does"


def test_a_budget_that_is_not_enough_is_said_and_is_exit_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", subject(tmp_path, synced=True), "--models", "xfs", "--budget", "0.001s"]
    assert cli.main(words) == 3
    assert "stopped after" in capsys.readouterr().out


def test_wrong_usage_is_exit_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = subject(tmp_path, synced=True)
    assert cli.main(["explain", file, "--subject", file]) == 2
    assert cli.main(["explain", str(tmp_path / "nothing.toml")]) == 2
    assert cli.main(["explain", "no-such/power-xfs@start-00000000"]) == 2
    assert "Traceback" not in capsys.readouterr().err
