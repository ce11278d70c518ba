"""Where an instruction stands in its source, from a code object's location table. Pure.

The table (CPython's locations.md) is a list of entries, one for a run of instructions: a first byte
with its high bit set, four bits of kind and three of length, and, by kind, the change of the line
number and the column.
"""

_NO_LOCATION, _LONG, _NO_COLUMN = 15, 14, 13
_UNIT_BYTES = 2  # of one instruction


def location_of(table: bytes, first_line: int, offset: int) -> tuple[int, int]:
    """Line and column (from 0; -1: not known) of the instruction at a byte ``offset``.

    The last line that was known where it has none of its own.
    """
    line, at, start = first_line, 0, 0
    while at < len(table):
        entry = table[at]
        kind, end = entry >> 3 & 15, start + ((entry & 7) + 1) * _UNIT_BYTES
        at += 1
        column = -1
        if kind == _LONG:
            change, after = _signed(table, at)
            line += change
            _, after = _unsigned(table, after)  # where it ends
            column = _unsigned(table, after)[0] - 1
        elif kind == _NO_COLUMN:
            line += _signed(table, at)[0]
        elif 10 <= kind <= 12:
            line += kind - 10
            column = table[at]
        elif kind < 10:
            column = kind << 3 | table[at] >> 4
        if start <= offset < end:
            return line, column
        start = end
        while at < len(table) and not table[at] & 0x80:
            at += 1
    return line, -1


def _signed(table: bytes, at: int) -> tuple[int, int]:
    """A signed number of variable length, and where the next thing begins."""
    value, at = _unsigned(table, at)
    return (-(value >> 1) if value & 1 else value >> 1), at


def _unsigned(table: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = table[at]
        at += 1
        value |= (byte & 63) << shift
        shift += 6
        if not byte & 64:
            return value, at
