"""The line of an instruction, from a code object's location table (CPython's locations.md). Pure.

The table is a list of entries, one for a run of instructions: a first byte with its high bit set,
four bits of kind and three of length, and, by kind, the change of the line number.
"""

_NO_LOCATION, _LONG, _NO_COLUMN = 15, 14, 13
_UNIT_BYTES = 2  # of one instruction


def line_of(table: bytes, first_line: int, offset: int) -> int:
    """The line of the instruction at a byte ``offset``; the last line that was known otherwise."""
    line, at, start = first_line, 0, 0
    while at < len(table):
        entry = table[at]
        kind, end = entry >> 3 & 15, start + ((entry & 7) + 1) * _UNIT_BYTES
        at += 1
        if kind in (_LONG, _NO_COLUMN):
            change, _ = _signed(table, at)
            line += change
        elif 10 <= kind <= 12:
            line += kind - 10
        if start <= offset < end:
            return line
        start = end
        while at < len(table) and not table[at] & 0x80:
            at += 1
    return line


def _signed(table: bytes, at: int) -> tuple[int, int]:
    """A signed number of variable length, and where the next thing begins."""
    value = shift = 0
    while True:
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            break
    return (-(value >> 1) if value & 1 else value >> 1), at
