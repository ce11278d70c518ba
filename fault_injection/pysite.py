"""The source line of a supervised Python program that makes a call: ``train.py:41 save()``.

While a thread waits for its supervisor its interpreter's frames lie still in its memory and can be
read from there, without the program's help.

Not covered: programs that run under another interpreter than ours, file names that are not ASCII,
sub-interpreters. The answer is empty then.
"""

import os
import sysconfig

from fault_injection.pylayout import layout
from fault_injection.pystack import StackReader

_LIBRARIES = (
    *sorted({sysconfig.get_path(n) + "/" for n in ("stdlib", "platstdlib", "purelib", "platlib")}),
    "<frozen ",
)


class Sites:
    """Finds the sites of one attempt's calls."""

    def __init__(self) -> None:
        known = layout()
        self._reader = StackReader(known) if known is not None else None

    def of(self, tid: int) -> str:
        """Where the program's own code made the call that a thread waits in; empty if not known.

        The innermost line outside the installed libraries; within them when there is none.
        """
        if self._reader is None:
            return ""
        innermost = ""
        try:
            for name, qualname, line in self._reader.frames(tid):
                function = "" if qualname == "<module>" else f" {qualname}()"
                site = f"{os.path.basename(name)}:{line}{function}"
                if not name.startswith(_LIBRARIES):
                    return site
                innermost = innermost or site
        except (OSError, ValueError):
            pass
        return innermost
