"""SIGTERM and SIGINT: the first asks the run to stop after its step, the second ends it at once.

The handler only notes the signal; the training loop looks at the note between steps, and start-up
between its phases. A signal that was ignored when the program started (SIGINT of a shell's
background job) stays ignored.

Not covered: SIGHUP, which keeps its meaning (end at once).
"""

import contextlib
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass(slots=True)
class StopRequest:
    """Which signal asked to stop; 0 while none did."""

    signum: int = 0

    @property
    def exit_code(self) -> int:
        """What the program ends with: 143 for SIGTERM, 130 for SIGINT."""
        return 128 + self.signum


@contextlib.contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within it, the first signal is noted in the yielded request; the old handlers come back."""
    request = StopRequest()

    def note(signum: int, _frame: FrameType | None) -> None:
        request.signum = signum
        for each in previous:
            signal.signal(each, signal.SIG_DFL)  # so that a second signal ends the process
        name = signal.Signals(signum).name
        text = f"tinyllm: {name}: finishing the step, then saving; a second signal ends at once\n"
        with contextlib.suppress(OSError):
            os.write(2, text.encode())

    previous = {
        each: signal.getsignal(each)
        for each in SIGNALS
        if signal.getsignal(each) is not signal.SIG_IGN
    }
    for each in previous:
        signal.signal(each, note)
    try:
        yield request
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler)
