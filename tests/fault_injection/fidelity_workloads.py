"""Small workloads, a row of the measured tables each, one file-system call a step.

A workload is a function of the tree's path and of ``before``, which it calls right before each call
that changes or syncs the tree. A recording run passes a function that does nothing, a real cut one
that raises when its turn has come: so the n-th step is the n-th operation of the trace.
"""

import ctypes
import os
from collections.abc import Callable

Before = Callable[[], None]
Workload = Callable[[str, Before], None]

NEW = b"n" * 5000
OLD = b"o" * 1000
BIG = b"b" * (1 << 20)
PAGES = b"a" * 8192
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2
_WAIT_BEFORE = 1  # SYNC_FILE_RANGE_WAIT_BEFORE


def prepare(root: str) -> None:
    """The tree that every workload starts from; the caller makes it durable."""
    with open(f"{root}/old", "wb") as file:
        file.write(OLD)
    with open(f"{root}/pages", "wb") as file:
        file.write(PAGES)
    os.mkdir(f"{root}/directory")
    with open(f"{root}/directory/inside", "wb") as file:
        file.write(OLD)


def _write(path: str, data: bytes, before: Before, *, flags: int, sync: bool = False) -> None:
    if flags & os.O_CREAT:
        before()
    descriptor = os.open(path, flags | os.O_CLOEXEC, 0o644)
    try:
        before()
        os.write(descriptor, data)
        if sync:
            before()
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _create(path: str, data: bytes, before: Before, *, sync: bool = False) -> None:
    _write(path, data, before, flags=os.O_WRONLY | os.O_CREAT | os.O_EXCL, sync=sync)


def _rename(source: str, target: str, before: Before) -> None:
    before()
    os.rename(source, target)


def settle(root: str) -> None:
    """Wait for the writing that a rename over ``old`` started: what a later commit finds.

    To be called right before a cut. Without it ext4 may commit the name before the data, a race.
    """
    try:
        descriptor = os.open(f"{root}/old", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        everything = ctypes.c_int64(0)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.sync_file_range(descriptor, everything, everything, _WAIT_BEFORE) != 0:
            raise OSError(ctypes.get_errno(), "sync_file_range")
    finally:
        os.close(descriptor)


def _fsync_directory(path: str, before: Before) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        before()
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def nothing_synced(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before)
    _rename(f"{root}/tmp", f"{root}/new", before)


def file_synced(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before, sync=True)
    _rename(f"{root}/tmp", f"{root}/new", before)


def directory_synced(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before)
    _rename(f"{root}/tmp", f"{root}/new", before)
    _fsync_directory(root, before)


def both_synced(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before, sync=True)
    _rename(f"{root}/tmp", f"{root}/new", before)
    _fsync_directory(root, before)


def replace(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before)
    _rename(f"{root}/tmp", f"{root}/old", before)


def one_megabyte(root: str, before: Before) -> None:
    _create(f"{root}/big", BIG, before)


def append(root: str, before: Before) -> None:
    _write(f"{root}/old", b"appended", before, flags=os.O_WRONLY | os.O_APPEND)


def append_pages(root: str, before: Before) -> None:
    _write(f"{root}/pages", PAGES, before, flags=os.O_WRONLY | os.O_APPEND)


def file_in_new_directory(root: str, before: Before) -> None:
    before()
    os.mkdir(f"{root}/made")
    _create(f"{root}/made/file", NEW, before, sync=True)


def rename_directory(root: str, before: Before) -> None:
    _rename(f"{root}/directory", f"{root}/moved", before)


def clean_directory_synced(root: str, before: Before) -> None:
    _create(f"{root}/new", NEW, before)
    _fsync_directory(f"{root}/directory", before)


def exchange(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before)
    before()
    source, target = os.fsencode(f"{root}/tmp"), os.fsencode(f"{root}/old")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, source, _AT_FDCWD, target, _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2(RENAME_EXCHANGE)")


def hard_link(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before)
    before()
    os.link(f"{root}/tmp", f"{root}/new")
    before()
    os.unlink(f"{root}/tmp")


def across_directories(root: str, before: Before) -> None:
    _create(f"{root}/directory/tmp", NEW, before, sync=True)
    _rename(f"{root}/directory/tmp", f"{root}/new", before)
    _fsync_directory(root, before)


def overwrite_in_place(root: str, before: Before) -> None:
    _write(f"{root}/pages", b"x" * 4096, before, flags=os.O_WRONLY)


def truncate_in_place(root: str, before: Before) -> None:
    before()
    descriptor = os.open(f"{root}/old", os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC)
    try:
        before()
        os.write(descriptor, NEW)
    finally:
        os.close(descriptor)


def unlink_then_rename(root: str, before: Before) -> None:
    _create(f"{root}/tmp", NEW, before, sync=True)
    before()
    os.unlink(f"{root}/old")
    _fsync_directory(root, before)
    _rename(f"{root}/tmp", f"{root}/old", before)
    _fsync_directory(root, before)


WORKLOADS: dict[str, Workload] = {
    work.__name__.replace("_", "-"): work
    for work in (
        nothing_synced,
        file_synced,
        directory_synced,
        both_synced,
        replace,
        one_megabyte,
        append,
        append_pages,
        file_in_new_directory,
        rename_directory,
        clean_directory_synced,
        exchange,
        hard_link,
        across_directories,
        overwrite_in_place,
        truncate_in_place,
        unlink_then_rename,
    )
}
