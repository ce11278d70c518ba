"""Lints: the classic mistakes of a save, told from the trace alone, before any state is explored.

Each lint is a function over a recorded trace that yields findings: what is wrong, at which
operation, on which file, and where in the source that call was made. A lint is advice; the crash
states decide the verdict. Silence is therefore preferred to guessing: a lint speaks where the
order of the calls cannot be meant.

==================== ===========================================================================
fsync-before-write   a file was fsynced before its last bytes were written: a buffer not flushed
rename-before-fsync  a file, or a directory with a file in it, was renamed with unsynced bytes
no-directory-fsync   a rename, or the creation of a synced file, was acknowledged (or is never
                     followed) without an fsync of its directory
unlink-before-rename the old one was removed before the new one was renamed to its name, or, the
                     only one of a numbered series, before the next one had its name
truncate-in-place    a file that a manifest names, or that the last acknowledged save consists of,
                     was emptied in place (not a scratch file: never synced, unlike a later copy)
pointer-before-data  a pointer or manifest was published before what it names was there or synced
==================== ===========================================================================

What the program promises is known from ``acknowledged``: the operations by which it says that a
checkpoint is safe. Without them only the end of the trace counts as a promise.

Not covered: data that was never synced at all and never renamed (a log may be so on purpose).
"""

from collections.abc import Callable, Collection, Iterator

from fault_injection.trace import Trace
from harness.lints.look import Finding, Look, looked_at
from harness.lints.losing import truncate_in_place, unlink_before_rename
from harness.lints.pointers import pointer_before_data
from harness.lints.syncs import fsync_before_write, no_directory_fsync, rename_before_fsync

__all__ = ["LINTS", "Finding", "lint"]

LINTS: dict[str, Callable[[Look], Iterator[Finding]]] = {
    "fsync-before-write": fsync_before_write,
    "rename-before-fsync": rename_before_fsync,
    "no-directory-fsync": no_directory_fsync,
    "unlink-before-rename": unlink_before_rename,
    "truncate-in-place": truncate_in_place,
    "pointer-before-data": pointer_before_data,
}


def lint(trace: Trace, *, acknowledged: Collection[int] = ()) -> tuple[Finding, ...]:
    """All findings of a trace, by operation and name.

    ``acknowledged``: indices of the operations by which the program promised durability.
    """
    look = looked_at(trace, acknowledged)
    found = {finding for check in LINTS.values() for finding in check(look)}
    return tuple(sorted(found, key=lambda f: (f.index, f.name, f.file, f.message)))
