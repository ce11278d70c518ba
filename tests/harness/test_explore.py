"""``explore``: what it finds in small programs, what the checks see, and what it refuses."""

import json
import mmap
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fault_injection import leftovers, processes, seccomp
from harness import checking, explore
from harness.errors import CannotJudge, UsageError
from harness.explore_api import Exploration

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)

MODELS = ["posix", "ext4", "xfs", "btrfs"]


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No workspace is left by any test."""
    home = tmp_path / "workspaces"
    home.mkdir()
    monkeypatch.setenv(leftovers.ENV_HOME, str(home))
    yield
    assert list(home.iterdir()) == []


def in_place(root: Path, text: str) -> None:
    (root / "note").write_text(text)


def renamed(root: Path, text: str) -> None:
    (root / "note.tmp").write_text(text)
    os.replace(root / "note.tmp", root / "note")


def synced(root: Path, text: str) -> None:
    with open(root / "note.tmp", "w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(root / "note.tmp", root / "note")


def durable(root: Path, text: str) -> None:
    synced(root, text)
    directory = os.open(root, os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)


def load(root: Path) -> str:
    return (root / "note").read_text()


def old_or_new(root: Path) -> bool:
    return load(root) in ("old", "new")


def of(save: object, check: object = old_or_new, **more: object) -> Exploration:
    arguments: dict[str, object] = {
        "setup": lambda root: durable(root, "old"),
        "workload": lambda root: save(root, "new"),  # type: ignore[operator]
        "check": check,
        **more,
    }
    return explore(**arguments)  # type: ignore[arg-type]


def failed(exploration: Exploration) -> dict[str, int]:
    return {model: count.failed for model, count in exploration.counts.items()}


def processes_below() -> list[int]:
    path = f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children"
    return [int(word) for word in Path(path).read_text().split()]


def test_a_rename_without_fsync_fails_except_where_ext4_flushes_it() -> None:
    found = of(renamed)
    assert failed(found) == {"posix": 5, "ext4": 0, "xfs": 1, "btrfs": 1}
    smallest = found.violations[0]
    assert smallest.model == "posix"
    assert smallest.error.startswith("the check returned False")
    assert smallest.lost == ("#1 write note.tmp (3 bytes at 0)   not durable at the crash",)
    assert smallest.left == ("note (0 bytes)",)
    assert smallest.needs == (
        "fsync(note.tmp) between #1 write note.tmp (3 bytes at 0) and #2 rename note.tmp -> note"
    )
    assert [step.status for step in smallest.steps] == ["durable", "lost", "durable"]


def test_the_text_says_what_was_durable_what_was_lost_and_which_fsync_is_missing() -> None:
    with pytest.raises(AssertionError) as raised:
        of(renamed, models=["posix", "xfs"]).raise_for_violations()
    lines = [" ".join(line.split()) for line in str(raised.value).splitlines()]
    assert lines[0] == "the check fails on crash states posix 5 of 13, xfs 1 of 5"
    assert lines[2] == "FAIL under posix: the check returned False"
    here = os.path.basename(__file__)
    assert lines[3].startswith("needs fsync(note.tmp) between #1 write note.tmp (3 bytes at 0) and")
    assert here in lines[3]
    assert lines[4] == "lost #1 write note.tmp (3 bytes at 0) not durable at the crash"
    assert lines[5] == "crash after #2 rename note.tmp -> note"
    assert lines[6] == "left note (0 bytes)"
    assert lines[7].startswith("#0 durable create note.tmp")
    assert lines[8].startswith("#1 LOST write note.tmp (3 bytes at 0)")
    assert lines[9].startswith("#2 durable rename note.tmp -> note")
    assert lines[10] == "══ CRASH ══ after #2 rename note.tmp -> note"
    assert lines[11] == "also under xfs"


def test_a_correct_save_passes_and_says_how_much_was_looked_at() -> None:
    found = of(durable)
    assert failed(found) == dict.fromkeys(MODELS, 0)
    assert found.counts["posix"].states == 8
    assert found.checks == 2  # all that it reads is the note
    every = of(durable, equal_reads=False)
    assert every.checks == 8  # what ext4, xfs and btrfs may leave, posix may leave
    assert not any(count.sampled for count in found.counts.values())
    assert found.operations == (
        "create note.tmp",
        "write note.tmp (3 bytes at 0)",
        "fsync note.tmp",
        "rename note.tmp -> note",
        "fsync the root",
    )
    found.raise_for_violations()


def test_what_no_fsync_mends_is_said_so() -> None:
    found = of(in_place, models=["xfs"])
    assert found.violations[0].lost == ()
    assert "a kill at this place does the same, and no fsync mends it" in found.text()


def test_a_check_that_fails_on_what_setup_left_is_told_apart() -> None:
    found = of(durable, check=lambda root: load(root) == "new", models=["xfs"])
    assert found.violations[0].crash == "before the first operation"
    assert "the check fails on the tree that setup left" in found.text()


def test_what_was_printed_by_then_is_told_to_a_check_that_asks() -> None:
    def says_when_done(root: Path, text: str) -> None:
        synced(root, text)
        print("saved", text)

    def kept(root: Path, told: list[str]) -> bool:
        assert told in ([], ["saved new"])
        return load(root) == "new" or not told

    found = of(says_when_done, check=kept)
    # The rename is lost; under posix the temporary name may be lost with it, or not.
    assert failed(found) == {"posix": 2, "ext4": 1, "xfs": 1, "btrfs": 1}
    assert found.violations[0].told == ("saved new",)
    assert found.violations[0].needs == (
        "fsync(the root directory) between #3 rename note.tmp -> note "
        'and #4 the acknowledgement "saved new"'
    )
    # A state that had been told is another state than the same tree before.
    assert of(says_when_done).checks < found.checks


def test_all_lines_that_were_complete_by_then_are_told() -> None:
    def talks(root: Path, text: str) -> None:
        durable(root, text)
        sys.stdout.write("one\ntwo\nthr")
        sys.stdout.flush()
        sys.stdout.write("ee\nfour")
        sys.stdout.flush()

    told_ever: tuple[list[str], ...] = ([], ["one", "two"], ["one", "two", "three"])
    found = of(talks, check=lambda _, told: told in told_ever, models=["btrfs"])
    assert failed(found) == {"btrfs": 0}
    assert found.counts["btrfs"].states == of(durable, models=["btrfs"]).counts["btrfs"].states + 2


def test_an_interrupt_ends_all_of_it(tmp_path: Path) -> None:
    def hangs(_: Path) -> None:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        (tmp_path / "pid").write_text(str(child.pid))
        os.rename(tmp_path / "pid", tmp_path / "started")
        time.sleep(600)

    def interrupt() -> None:
        for _ in range(60_000):
            if (tmp_path / "started").exists():
                break
            time.sleep(0.001)
        os.kill(os.getpid(), signal.SIGINT)

    other = threading.Thread(target=interrupt)
    other.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            of(durable, check=hangs, models=["xfs"], timeout_s=90.0)
    finally:
        other.join()
    assert processes_below() == []
    assert processes.living([int((tmp_path / "started").read_text())]) == []


def test_an_assertion_is_a_violation_and_none_is_not() -> None:
    def check(root: Path) -> None:
        assert load(root) in ("old", "new"), "neither\nold nor new"

    assert failed(of(durable, check=check, models=["xfs"])) == {"xfs": 0}
    wrong = of(renamed, check=check, models=["xfs"]).violations[0]
    name = os.path.basename(__file__)
    line = check.__code__.co_firstlineno + 1
    assert wrong.error == f"AssertionError: neither   at {name}:{line} check()"
    assert "nor new" in wrong.traceback


def test_checks_do_not_see_each_other_and_nothing_reaches_the_caller() -> None:
    seen: list[str] = []

    def check(root: Path) -> bool:
        seen.append(load(root))
        (root / "left-by-a-check").touch()
        return seen == [load(root)] and "left-by-a-check" not in os.listdir(root)[2:]

    of(durable, check=check).raise_for_violations()
    assert seen == []


def test_workload_and_check_see_what_setup_did_in_memory() -> None:
    known: list[str] = []

    def setup(root: Path) -> None:
        known.append("setup")
        durable(root, "old")

    def check(_: Path) -> bool:
        return known == ["setup"]

    of(durable, check=check, setup=setup).raise_for_violations()
    assert known == []


@pytest.mark.parametrize(
    ("how", "said"),
    [
        (lambda: time.sleep(60), "the check did not end within 0.4 s"),
        (lambda: os.kill(os.getpid(), 9), "the check was killed by SIGKILL"),
        (lambda: os._exit(0), "the check ended without an answer (exit 0)"),
        (lambda: sys.exit(0), "SystemExit: 0"),
    ],
)
def test_a_check_that_hangs_or_dies_is_a_violation(how: object, said: str) -> None:
    def check(root: Path) -> bool:
        if load(root) == "":
            how()  # type: ignore[operator]
        return True

    found = of(renamed, check=check, models=["xfs"], timeout_s=0.4 if "0.4" in said else 30.0)
    assert failed(found) == {"xfs": 1}
    assert found.violations[0].error.startswith(said)
    assert processes_below() == []


@pytest.mark.parametrize(("equal_reads", "runs"), [(True, 1), (False, 4)])
def test_what_a_check_starts_ends_with_it(tmp_path: Path, equal_reads: bool, runs: int) -> None:
    def check(_: Path) -> bool:
        child = subprocess.Popen(["sleep", "600"], start_new_session=True)
        with open(tmp_path / "started", "a") as file:
            file.write(f"{child.pid}\n")
        return True

    of(durable, check=check, models=["btrfs"], equal_reads=equal_reads).raise_for_violations()
    pids = (tmp_path / "started").read_text().split()
    assert len(pids) == runs
    assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []


def test_a_workload_that_cannot_be_traced_is_refused_by_the_name_of_the_call() -> None:
    def mapped(root: Path, text: str) -> None:
        with open(root / "note", "r+b") as file, mmap.mmap(file.fileno(), 3) as shared:
            shared[:] = text.encode()

    with pytest.raises(CannotJudge, match="the workload cannot be traced: mmap"):
        of(mapped)


def test_a_workload_that_fails_by_itself_is_no_verdict() -> None:
    def broken(*_: object) -> None:
        raise KeyError("no such thing")

    with pytest.raises(
        CannotJudge, match=r"(?s)failed by itself.*exit 1.*KeyError: 'no such thing'"
    ):
        of(broken)


def test_a_workload_that_writes_nothing_is_no_verdict() -> None:
    with pytest.raises(CannotJudge, match="changed nothing below the path"):
        of(lambda *words: print(words))


def test_a_workload_that_hangs_is_bounded() -> None:
    with pytest.raises(CannotJudge, match=r"the workload did not end within 0\.4 s"):
        of(lambda *_: time.sleep(60), timeout_s=0.4)
    assert processes_below() == []


def test_what_setup_raises_is_raised() -> None:
    def setup(_: Path) -> None:
        raise LookupError("nothing to set up")

    with pytest.raises(LookupError, match="nothing to set up") as raised:
        of(durable, setup=setup)
    assert "test_explore.py" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"models": ["zfs"]}, "'zfs' is no persistence model; there are"),
        ({"models": "posix"}, "give a list of names"),
        ({"models": []}, "give a list of names"),
        ({"bound": 0}, "at least one set"),
        ({"timeout_s": 0.0}, "has to be more than nothing"),
        ({"root": __file__}, "has to be an empty directory"),
        ({"root": "/no/such/place"}, "/no/such is no directory"),
    ],
)
def test_wrong_arguments_are_named(more: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        of(durable, **more)


def test_the_tree_lies_where_it_was_asked_for_and_is_gone_afterwards(tmp_path: Path) -> None:
    for root in (tmp_path / "made", tmp_path / "there"):
        if root.name == "there":
            root.mkdir()
        existed = root.exists()
        found = of(durable, check=lambda r, root=root: r == root, root=root, models=["xfs"])
        found.raise_for_violations()
        assert root.exists() == existed
        assert not existed or list(root.iterdir()) == []


def test_above_the_bound_states_are_sampled_and_the_result_says_so() -> None:
    def many(root: Path, _: str) -> None:
        for number in range(6):
            (root / f"file-{number}").touch()

    first = of(many, check=lambda _: True, models=["posix"], bound=8)
    again = of(many, check=lambda _: True, models=["posix"], bound=8)
    everything = of(many, check=lambda _: True, models=["posix"])
    assert everything.counts["posix"].states == 2**6
    assert not everything.counts["posix"].sampled
    assert first.counts["posix"].sampled
    assert first.counts == again.counts
    assert "(sampled)" in first.text()


def test_other_threads_of_the_caller_go_on_and_its_children_are_spared() -> None:
    ended = threading.Event()
    counted = [0]

    def count() -> None:
        while not ended.wait(0.001):
            counted[0] += 1

    other = threading.Thread(target=count)
    other.start()
    child = subprocess.Popen(["sleep", "600"])
    try:
        of(durable).raise_for_violations()
        assert child.poll() is None
        assert other.is_alive()
    finally:
        ended.set()
        other.join()
        child.kill()
        child.wait()
    assert counted[0] > 0


def test_a_thread_of_the_workload_is_recorded_and_waited_for() -> None:
    def beside(root: Path, text: str) -> None:
        thread = threading.Thread(target=durable, args=(root, text))
        thread.start()

    assert of(beside, models=["xfs"]).operations == of(durable, models=["xfs"]).operations


def test_from_a_thread_too() -> None:
    found: list[Exploration] = []
    thread = threading.Thread(target=lambda: found.append(of(durable, models=["posix"])))
    thread.start()
    thread.join()
    assert failed(found[0]) == {"posix": 0}


@settings(max_examples=5)
@given(
    old=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
    new=st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
)
def test_it_composes_with_hypothesis(old: dict[str, int], new: dict[str, int]) -> None:
    explore(
        setup=lambda root: durable(root, json.dumps(old)),
        workload=lambda root: durable(root, json.dumps(new)),
        check=lambda root: json.loads(load(root)) in (old, new),
        models=["posix", "btrfs"],
    ).raise_for_violations()


def test_the_harness_alone_is_cheap_to_import() -> None:
    code = (
        "import harness, sys; print('numpy' in sys.modules, 'harness.explore_api' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False False\n"


def step_of_files(root: Path, text: str) -> None:
    """Three files in a directory that is renamed into place; the last is never synced."""
    made = root / "step.tmp"
    made.mkdir()
    for name in ("a", "b", "c"):
        with open(made / name, "w") as file:
            file.write(text * 200)
            file.flush()
            if name != "c":
                os.fsync(file.fileno())
    made.rename(root / "step")


def whole(root: Path) -> None:
    if (root / "step").exists():
        assert {(root / "step" / name).read_text() for name in "abc"} == {"new" * 200}


@pytest.mark.parametrize(
    ("workload", "check"),
    [(in_place, old_or_new), (renamed, old_or_new), (durable, old_or_new), (step_of_files, whole)],
    ids=["in place", "renamed", "durable", "a step of three files"],
)
def test_the_same_is_found_without_equal_reads(
    workload: Callable[[Path, str], None], check: Callable[[Path], object], tmp_path: Path
) -> None:
    found = of(workload, check=check, root=tmp_path / "tree")
    every = of(workload, check=check, root=tmp_path / "tree", equal_reads=False)
    assert found.counts == every.counts
    assert [v.lines() for v in found.violations] == [v.lines() for v in every.violations]
    assert found.checks < every.checks or workload is in_place


def test_a_check_that_depends_on_what_is_not_seen_is_run_on_every_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every second run fails, whatever lies there."""
    monkeypatch.setattr(checking, "_CHECK_EVERY", 1)

    def check(root: Path) -> bool:
        load(root)
        with open(tmp_path / "runs", "a") as file:
            file.write("x")
        return (tmp_path / "runs").stat().st_size % 2 == 1

    assert of(durable, check=check, models=["posix"]).checks == 8
    (tmp_path / "runs").unlink()


def test_a_check_that_reads_everything_is_not_watched_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checking, "_RUNS_BEFORE_COUNTING", 3)

    def check(root: Path) -> None:
        for path in sorted(root.rglob("*")):
            assert path.is_dir() or path.read_bytes() is not None
        watched = "Seccomp:\t2" in Path("/proc/self/status").read_text()
        with open(tmp_path / "watched", "a") as file:
            file.write(str(int(watched)))

    of(step_of_files, check=check, models=["posix"])
    said = (tmp_path / "watched").read_text()
    assert said.startswith("1110")
    assert set(said[3:]) == {"0"}


@pytest.mark.parametrize("joined", [True, False])
def test_a_sync_in_a_thread_counts_when_it_is_waited_for(joined: bool) -> None:
    def save(root: Path, text: str) -> None:
        fd = os.open(root / "note.tmp", os.O_WRONLY | os.O_CREAT)
        os.write(fd, text.encode())
        syncing = threading.Thread(target=os.fsync, args=(fd,))
        syncing.start()
        if joined:
            syncing.join()
        else:
            time.sleep(0.02)  # mostly enough
        os.rename(root / "note.tmp", root / "note")
        syncing.join()
        os.close(fd)

    found = of(save, models=["xfs"])
    assert failed(found) == {"xfs": 0 if joined else 1}


@pytest.mark.parametrize("wrong", ["setup", "workload", "check"])
def test_what_is_no_function_is_named(wrong: str) -> None:
    functions: dict[str, Any] = {"workload": Path.touch, "check": Path.exists, wrong: 7}
    with pytest.raises(UsageError, match=f"{wrong}=7: has to be a function"):
        explore(**functions)


def test_threads_that_nobody_waits_for_come_late() -> None:
    def save(root: Path, *, waited_for: int) -> None:
        (root / "new").mkdir()

        def shard(number: int) -> None:
            with open(root / "new" / f"shard-{number}", "wb") as file:
                file.write(b"whole")
                file.flush()
                os.fsync(file.fileno())

        threads = [threading.Thread(target=shard, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads[3 - waited_for :]:
            thread.join()
        sync_directory(root / "new")
        os.rename(root / "new", root / "done")
        sync_directory(root)
        for thread in threads:
            thread.join()

    def check(root: Path) -> None:
        if (root / "done").exists():
            assert all((root / "done" / f"shard-{n}").read_bytes() == b"whole" for n in range(3))

    right = explore(workload=lambda root: save(root, waited_for=3), check=check)
    assert right.violations == ()
    wrong = explore(workload=lambda root: save(root, waited_for=2), check=check)
    assert all(count.failed for count in wrong.counts.values())


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
