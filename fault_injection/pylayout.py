"""Finds out where this Python interpreter keeps what is needed to read a stack from outside.

That differs from version to version and is not written down here: our own interpreter is searched
for values that we know (the addresses of our own code objects, our own threads' numbers), and the
result is believed only if a known stack is then read right.
"""

import contextlib
import ctypes
import functools
import itertools
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType, FrameType

from fault_injection.procfs import has_left
from fault_injection.pystack import (
    CODE_BYTES,
    FRAME_BYTES,
    THREAD_BYTES,
    Layout,
    StackReader,
    follow,
    load_address,
    read_exactly,
    thread_with,
    word_at,
    words_of,
)
from fault_injection.seccomp import read_memory

_SEARCHED_RUNTIME, _SEARCHED_INTERPRETER = 1 << 16, 1 << 19


@functools.cache
def layout() -> Layout | None:
    """The layout of this interpreter; None when it cannot be found, or reads a stack wrong."""
    try:
        with _parked_thread() as (native_id, frames):
            return _search(native_id, frames)
    except (OSError, ValueError, AttributeError):
        return None


@contextlib.contextmanager
def _parked_thread() -> Iterator[tuple[int, list[FrameType]]]:
    """A thread of ours that lies still in a call, with its three frames, innermost first."""
    lock, entered = threading.Lock(), threading.Event()

    def innermost() -> None:
        entered.set()
        lock.acquire()

    def middle() -> None:
        innermost()

    lock.acquire()
    thread = threading.Thread(target=middle, daemon=True)
    thread.start()
    try:
        entered.wait()
        frames = _settled_frames(thread, innermost.__code__)
        yield thread.native_id or 0, frames
    finally:
        lock.release()
        thread.join()


def _settled_frames(thread: threading.Thread, code: CodeType) -> list[FrameType]:
    """The frames of a thread once it waits in ``code`` itself, and no longer in what that calls."""
    for _ in range(1000):
        innermost = sys._current_frames()[thread.ident or 0]
        middle = innermost.f_back
        if innermost.f_code is code and middle is not None and middle.f_back is not None:
            left = has_left(thread.native_id or 0, -1, ())
            if left:  # blocked, in some call: it does not run any more
                return [innermost, middle, middle.f_back]
        time.sleep(0.001)
    raise ValueError("the thread did not come to rest")


def _search(native_id: int, known: list[FrameType]) -> Layout:
    api = ctypes.pythonapi
    api.PyThreadState_Get.restype = ctypes.c_void_p
    api.PyInterpreterState_Main.restype = ctypes.c_void_p
    ours: int = api.PyThreadState_Get()
    interpreter: int = api.PyInterpreterState_Main()
    runtime = ctypes.addressof(ctypes.c_char.in_dll(api, "_PyRuntime"))
    image = _image_of(runtime)
    base = load_address(os.getpid(), image) if image is not None else None
    if image is None or base is None:
        raise ValueError("the interpreter's own file is not to be found")
    me = os.getpid()
    newest = ours
    while above := word_at(me, newest):
        newest = above
    number = _find(me, ours, THREAD_BYTES, threading.get_native_id())
    thread = thread_with(native_id, newest, number)
    path, code = _path_to_frame(me, thread, id(known[0].f_code))
    previous = _previous_offset(me, follow(me, thread, path), code, id(known[1].f_code))
    instruction, bytecode = _instruction_offsets(
        me, word_at(me, follow(me, thread, path) + previous), known[1]
    )
    codes = [frame.f_code for frame in known]
    found = Layout(
        image=image,
        runtime=runtime - base,
        main_interpreter=_find(me, runtime, _SEARCHED_RUNTIME, interpreter),
        threads=_find(me, interpreter, _SEARCHED_INTERPRETER, newest),
        native_id=number,
        frame=path,
        code=code,
        previous=previous,
        instruction=instruction,
        bytecode=bytecode,
        filename=_field(me, codes, [id(code.co_filename) for code in codes], 8),
        qualname=_field(me, codes, [id(code.co_qualname) for code in codes], 8),
        first_line=_field(me, codes, [code.co_firstlineno for code in codes], 4),
        line_table=_field(me, codes, [id(code.co_linetable) for code in codes], 8),
        code_type=id(CodeType) - base,
    )
    told = [tuple(f[:3]) for f in itertools.islice(StackReader(found).frames(native_id), 3)]
    truth = [(f.f_code.co_filename, f.f_code.co_qualname, f.f_lineno) for f in known]
    if told != truth:
        raise ValueError(f"a stack that is {truth} was read as {told}")
    return found


def _find(tid: int, address: int, size: int, value: int) -> int:
    """Offset of the first word of a structure that has a value."""
    for offset in range(0, size, 4096):
        data = read_memory(tid, address + offset, min(4096, size - offset))
        for number, word in enumerate(words_of(data)):
            if word == value:
                return offset + 8 * number
    raise ValueError(f"{value:#x} is not at {address:#x}")


def _path_to_frame(tid: int, thread: int, wanted: int) -> tuple[tuple[int, ...], int]:
    """How to get from a thread state to its innermost frame, and where a frame has its code."""
    for number, pointer in enumerate(words_of(read_exactly(tid, thread, THREAD_BYTES))):
        for path in ((8 * number,), (8 * number, 0), (8 * number, 8)):
            try:
                frame = pointer if len(path) == 1 else word_at(tid, pointer + path[1])
                words = words_of(read_exactly(tid, frame, FRAME_BYTES))
            except OSError:
                continue
            for place, word in enumerate(words):
                if word & ~7 == wanted:
                    return path, 8 * place
    raise ValueError("no way from the thread to its frame")


def _image_of(address: int) -> str | None:
    """The file whose data lie at an address of ours."""
    image = None
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            fields = line.split(None, 5)
            low, _, high = fields[0].partition("-")
            if len(fields) == 6 and fields[5].startswith("/"):
                image = fields[5].rstrip("\n")
            if int(low, 16) <= address < int(high, 16):
                return image
    return None


def _previous_offset(tid: int, frame: int, code: int, wanted: int) -> int:
    """Where a frame has the address of the one below it."""
    for number, word in enumerate(words_of(read_exactly(tid, frame, FRAME_BYTES))):
        try:
            if word_at(tid, word + code) & ~7 == wanted:
                return 8 * number
        except OSError:
            continue
    raise ValueError("no way from a frame to the one below")


def _instruction_offsets(tid: int, address: int, frame: FrameType) -> tuple[int, int]:
    """Where a frame has its instruction pointer, and where a code object has its first one."""
    code, size = id(frame.f_code), sys.getsizeof(frame.f_code)
    for number, word in enumerate(words_of(read_exactly(tid, address, FRAME_BYTES))):
        if code < word < code + size:
            return 8 * number, word - frame.f_lasti - code
    raise ValueError("no instruction pointer in a frame")


def _field(tid: int, codes: list[CodeType], values: list[int], size: int) -> int:
    """The offset at which each of several code objects has its value of a field."""
    for offset in range(16, CODE_BYTES - 8, size):
        found = [read_exactly(tid, id(code) + offset, size) for code in codes]
        if [int.from_bytes(data, "little") for data in found] == values:
            return offset
    raise ValueError("a field of code objects is not to be found")
