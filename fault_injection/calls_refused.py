"""Calls whose effect on the tree cannot be followed by watching calls: refused by name.

A shared writable mapping is changed by plain stores, io_uring by a ring in memory, a mount hides
what was there. Recording names them; runs that only kill need not know of them.
"""

import stat
import struct
from collections.abc import Callable

from fault_injection.procfs import AT_FDCWD, View, fd_info, fd_status, fd_text, key_of, signed
from fault_injection.requests import Request, refused
from fault_injection.seccomp import Match, read_c_string, read_memory
from fault_injection.syscalls import NUMBERS

Arguments = tuple[int, int, int, int, int, int]

_PROT_WRITE, _MAP_SHARED, _MAP_ANONYMOUS = 2, 1, 0x20
_O_ACCMODE, _O_RDWR, _O_TRUNC = 3, 2, 0o1000
_READING_OPCODES = (0, 5, 6, 7)  # of Linux AIO: pread, poll, nothing, preadv


def _mmap(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    if args[3] & _MAP_ANONYMOUS:
        return None
    fd = signed(args[4])
    text = fd_text(tid, fd)
    status = fd_status(tid, fd)
    if status is None or not stat.S_ISREG(status.st_mode):
        return None
    if not view.is_inside(text) and not view.knows(status):
        if args[2] & _PROT_WRITE:
            view.dirty.add(key_of(status))
        return None
    where = view.label(text).decode(errors="replace")
    if args[2] & _PROT_WRITE:
        return refused(tid, name, f"mmap: a shared writable mapping of {where}")
    info = fd_info(tid, fd)
    if info is not None and info.flags & _O_ACCMODE == _O_RDWR:
        view.shared_mappings = True  # an mprotect may make it writable later
    return None


def _mprotect(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    if not view.shared_mappings:
        return None
    start, end = args[0], args[0] + args[1]
    with open(f"/proc/{tid}/maps", "rb") as maps:
        for line in maps:
            fields = line.rstrip(b"\n").split(None, 5)
            low, _, high = fields[0].partition(b"-")
            if b"s" not in fields[1] or len(fields) < 6 or not view.is_inside(fields[5]):
                continue
            if int(low, 16) < end and start < int(high, 16):
                where = view.label(fields[5]).decode(errors="replace")
                return refused(tid, name, f"{name}: a shared writable mapping of {where}")
    return None


def _io_uring(_view: View, tid: int, name: str, _args: Arguments) -> Request | None:
    return refused(tid, name, "io_uring_setup: file operations through a ring")


def _io_submit(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    count = min(args[1], 4096)
    for (address,) in struct.iter_unpack("=Q", read_memory(tid, args[2], 8 * count)):
        block = read_memory(tid, address, 24)
        if len(block) < 24:
            continue
        opcode, fd = struct.unpack_from("=H2xI", block, 16)
        if opcode not in _READING_OPCODES and view.is_inside(fd_text(tid, signed(fd))):
            return refused(tid, name, "io_submit: asynchronous writes")
    return None


def _mount(view: View, tid: int, name: str, args: Arguments) -> Request | None:
    at, address = (signed(args[2]), args[3]) if name == "move_mount" else (AT_FDCWD, args[1])
    where = view.locate(tid, at, read_c_string(tid, address), follow=True)
    if where is None or not view.is_inside(where.path):
        return None
    return refused(tid, name, f"{name}: a mount under the root")


def _open_by_handle(_view: View, tid: int, name: str, _args: Arguments) -> Request | None:
    return refused(tid, name, "open_by_handle_at with O_TRUNC")


DECODERS: dict[str, Callable[[View, int, str, Arguments], Request | None]] = {
    "mmap": _mmap,
    "mprotect": _mprotect,
    "pkey_mprotect": _mprotect,
    "io_uring_setup": _io_uring,
    "io_submit": _io_submit,
    "mount": _mount,
    "move_mount": _mount,
    "open_by_handle_at": _open_by_handle,
}


def _notify() -> frozenset[int | Match]:
    conditions = {
        "mmap": ((3, _MAP_SHARED),),
        "mprotect": ((2, _PROT_WRITE),),
        "pkey_mprotect": ((2, _PROT_WRITE),),
        "open_by_handle_at": ((2, _O_TRUNC),),
    }
    return frozenset(
        Match(NUMBERS[name], bits=conditions[name]) if name in conditions else NUMBERS[name]
        for name in DECODERS
        if name in NUMBERS
    )


NOTIFY = _notify()
