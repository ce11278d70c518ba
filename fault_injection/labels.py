"""Places: ``<call>-<name>#<occurrence>``, the same in every run although threads interleave.

The name is the last component of a path, with every byte that is not of ``A-Za-z0-9._+-`` as
``%xx``, cut to 40 characters. Occurrences of one label are counted from 1 in each attempt. A name
that differs from run to run (a random temporary name) is written ``~``: which names those are is
found by comparing two recordings of the same program.
"""

import re

from fault_injection.trace import Trace

_NAME_LIMIT = 40
_ESCAPED = re.compile(rb"[^A-Za-z0-9._+-]")
_UNSTABLE = b"~"
_ALWAYS_STABLE = {b".": ".", _UNSTABLE: "~", b"stdout": "stdout", b"stderr": "stderr"}


def label_name(name: bytes) -> str:
    """A file name as it is written in a place."""
    if name == _UNSTABLE:
        return "~"
    text = _ESCAPED.sub(lambda match: b"%%%02x" % match[0][0], name)
    return text[:_NAME_LIMIT].decode("ascii")


class Labeller:
    """Gives each call of one attempt its place."""

    def __init__(self, stable_names: frozenset[bytes] | None = None) -> None:
        """Names outside ``stable_names`` become ``~``; None: every name is stable."""
        self._stable = stable_names
        self._names = dict(_ALWAYS_STABLE)
        self._count: dict[str, int] = {}

    def place(self, verb: str, name: bytes) -> str:
        """The place of the next call ``verb`` on ``name``."""
        written = self._names.get(name)
        if written is None:
            unstable = self._stable is not None and name not in self._stable
            written = self._names[name] = "~" if unstable else label_name(name)
        return self.numbered(f"{verb}-{written}")

    def numbered(self, label: str) -> str:
        """``label#n`` with the number of its occurrence."""
        number = self._count.get(label, 0) + 1
        self._count[label] = number
        return f"{label}#{number}"


def names(trace: Trace) -> frozenset[bytes]:
    """Every name in the starting tree and in the operations."""
    found: set[bytes] = set()
    for node in trace.start.values():
        found.update(node.entries)
    for op in trace.operations:
        found.update((op.name, op.new_name))
    return frozenset(found - {b""})


def stable_names(trace_a: Trace, trace_b: Trace) -> frozenset[bytes]:
    """The names that two recordings of one program have in common."""
    return names(trace_a) & names(trace_b)
