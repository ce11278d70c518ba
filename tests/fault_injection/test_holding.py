"""Threads that wait for one another do the same when they are held back; others do not."""

import os
import sys
from pathlib import Path

import pytest

from fault_injection import seccomp
from fault_injection.attempt import Settings, run_attempt
from fault_injection.holding import ALL_OTHERS, BUDGET_S, LONGEST_S, MAIN, QUIET_S, Holder
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


def places(tmp_path: Path, source: str, *, slow: int) -> list[str]:
    root = tmp_path / "root"
    root.mkdir()
    asked = command(sys.executable, script(tmp_path, source), cwd=root)
    spool = str(tmp_path / "spool")
    attempt = run_attempt(
        asked, Settings(str(root), timeout_s=30.0, hold_back=(slow, 1), record_to=spool)
    )
    assert (attempt.exit_code, attempt.untraceable) == (0, "")
    return list(attempt.places)


@pytest.mark.parametrize("slow", [ALL_OTHERS, MAIN, 1])
@pytest.mark.parametrize(
    "waits",
    [(THREAD + JOIN, "pass"), (CHILD + WAIT, "pass"), ("sync(fd)", "pass")],
    ids=["a thread is joined", "a child is waited for", "no thread"],
)
def test_who_waits_is_not_changed(tmp_path: Path, waits: tuple[str, str], slow: int) -> None:
    found = places(tmp_path, PROGRAM.format(sync=waits[0], after=waits[1]), slow=slow)
    one_by_one = (
        "create-state.tmp#{}",
        "write-state.tmp#{}",
        "fsync-state.tmp#{}",
        "rename-state#{}",
    )
    assert found == [place.format(number) for number in (1, 2, 3) for place in one_by_one]


@pytest.mark.parametrize(
    "sleeps",
    [(THREAD + SLEEP, JOIN), (CHILD + SLEEP, WAIT)],
    ids=["a thread", "a child"],
)
def test_who_only_sleeps_is_first(tmp_path: Path, sleeps: tuple[str, str]) -> None:
    found = places(tmp_path, PROGRAM.format(sync=sleeps[0], after=sleeps[1]), slow=1)
    renames = [place for place in found if place.startswith(("rename", "fsync"))]
    assert renames[:2] == ["rename-state#1", "fsync-state#1"]


def test_a_slow_main_thread_writes_after_what_was_to_sync_it(tmp_path: Path) -> None:
    source = """
        import os, threading
        fd = os.open("state", os.O_WRONLY | os.O_CREAT)
        syncing = threading.Thread(target=os.fsync, args=(fd,))
        syncing.start()
        os.write(fd, b"x")
        syncing.join()
        """
    found = places(tmp_path, source, slow=MAIN)
    assert found == ["create-state#1", "fsync-state#1", "write-state#1"]


def note(name: str, *, tid: int) -> Notification:
    return Notification(tid, tid, NUMBERS[name], (0,) * 6, seccomp.AUDIT_ARCH[os.uname().machine])


NOBODY = 1 << 22  # above every pid
MAIN_TID = NOBODY


def holder(slow: int, *, others: int = 1, alone: bool = False) -> Holder:
    return Holder(slow, others=others, is_main=lambda tid: tid == MAIN_TID, is_alone=lambda: alone)


def test_a_slow_thread_goes_on_when_the_others_are_quiet() -> None:
    slow = holder(1, others=2)
    held, other = note("fsync", tid=NOBODY + 1), note("fsync", tid=NOBODY + 2)
    assert slow.takes(held, now_s=10.0)
    assert not slow.takes(other, now_s=10.1)
    assert slow.due_s() == 10.0 + QUIET_S
    slow.went_on(NOBODY + 2, 10.1)
    slow.went_on(NOBODY + 1, 10.15)  # its own calls do not count
    assert slow.due(10.0 + QUIET_S) is None
    slow.went_on(MAIN_TID, 10.2)
    assert slow.due(10.1 + QUIET_S) is None
    assert slow.due(10.2 + QUIET_S) is held
    assert slow.due_s() is None


def test_what_never_is_quiet_does_not_hold_for_ever() -> None:
    slow = holder(1)
    held = note("fdatasync", tid=NOBODY + 1)
    assert slow.takes(held, now_s=0.0)
    for tenth in range(1, 10):
        slow.went_on(MAIN_TID, tenth / 10)
        assert slow.due(tenth / 10) is None
    assert slow.due(LONGEST_S) is held


def test_the_slow_ones_are_each_so_many_th() -> None:
    slow = holder(2, others=3)
    taken = [slow.takes(note("rename", tid=NOBODY + n), now_s=0.0) for n in range(1, 8)]
    assert taken == [False, True, False, False, True, False, False]
    assert not slow.takes(note("fsync", tid=MAIN_TID), now_s=0.0)


def test_the_main_thread_is_slow_where_it_has_company_with_data_and_syncs() -> None:
    assert holder(MAIN).takes(note("write", tid=MAIN_TID), now_s=0.0)
    assert holder(MAIN).takes(note("fsync", tid=MAIN_TID), now_s=0.0)
    assert not holder(MAIN).takes(note("rename", tid=MAIN_TID), now_s=0.0)
    assert not holder(MAIN, alone=True).takes(note("write", tid=MAIN_TID), now_s=0.0)


def test_of_writes_in_a_row_the_first_is_held() -> None:
    slow = holder(1)
    write = note("write", tid=NOBODY + 1)
    assert slow.takes(write, now_s=0.0)
    assert slow.due(QUIET_S) is write
    assert not slow.takes(write, now_s=QUIET_S)
    slow.went_on(MAIN_TID, 1.0)
    assert slow.takes(write, now_s=1.0)
    assert slow.due(1.0 + QUIET_S) is write
    slow.has_new()
    assert slow.takes(write, now_s=2.0)


def test_all_others_wait_once_and_are_counted() -> None:
    counting = holder(ALL_OTHERS)
    first = [note("write", tid=NOBODY + n) for n in (1, 2, 3)]
    assert all(counting.takes(one, now_s=0.0) for one in first)
    assert not counting.takes(note("write", tid=MAIN_TID), now_s=0.0)
    assert [counting.due(QUIET_S) for _ in first] == first  # all at once
    assert not counting.takes(first[0], now_s=1.0)


def test_in_all_no_more_than_the_budget() -> None:
    slow = holder(1)
    now_s = 0.0
    for _ in range(100):
        if slow.takes(note("fsync", tid=NOBODY + 1), now_s=now_s):
            now_s += LONGEST_S
            assert slow.due(now_s) is not None
    assert now_s == BUDGET_S
    assert slow.in_part
