"""Huge pages: which parts of a process they can be, and that nothing in it changes."""

import mmap
import os
import sys

import pytest

from fault_injection import forkstart, hugepages
from fault_injection.hugepages import HUGE_BYTES, collapse, ranges

MAPS = """\
55d000000000-55d000400000 rw-p 00000000 00:00 0                          [heap]
7f0000100000-7f0000900000 rw-p 00000000 00:00 0
7f0001000000-7f0001200000 r--p 00000000 00:00 0
7f0002000000-7f0002200000 rw-s 00000000 00:05 77                         /dev/zero (deleted)
7f0003000000-7f0003200000 rw-p 00000000 08:01 1234                       /usr/lib/lib c.so
7f0004000000-7f0004200000 rw-p 00000000 00:00 0                          [stack]
7f0005000000-7f00051ff000 rw-p 00000000 00:00 0
"""


def test_whole_huge_pages_of_private_anonymous_memory() -> None:
    assert [hex(start) for start in ranges(MAPS.splitlines(keepends=True))] == [
        "0x55d000000000",
        "0x55d000200000",
        "0x7f0000200000",
        "0x7f0000400000",
        "0x7f0000600000",
    ]


def test_what_is_laid_together_keeps_its_content() -> None:
    pages = 3 * HUGE_BYTES // mmap.PAGESIZE
    with mmap.mmap(-1, pages * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANON) as memory:
        for number in range(pages):
            memory[number * mmap.PAGESIZE] = number % 251
        collapse()
        assert all(memory[n * mmap.PAGESIZE] == n % 251 for n in range(pages))


def test_a_process_that_is_forked_often_is_laid_together_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []
    monkeypatch.setattr(hugepages, "collapse", lambda: made.append(1))
    monkeypatch.setattr(forkstart, "_forks", 0)
    monkeypatch.setattr(forkstart, "freeze", lambda: None)
    plan = forkstart.plan((sys.executable, __file__), env=dict(os.environ), cwd=os.getcwd())
    assert isinstance(plan, forkstart.Plan)
    for number in range(1, 12):
        forkstart.ready(plan)
        assert len(made) == (number >= forkstart._FORKS_BEFORE_HUGE_PAGES)
