"""Threads that wait for one another do the same when they are held back; others do not."""

import os
import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.attempt import Settings, run_attempt
from fault_injection.holding import BUDGET_S, LONGEST_S, QUIET_S, Holder
from fault_injection.seccomp import Notification
from fault_injection.syscalls import NUMBERS

from .attempts import command, script

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

# Three saves; how the sync of each is waited for, or not, is what differs.
PROGRAM = """
    import os, threading, time
    def sync(fd):
        os.fsync(fd)
        os.close(fd)
    def save(number):
        fd = os.open("state.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.write(fd, b"x")
        {sync}
        os.rename("state.tmp", "state")
        {after}
    for number in range(3):
        save(number)
    """
THREAD = "syncing = threading.Thread(target=sync, args=(fd,)); syncing.start(); "
CHILD = "child = os.fork()\n        if child == 0: sync(fd); os._exit(0)\n        "
SLEEP, JOIN, WAIT = "time.sleep(0.05)", "syncing.join()", "os.waitpid(child, 0)"


def places(tmp_path: Path, source: str) -> list[str]:
    root = tmp_path / "root"
    root.mkdir()
    asked = command(sys.executable, script(tmp_path, source), cwd=root)
    attempt = run_attempt(
        asked,
        Settings(str(root), timeout_s=30.0, hold_threads=True, record_to=str(tmp_path / "spool")),
    )
    assert (attempt.exit_code, attempt.untraceable) == (0, "")
    return [place for place in attempt.places if not place.startswith(("output", "write"))]


@pytest.mark.parametrize(
    "waits",
    [(THREAD + JOIN, "pass"), (CHILD + WAIT, "pass"), ("sync(fd)", "pass")],
    ids=["a thread is joined", "a child is waited for", "no thread"],
)
def test_who_waits_is_not_changed(tmp_path: Path, waits: tuple[str, str]) -> None:
    found = places(tmp_path, PROGRAM.format(sync=waits[0], after=waits[1]))
    one_by_one = ("create-state.tmp#{}", "fsync-state.tmp#{}", "rename-state#{}")
    assert found == [place.format(number) for number in (1, 2, 3) for place in one_by_one]


@pytest.mark.parametrize(
    "sleeps",
    [(THREAD + SLEEP, JOIN), (CHILD + SLEEP, WAIT)],
    ids=["a thread", "a child"],
)
def test_who_only_sleeps_is_first(tmp_path: Path, sleeps: tuple[str, str]) -> None:
    found = places(tmp_path, PROGRAM.format(sync=sleeps[0], after=sleeps[1]))
    renames = [place for place in found if place.startswith(("rename", "fsync"))]
    assert renames[:2] == ["rename-state#1", "fsync-state#1"]


def note(name: str, *, tid: int) -> Notification:
    return Notification(tid, tid, NUMBERS[name], (0,) * 6, seccomp.AUDIT_ARCH[os.uname().machine])


NOBODY = 1 << 22  # above every pid


def test_the_one_that_was_started_first_goes_on_when_it_is_quiet() -> None:
    holder = Holder()
    first, second = note("fsync", tid=NOBODY + 1), note("fsync", tid=NOBODY + 2)
    assert holder.takes(first, of_main=False, now_s=10.0)
    assert holder.takes(second, of_main=False, now_s=10.1)
    assert holder.due_s() == 10.1 + QUIET_S
    assert holder.due(10.1) is None
    holder.went_on(10.2)
    assert holder.due(10.1 + QUIET_S) is None
    assert holder.due(10.2 + QUIET_S) is first
    assert holder.due(10.2 + QUIET_S) is None, "what the first one does is waited for"
    assert holder.due(10.2 + 2 * QUIET_S) is second
    assert holder.due_s() is None


def test_what_never_is_quiet_does_not_hold_for_ever() -> None:
    holder = Holder()
    held = note("fdatasync", tid=NOBODY)
    assert holder.takes(held, of_main=True, now_s=0.0)
    for tenth in range(1, 10):
        holder.went_on(tenth / 10)
        assert holder.due(tenth / 10) is None
    assert holder.due(LONGEST_S) is held


def test_writes_of_the_main_thread_and_other_calls_are_not_held() -> None:
    holder = Holder()
    assert not holder.takes(note("write", tid=NOBODY), of_main=True, now_s=0.0)
    assert not holder.takes(note("renameat2", tid=NOBODY + 1), of_main=False, now_s=0.0)
    assert holder.takes(note("write", tid=NOBODY + 1), of_main=False, now_s=0.0)


def test_threads_take_turns_in_being_late() -> None:
    def held(threads: int, calls: int) -> list[str]:
        holder = Holder()
        found = []
        for thread in range(threads):
            word = ""
            for _ in range(calls):
                taken = holder.takes(note("fsync", tid=NOBODY + thread), of_main=False, now_s=0.0)
                holder.due(QUIET_S if taken else -1.0)
                word += "-h"[taken]
            found.append(word)
        return found

    assert held(4, 9) == ["hhhhhh---", "hhh---hhh", "---hhhhhh", "hhhhhh---"]


def test_in_all_no_more_than_the_budget() -> None:
    holder = Holder()
    now_s = 0.0
    for tid in range(100):
        if holder.takes(note("fsync", tid=NOBODY + 3 * tid), of_main=False, now_s=now_s):
            now_s += LONGEST_S
            assert holder.due(now_s) is not None
    assert now_s == BUDGET_S
