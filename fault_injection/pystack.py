"""Reads the frames of a thread of another Python process from that process's memory.

The process must run the very executable that we run, so that things are where our own interpreter
has them (``pylayout``), moved by the difference of the load addresses. Its thread has to lie still.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import iter_unpack
from typing import NamedTuple

from fault_injection.pylines import location_of
from fault_injection.seccomp import read_memory

_MAX_THREADS, _MAX_FRAMES = 1000, 200
CODE_BYTES, FRAME_BYTES, THREAD_BYTES = 256, 96, 1024
_LENGTH = 16  # of every object with a size: after its reference count and its type


@dataclass(frozen=True, slots=True)
class Layout:
    """Offsets, in bytes. ``runtime`` is relative to the load address of the file ``image``."""

    image: str
    runtime: int
    main_interpreter: int
    threads: int
    native_id: int
    frame: tuple[int, ...]
    code: int
    previous: int
    instruction: int
    bytecode: int
    filename: int
    qualname: int
    first_line: int
    line_table: int
    code_type: int


def words_of(data: bytes) -> list[int]:
    return [word for (word,) in iter_unpack("=Q", data[: len(data) // 8 * 8])]


def read_exactly(tid: int, address: int, size: int) -> bytes:
    data = read_memory(tid, address, size) if address else b""
    if len(data) < size:
        raise OSError(f"thread {tid} has no {size} bytes at {address:#x}")
    return data


def word_at(tid: int, address: int) -> int:
    return int.from_bytes(read_exactly(tid, address, 8), "little")


def load_address(tid: int, image: str) -> int | None:
    """Where the file ``image`` begins in a process; None when it is not there."""
    with open(f"/proc/{tid}/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.split(None, 5)
            if len(fields) == 6 and fields[5].rstrip("\n") == image and int(fields[2], 16) == 0:
                return int(fields[0].partition("-")[0], 16)
    return None


def follow(tid: int, address: int, path: tuple[int, ...]) -> int:
    for offset in path:
        address = word_at(tid, address + offset)
    return address


class Frame(NamedTuple):
    """``column`` (from 0) tells two calls on one line apart; -1 where it is not known."""

    file: str
    qualname: str
    line: int
    column: int


class StackReader:
    """Reads stacks of the threads of one attempt; what it has met of a process it remembers."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._bases: dict[int, int | None] = {}
        self._codes: dict[tuple[int, bytes], _Code] = {}

    def frames(self, tid: int) -> Iterator[Frame]:
        """The Python frames of a thread, innermost first.

        Nothing of a program that is not ours to read. Raises OSError or ValueError where its memory
        makes no sense, which a thread that does not lie still can bring about.
        """
        layout = self._layout
        base, thread = self._thread(tid)
        frame = follow(tid, thread, layout.frame) if thread else 0
        for _ in range(_MAX_FRAMES):
            if not frame:
                return
            raw = words_of(read_exactly(tid, frame, FRAME_BYTES))
            code = raw[layout.code // 8] & ~7
            entry = self._code(tid, code, base) if code else None
            if entry is not None:
                offset = raw[layout.instruction // 8] - code - layout.bytecode
                yield Frame(entry.filename, entry.qualname, *_location(entry, offset))
            frame = raw[layout.previous // 8]

    def _thread(self, tid: int) -> tuple[int, int]:
        """Load address and thread state; zeros when there is none."""
        layout = self._layout
        for _ in range(2):
            if tid not in self._bases:
                self._bases[tid] = load_address(tid, layout.image)
            base = self._bases[tid]
            try:
                if base is not None:
                    interpreter = word_at(tid, base + layout.runtime + layout.main_interpreter)
                    newest = word_at(tid, interpreter + layout.threads)
                    thread = thread_with(tid, newest, layout.native_id)
                    if thread:
                        return base, thread
            except OSError:
                pass
            # It may have become another program since: look again where that was loaded.
            del self._bases[tid]
        return 0, 0

    def _code(self, tid: int, address: int, base: int) -> "_Code | None":
        """What a frame runs; None for a frame between C and Python, whose code is none."""
        layout = self._layout
        raw = read_exactly(tid, address, CODE_BYTES)
        if int.from_bytes(raw[8:16], "little") != base + layout.code_type:
            return None
        # All but the reference count, up to the instructions, which the interpreter adapts.
        key = (address, raw[16 : layout.bytecode])
        known = self._codes.get(key)
        if known is None:
            known = self._codes[key] = _read_code(tid, raw, layout)
        return known


@dataclass(frozen=True, slots=True)
class _Code:
    filename: str
    qualname: str
    line: int
    table: bytes
    # By the offset of an instruction, those met so far.
    locations: dict[int, tuple[int, int]] = field(default_factory=dict)


def _location(code: _Code, offset: int) -> tuple[int, int]:
    found = code.locations.get(offset)
    if found is None:
        found = code.locations[offset] = location_of(code.table, code.line, offset)
    return found


def thread_with(tid: int, newest: int, offset: int) -> int:
    """The state of thread ``tid``. A fork's main one may bear its parent's number: the oldest."""
    oldest = thread = newest
    for _ in range(_MAX_THREADS):
        if not thread:
            break
        if word_at(tid, thread + offset) == tid:
            return thread
        oldest, thread = thread, word_at(tid, thread + 8)
    with open(f"/proc/{tid}/status", "rb") as status:
        is_main = b"\nTgid:\t%d\n" % tid in status.read()
    return oldest if is_main else 0


def _read_code(tid: int, raw: bytes, layout: Layout) -> _Code:
    def pointer(at: int) -> int:
        return int.from_bytes(raw[at : at + 8], "little")

    return _Code(
        _sized(tid, pointer(layout.filename), sys.getsizeof("") - 1).decode("ascii"),
        _sized(tid, pointer(layout.qualname), sys.getsizeof("") - 1).decode("ascii"),
        int.from_bytes(raw[layout.first_line : layout.first_line + 4], "little"),
        _sized(tid, pointer(layout.line_table), sys.getsizeof(b"") - 1),
    )


def _sized(tid: int, address: int, header: int) -> bytes:
    """The bytes of a bytes object, or of an ASCII string."""
    length = word_at(tid, address + _LENGTH)
    if not 0 <= length < 1 << 20:
        raise OSError(f"no object at {address:#x}")
    return read_exactly(tid, address + header, length) if length else b""
