"""Recordings with one thread after another slow: which are kept, what is said, what they find."""

from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.attempt import Attempt
from fault_injection.holding import ALL_OTHERS, MAIN
from harness import cli
from harness.errors import CannotJudge
from harness.recordings import MOST_BYTES, MOST_OTHERS, recorded
from tests.fault_injection.traces import Build
from tests.harness.test_check_command import ACK, LOSS, check

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)


def attempt(*, at_once: int, synced_first: bool = True) -> Attempt:
    """Thread 1 syncs a file, thread 0 renames it."""
    build = Build()
    build.create("new", b"x")
    file = build.inode("new")
    for syncs in (synced_first, not synced_first):
        if syncs:
            build.fsync(file)
        else:
            build.rename("new", "done")
    operations = [
        replace(op, thread=int(op.place.startswith("fsync"))) for op in build.trace().operations
    ]
    trace = replace(build.trace(), operations=tuple(operations))
    return Attempt(exit_code=0, trace=trace, at_once=at_once)


def test_recordings_in_which_all_found_the_same_are_one() -> None:
    asked: list[tuple[int, int]] = []

    def run(hold_back: tuple[int, int]) -> Attempt:
        asked.append(hold_back)
        return attempt(at_once=2, synced_first=hold_back[0] != 1)

    kept, said = recorded(run, attempt_of=lambda one: one)
    assert asked == [(ALL_OTHERS, 1), (1, 2), (2, 2), (MAIN, 2)]
    assert [[op.kind for op in one.trace.operations[-2:]] for one in kept if one.trace] == [
        ["rename", "fsync"],
        ["fsync", "rename"],
    ]
    assert said == ()


def test_without_another_thread_one_is_enough() -> None:
    kept, said = recorded(lambda _: attempt(at_once=0), attempt_of=lambda one: one)
    assert (len(kept), said) == (1, ())


def test_what_is_not_tried_is_said() -> None:
    slow: list[int] = []

    def run(hold_back: tuple[int, int]) -> Attempt:
        slow.append(hold_back[0])
        if hold_back[0] == 2:
            raise CannotJudge("step 3 had another loss")
        return replace(attempt(at_once=9), held_in_part=hold_back[0] == 1)

    _, said = recorded(run, attempt_of=lambda one: one)
    assert slow == [ALL_OTHERS, *range(1, MOST_OTHERS + 1), MAIN]
    assert [words.partition(":")[0].partition(";")[0] for words in said] == [
        "9 threads and processes were at work at one time",
        "a recording with another thread slow could not be used",
        "threads were held back for 6 s of a run",
    ]
    slow.clear()
    recorded(run, attempt_of=lambda one: one, written_bytes=MOST_BYTES // 3)
    assert slow == [ALL_OTHERS, 1, MAIN]


SHARDS = """
    import json, os, sys, threading
    root = sys.argv[1]
    done = sorted(int(n[5:]) for n in os.listdir(root) if n.startswith("step-"))
    step = done[-1] if done else 0
    for shard in range(3 if step else 0):
        assert open(f"{root}/step-{step}/{shard}").read() == "whole"
    def sync(path):
        descriptor = os.open(path, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)
    def write(number):
        with open(f"{root}/tmp/{number}", "w") as file:
            file.write("whole")
            file.flush()
            os.fsync(file.fileno())
    while step < 2:
        step += 1
        print(f"step={step} loss={1 / step!r}", flush=True)
        os.makedirs(f"{root}/tmp", exist_ok=True)
        threads = [threading.Thread(target=write, args=(n,)) for n in range(3)]
        for thread in threads:
            thread.start()
        for thread in WAITED_FOR:
            thread.join()
        sync(f"{root}/tmp")
        os.rename(f"{root}/tmp", f"{root}/step-{step}")
        sync(root)
        for thread in threads:
            thread.join()
        print(f"saved step={step}", flush=True)
"""
WORDS = ("--faults", "power", "--models", "ext4", "--loss-regex", LOSS, "--ack-regex", ACK)


@pytest.mark.parametrize("waited_for", ["threads[1:]", "threads[:1] + threads[2:]"])
def test_the_one_of_three_that_is_not_waited_for_is_found_and_reproduced(
    tmp_path: Path, waited_for: str
) -> None:
    code, result = check(tmp_path, SHARDS.replace("WAITED_FOR", waited_for), *WORDS)
    assert code == 1
    assert {v["invariant"] for v in result["violations"]} >= {"resumable"}
    bundled = next(v for v in result["violations"] if v.get("bundle"))
    assert cli.main(["reproduce", str(tmp_path / "out" / bundled["bundle"])]) == 1


def test_three_that_are_waited_for_are_right(tmp_path: Path) -> None:
    assert check(tmp_path, SHARDS.replace("WAITED_FOR", "threads"), *WORDS)[0] == 0
