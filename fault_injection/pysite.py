"""The source line of a supervised Python program that makes a call: ``train.py:41 save()``.

With a helper in a file of its own: ``durable.py:79 sync() from train.py:41 save()``.

While a thread waits for its supervisor its interpreter's frames lie still in its memory and can be
read from there, without the program's help.

Not covered: programs that run under another interpreter than ours, file names that are not ASCII,
sub-interpreters. The answer is empty then.
"""

import os
import sysconfig
from typing import NamedTuple

from fault_injection.pylayout import layout
from fault_injection.pystack import StackReader

_LIBRARIES = (
    *sorted({sysconfig.get_path(n) + "/" for n in ("stdlib", "platstdlib", "purelib", "platlib")}),
    "<frozen ",
)
_HERE = os.path.dirname(os.path.abspath(__file__))
# Above these a program that was forked or called has no callers of its own.
_NO_CALLERS = ("<", _HERE + "/", os.path.join(os.path.dirname(_HERE), "harness") + "/")
_CALLED_FROM, _AT = " < ", " @"
_DEPTH = 8


class Site(NamedTuple):
    """``words``: the line for a reader; ``stack``: it and its callers, to tell calls apart."""

    words: str
    stack: str


def callers(stack: str) -> list[str]:
    """The lines above the first one of a ``stack``, the nearest first."""
    return stack.partition(_AT)[0].split(_CALLED_FROM)[1:]


class Sites:
    """Finds the sites of one attempt's calls."""

    def __init__(self) -> None:
        known = layout()
        self._reader = StackReader(known) if known is not None else None

    def of(self, tid: int) -> Site:
        """Where the program's own code made the call that a thread waits in; empty if not known.

        The innermost line outside the installed libraries; within them when there is none. Called
        from another file of the program, that line comes too: the first may be a helper's, the
        same for every call of its kind.
        """
        own: list[tuple[str, str]] = []  # file, line in words; the innermost first
        columns: list[str] = []
        innermost = ""
        try:
            for name, qualname, line, column in self._reader.frames(tid) if self._reader else ():
                function = "" if qualname == "<module>" else f" {qualname}()"
                site = f"{os.path.basename(name)}:{line}{function}"
                if name.startswith(_LIBRARIES):
                    innermost = innermost or site
                elif own and (name.startswith(_NO_CALLERS) or len(own) == _DEPTH):
                    break
                else:
                    own.append((name, site))
                    columns.append(str(column))
        except (OSError, ValueError):
            pass
        if not own:
            return Site(innermost, innermost)
        (file, words), *above = own
        other = next((site for name, site in above if name != file), None)
        return Site(
            words if other is None else f"{words} from {other}",
            _CALLED_FROM.join(site for _, site in own) + _AT + ",".join(columns),
        )
