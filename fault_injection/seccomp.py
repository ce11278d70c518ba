"""System-call supervision without root: a seccomp filter that asks a supervisor about each call.

The child installs a filter (``SECCOMP_RET_USER_NOTIF``) and hands the listener descriptor to its
supervisor over a socket pair. Each call that the filter names then stops *before it runs* until
the supervisor answers: let it run, fail it with an errno, or pretend that it returned a value.
The filter is inherited by threads, forks and executed programs. See seccomp_unotify(2).

The kernel's structures are read and written with ctypes and struct; their sizes are compared with
what the running kernel says. Calls made with a foreign calling convention (32-bit, x32) always
come as notifications, with their ``arch`` or number, so that they can be reported, not missed.

Not covered: calls that were not named; effects that are no calls (stores to a mapped file);
processes that were not started under the filter.
"""

import array
import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import socket
import struct
import subprocess
import sys
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

from fault_injection import syscalls

AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
X32_BIT = 0x40000000

_PR_SET_NO_NEW_PRIVS = 38
_SET_MODE_FILTER = 1
_GET_ACTION_AVAIL = 2
_GET_NOTIF_SIZES = 3
_FLAG_NEW_LISTENER = 1 << 3
_FLAG_WAIT_KILLABLE_RECV = 1 << 5
_RET_USER_NOTIF = 0x7FC00000
_RET_ALLOW = 0x7FFF0000
_RESP_CONTINUE = 1

# struct seccomp_notif: id, pid, flags, then seccomp_data: nr, arch, instruction pointer, 6 args.
_NOTIF = struct.Struct("=QIIiIQ6Q")
_RESP = struct.Struct("=QqiI")  # struct seccomp_notif_resp: id, val, error, flags
_DATA_SIZE = 64
_EMPTY_NOTIF = bytes(_NOTIF.size)


def _ioctl_number(direction: int, number: int, size: int) -> int:
    return direction << 30 | size << 16 | ord("!") << 8 | number


_IOCTL_RECV = _ioctl_number(3, 0, _NOTIF.size)
_IOCTL_SEND = _ioctl_number(3, 1, _RESP.size)
_IOCTL_ID_VALID = _ioctl_number(1, 2, 8)
_IOCTL_SET_FLAGS = _ioctl_number(1, 4, 8)
_FD_SYNC_WAKE_UP = 1

# Classic BPF (linux/bpf_common.h): load a word, jump if equal / greater-or-equal / any bit set.
_LD, _JEQ, _JGE, _JSET, _RET = 0x20, 0x15, 0x35, 0x45, 0x06
_OFFSET_NR, _OFFSET_ARCH, _OFFSET_ARGS = 0, 4, 16


class _SockFprog(ctypes.Structure):
    _fields_ = (("len", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class _Iovec(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("len", ctypes.c_size_t))


_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long
if sys.platform == "linux":
    _libc.process_vm_readv.restype = ctypes.c_ssize_t
    _libc.process_vm_readv.argtypes = (
        ctypes.c_int,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_void_p,
        ctypes.c_ulong,
        ctypes.c_ulong,
    )


@dataclass(frozen=True, slots=True)
class Match:
    """Notify call ``number`` only when all of its tests hold.

    ``bits``: pairs (argument, mask) of which at least one bit of the mask must be set; ``equals``
    and ``differs``: pairs (argument, value). Only the lower 32 bits of an argument are looked at,
    which is where flags, requests and descriptors are.
    """

    number: int
    bits: tuple[tuple[int, int], ...] = ()
    equals: tuple[tuple[int, int], ...] = ()
    differs: tuple[tuple[int, int], ...] = ()


class Notification(NamedTuple):
    """One call that waits for an answer: its thread, its number, its arguments."""

    id: int
    tid: int
    nr: int
    args: tuple[int, int, int, int, int, int]
    arch: int

    @property
    def foreign(self) -> str:
        """Empty for a native call; else what it is, for its number then means something else."""
        if self.arch != AUDIT_ARCH[syscalls.MACHINE]:
            return "a 32-bit system call"
        if syscalls.MACHINE == "x86_64" and self.nr & X32_BIT:
            return "an x32 system call"
        return ""


def _instruction(code: int, k: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, k)


def _filter_program(notify: Collection[int | Match], machine: str) -> bytes:
    """The BPF program: foreign calls and those in ``notify`` are notified, the rest allowed.

    Every test is followed by its own return, so that no jump is longer than a block.
    """
    ret_notify = _instruction(_RET, _RET_USER_NOTIF)
    program = [
        _instruction(_LD, _OFFSET_ARCH),
        _instruction(_JEQ, AUDIT_ARCH[machine], 1, 0),
        ret_notify,
        _instruction(_LD, _OFFSET_NR),
    ]
    if machine == "x86_64":
        program += [_instruction(_JGE, X32_BIT, 0, 1), ret_notify]
    numbers = sorted(entry for entry in notify if isinstance(entry, int))
    for number in numbers:
        program += [_instruction(_JEQ, number, 0, 1), ret_notify]
    matches: dict[int, list[Match]] = {}
    for entry in notify:
        if isinstance(entry, Match) and entry.number not in numbers:
            matches.setdefault(entry.number, []).append(entry)
    for number in sorted(matches):
        block: list[bytes] = []
        for match in sorted(matches[number], key=lambda m: (m.bits, m.equals, m.differs)):
            tests = [(_JSET, True, *test) for test in match.bits]
            tests += [(_JEQ, True, *test) for test in match.equals]
            tests += [(_JEQ, False, *test) for test in match.differs]
            for done, (jump, wanted, argument, operand) in enumerate(tests):
                # A failed test jumps past the tests that are left (two instructions each) and the
                # return. Both machines are little-endian: the lower word comes first.
                past = 2 * (len(tests) - done - 1) + 1
                block += [
                    _instruction(_LD, _OFFSET_ARGS + 8 * argument),
                    _instruction(jump, operand, *((0, past) if wanted else (past, 0))),
                ]
            block.append(ret_notify)
        block.append(_instruction(_RET, _RET_ALLOW))
        if len(block) > 255:
            raise ValueError(f"too many conditions on call number {number}")
        program += [_instruction(_JEQ, number, 0, len(block)), *block]
    program.append(_instruction(_RET, _RET_ALLOW))
    return b"".join(program)


def _seccomp(operation: int, flags: int, argument: object) -> int:
    number = syscalls.NUMBERS["seccomp"]
    return int(_libc.syscall(ctypes.c_long(number), operation, flags, argument))


def _os_error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{what}: {os.strerror(number)}")


def install_filter(notify: Collection[int | Match]) -> int:
    """Put this process under the filter for ``notify``, as :func:`install_program` does."""
    return install_program(prepare(notify))


def install_program(code: bytes) -> int:
    """Put this process under a prepared filter; return the listener descriptor (close-on-exec).

    To be called in the child, whose *next* call that the filter names waits for a supervisor.
    Raises OSError when the kernel refuses, which it does when there already is a listener (EBUSY).
    """
    program = _SockFprog(len(code) // 8, code)
    if _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise _os_error("prctl(PR_SET_NO_NEW_PRIVS)")
    # With WAIT_KILLABLE_RECV (Linux 5.19) a signal does not interrupt a call that the supervisor
    # has already received; without it the call would be made, and notified, twice.
    for flags in (_FLAG_NEW_LISTENER | _FLAG_WAIT_KILLABLE_RECV, _FLAG_NEW_LISTENER):
        listener = _seccomp(_SET_MODE_FILTER, flags, ctypes.byref(program))
        if listener >= 0:
            _prefer_same_cpu(listener)
            return listener
        if ctypes.get_errno() != errno.EINVAL:
            break
    raise _os_error("seccomp(SECCOMP_SET_MODE_FILTER)")


def prepare(notify: Collection[int | Match]) -> bytes:
    """The filter program for ``notify``: made in the parent, given to the child."""
    return _prepared(frozenset(notify))


@functools.lru_cache(maxsize=8)
def _prepared(notify: frozenset[int | Match]) -> bytes:
    _check_sizes()
    return _filter_program(notify, syscalls.MACHINE)


def _prefer_same_cpu(listener: int) -> None:
    """Ask the kernel (6.6) to wake the other side on the same CPU: 6 us a call instead of 85."""
    with contextlib.suppress(OSError):
        fcntl.ioctl(listener, _IOCTL_SET_FLAGS, _FD_SYNC_WAKE_UP)


def _check_sizes() -> None:
    """Raise OSError unless the kernel's structures have the sizes that are written here."""
    sizes = (ctypes.c_uint16 * 3)()
    if _seccomp(_GET_NOTIF_SIZES, 0, ctypes.byref(sizes)) != 0:
        raise _os_error("seccomp(SECCOMP_GET_NOTIF_SIZES)")
    wanted = [_NOTIF.size, _RESP.size, _DATA_SIZE]
    if list(sizes) != wanted:
        raise OSError(
            errno.ENOSYS, f"this kernel's seccomp structures are {list(sizes)} bytes, not {wanted}"
        )


def send_fd(sock: socket.socket, fd: int) -> None:
    """Pass ``fd`` to the other end of a Unix socket."""
    socket.send_fds(sock, [b"F"], [fd])


def receive_fd(sock: socket.socket) -> int:
    """The descriptor that the other end passed (close-on-exec); EOFError when it closed instead."""
    data, ancillary, _, _ = sock.recvmsg(1, socket.CMSG_LEN(4), socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data or not fds:
        raise EOFError("the other end closed without passing a descriptor")
    return fds[0]


def receive(listener: int) -> Notification | None:
    """The next call that waits; blocks without one (poll first). None when its maker is gone."""
    buffer = bytearray(_EMPTY_NOTIF)
    try:
        fcntl.ioctl(listener, _IOCTL_RECV, buffer, True)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINTR):
            return None
        raise
    fields = _NOTIF.unpack(buffer)
    return Notification(fields[0], fields[1], fields[3], fields[6:12], fields[4])


def _respond(listener: int, response: bytes) -> bool:
    try:
        fcntl.ioctl(listener, _IOCTL_SEND, response)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EINPROGRESS):
            return False
        raise
    return True


def respond_continue(listener: int, notification_id: int) -> bool:
    """Let the call run. False when its maker is gone or it was interrupted by a signal."""
    return _respond(listener, _RESP.pack(notification_id, 0, 0, _RESP_CONTINUE))


def respond_errno(listener: int, notification_id: int, number: int) -> bool:
    """Fail the call with errno ``number`` without running it. False: as above."""
    return _respond(listener, _RESP.pack(notification_id, 0, -number, 0))


def respond_value(listener: int, notification_id: int, value: int) -> bool:
    """Make the call return ``value`` without running it. False: as above."""
    return _respond(listener, _RESP.pack(notification_id, value, 0, 0))


def still_valid(listener: int, notification_id: int) -> bool:
    """Whether the call still waits: what was read of its maker belongs to it only if so."""
    try:
        fcntl.ioctl(listener, _IOCTL_ID_VALID, struct.pack("=Q", notification_id))
    except OSError as error:
        if error.errno == errno.ENOENT:
            return False
        raise
    return True


def read_memory_into(
    tid: int, address: int, buffer: "ctypes.Array[ctypes.c_char]", size: int
) -> int:
    """Read up to ``size`` bytes of a thread's memory; how many, fewer at an unmapped page.

    Raises OSError when nothing can be read: ESRCH (gone), EFAULT (not mapped), EPERM.
    """
    local = _Iovec(ctypes.addressof(buffer), size)
    remote = _Iovec(address, size)
    count = int(_libc.process_vm_readv(tid, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
    if count >= 0:
        return count
    number = ctypes.get_errno()
    if number not in (errno.ENOSYS, errno.EPERM):
        raise OSError(number, f"memory of thread {tid}: {os.strerror(number)}")
    # Kernels built without process_vm_readv, and sandboxes that forbid it, still have the file.
    fd = os.open(f"/proc/{tid}/mem", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.preadv(fd, [memoryview(buffer)[:size]], address)
    finally:
        os.close(fd)


def read_memory(tid: int, address: int, size: int) -> bytes:
    """Up to ``size`` bytes of a thread's memory, as :func:`read_memory_into`."""
    if size <= 0:
        return b""
    buffer = ctypes.create_string_buffer(size)
    return ctypes.string_at(buffer, read_memory_into(tid, address, buffer, size))


def read_c_string(tid: int, address: int, limit: int = 4096) -> bytes:
    """The NUL-terminated string at ``address``, without its NUL; cut at ``limit`` bytes."""
    parts: list[bytes] = []
    left = limit
    while left > 0:
        # Never ask beyond the page: the next one may not be mapped.
        size = min(left, 4096 - address % 4096, 512)
        part = read_memory(tid, address, size)
        end = part.find(b"\0")
        if end >= 0:
            parts.append(part[:end])
            break
        parts.append(part)
        address += len(part)
        left -= len(part)
    return b"".join(parts)


def thread_group(tid: int) -> int:
    """The process that a thread belongs to; ProcessLookupError when it is gone."""
    with contextlib.suppress(FileNotFoundError), open(f"/proc/{tid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"Tgid:"):
                return int(line[5:])
    raise ProcessLookupError(errno.ESRCH, f"thread {tid} is gone")


def duplicate_fd(tid: int, fd: int) -> int:
    """A descriptor of ours for the *same open file* (offset and all) as ``fd`` of that thread."""
    pidfd = os.pidfd_open(thread_group(tid))
    try:
        number = syscalls.NUMBERS["pidfd_getfd"]
        copy = int(_libc.syscall(ctypes.c_long(number), pidfd, ctypes.c_int(fd), 0))
        if copy < 0:
            raise _os_error(f"descriptor {fd} of thread {tid}")
        return copy
    finally:
        os.close(pidfd)


def tee(source: int, target: int, size: int) -> int:
    """Copy what lies in one pipe into another without taking it out; never waits."""
    number = ctypes.c_long(syscalls.NUMBERS["tee"])
    nonblocking = 2
    count = int(_libc.syscall(number, source, target, ctypes.c_size_t(size), nonblocking))
    return max(0, count)


_TRIAL = """
import os, socket, sys
from fault_injection import seccomp, syscalls
sock = socket.socket(fileno=int(sys.argv[1]))
seccomp.send_fd(sock, seccomp.install_filter({syscalls.NUMBERS["mkdirat"]}))
try:
    os.mkdir("trial of the supervisor", dir_fd=0)
except OSError as error:
    sys.exit(0 if error.errno == 95 else 4)
sys.exit(5)
"""


@functools.cache
def unavailable() -> str | None:
    """Why supervision cannot work here, or None when it does: a child was supervised to find out.

    Costs the start of one Python process, once.
    """
    if sys.platform != "linux":
        return f"needs Linux (seccomp user notification); this is {sys.platform}"
    if syscalls.MACHINE not in syscalls.MACHINES:
        return f"needs {' or '.join(syscalls.MACHINES)}; this machine is {syscalls.MACHINE}"
    action = ctypes.c_uint32(_RET_USER_NOTIF)
    if _seccomp(_GET_ACTION_AVAIL, 0, ctypes.byref(action)) != 0:
        return f"needs Linux 5.5 or newer: {_os_error('seccomp user notification')}"
    try:
        _check_sizes()
        return _supervise_a_trial()
    except (OSError, EOFError) as error:
        return f"a supervised child could not be run: {error}"


def _supervise_a_trial() -> str | None:
    ours, theirs = socket.socketpair()
    listener = -1
    with ours, theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", _TRIAL, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            theirs.close()
            ours.settimeout(30)
            try:
                listener = receive_fd(ours)
            except EOFError:
                words = child.communicate(timeout=30)[1].decode(errors="replace").strip()
                return f"the filter could not be installed: {words.splitlines()[-1:]}"
            call = receive(listener)
            if call is None:
                return "the supervised child died"
            if read_c_string(call.tid, call.args[1]) != b"trial of the supervisor":
                return "the memory of a supervised child could not be read"
            respond_errno(listener, call.id, errno.EOPNOTSUPP)
            child.communicate(timeout=30)
            return None if child.returncode == 0 else "a supervised call was not answered as told"
        finally:
            child.kill()
            child.wait()
            if child.stderr is not None:
                child.stderr.close()
            if listener >= 0:
                os.close(listener)
