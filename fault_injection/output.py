"""What a program says, kept up to a bound.

A program may write without end. Everything is taken from its pipes, so that it never blocks for
the harness's sake; the first ``limit_bytes`` are kept, and it is known that the rest was cut.
"""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Kept:
    """The beginning of a stream, and how many bytes came after it."""

    limit_bytes: int
    kept: bytearray = field(default_factory=bytearray)
    cut_bytes: int = 0

    def add(self, data: bytes) -> bytes:
        """Take ``data``; return that part of it which is kept."""
        part = data[: max(0, self.limit_bytes - len(self.kept))]
        self.kept += part
        self.cut_bytes += len(data) - len(part)
        return part
