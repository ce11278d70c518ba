"""Progress of a run: a bar on a terminal, plain lines in a CI log.

A plain line comes at the beginning and the end of each layer and in between whenever some seconds
have passed, so that a log shows life without being buried. There is no thread behind this: the
harness forks, and threads and forks do not mix. Whoever waits long for one case calls
:meth:`Shown.beat` now and then, which costs a comparison.

A stream that cannot be written to any more (a closed pipe) ends the showing, never the run.
"""

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import TaskID as _Task

from harness.report.clean import one_line
from harness.report.words import duration

HEARTBEAT_S = 10.0
REDRAW_S = 0.1


class Shown:
    """What a run tells while it runs. Made by :func:`progress`.

    ``total`` is the number of cases of the whole run, None when it is not known beforehand.
    """

    def __init__(
        self,
        *,
        total: int | None,
        stream: TextIO,
        clock: Callable[[], float],
        bar: Progress | None,
    ) -> None:
        self.done = 0
        self.failed = 0
        self._total = total
        self._stream: TextIO | None = stream
        self._clock = clock
        self._bar = bar
        self._task: _Task | None = None
        self._name = ""
        self._layer_total = 0
        self._layer_done = 0
        self._layer_failed = 0
        self._working = ""
        self._began = self._layer_began = self._said = clock()

    def layer(self, name: str, total: int) -> None:
        """A layer of ``total`` cases begins; the one before it is over."""
        self._close_layer()
        self._name, self._layer_total = one_line(name, limit=60), total
        self._layer_done = self._layer_failed = 0
        self._working = ""
        self._layer_began = self._clock()
        if self._bar is not None:
            self._task = self._bar.add_task(self._name, total=total, failed="", working="")
        self._say()

    def advance(self, *, failed: bool = False) -> None:
        """One case is done."""
        self.done += 1
        self.failed += failed
        self._layer_done += 1
        self._layer_failed += failed
        self._update()
        self.beat()

    def working(self, words: str) -> None:
        """How far the cases under way have come; shown beside the count of those that are done."""
        self._working = one_line(words, limit=60)
        self._update()
        self.beat()

    def _update(self) -> None:
        if self._bar is not None and self._task is not None:
            failed, working = self._layer_failed_words(), self._working
            self._bar.update(self._task, completed=self._layer_done, failed=failed, working=working)

    def _layer_failed_words(self) -> str:
        return f"{self._layer_failed:,} failed" if self._layer_failed else ""

    def beat(self) -> None:
        """Say again where we are, when it is time to."""
        pause = HEARTBEAT_S if self._bar is None else REDRAW_S
        if self._clock() - self._said >= pause:
            self._say()

    def finish(self) -> None:
        """The run is over."""
        self._close_layer()

    def _close_layer(self) -> None:
        if self._name:
            if self._bar is None:
                self._say(ended=True)
            elif self._task is not None:
                self._redraw()
        self._name, self._task = "", None

    def _say(self, *, ended: bool = False) -> None:
        self._said = self._clock()
        if self._bar is not None:
            self._redraw()
            return
        took = duration(self._said - (self._layer_began if ended else self._began))
        words = f"{self._name}: {self._layer_done:,}/{self._layer_total:,}"
        for said in filter(None, (self._layer_failed_words(), self._working)):
            words += f", {said}"
        if self._total:
            words += f"   [{self.done:,}/{self._total:,} in all]"
        self._write(f"{words}   {'took ' if ended else ''}{took}\n")

    def _write(self, line: str) -> None:
        if self._stream is None:
            return
        try:
            self._stream.write(line)
            self._stream.flush()
        except (OSError, ValueError):  # ValueError: closed on our side
            self._stream = None

    def _redraw(self) -> None:
        assert self._bar is not None
        try:
            self._bar.refresh()
        except OSError:
            self._bar.disable = True


@contextmanager
def progress(
    total: int | None = None,
    stream: TextIO | None = None,
    *,
    clock: Callable[[], float] = time.monotonic,
) -> Iterator[Shown]:
    """Show progress on ``stream`` (default: stderr) until the block ends.

    A bar when the stream is a terminal and no CI system is at work (``CI`` in the environment, or
    ``TERM=dumb``), lines otherwise.
    """
    out = sys.stderr if stream is None else stream
    if not _wants_bar(out):
        shown = Shown(total=total, stream=out, clock=clock, bar=None)
        yield shown
        shown.finish()
        return
    bar = Progress(
        TextColumn("{task.description:<28}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TextColumn("[bold red]{task.fields[failed]}"),
        TextColumn("{task.fields[working]}"),
        TimeElapsedColumn(),
        console=Console(file=out),
        auto_refresh=False,
        transient=True,
    )
    shown = Shown(total=total, stream=out, clock=clock, bar=bar)
    with contextlib.suppress(OSError):
        bar.start()
    try:
        yield shown
        shown.finish()
    finally:
        with contextlib.suppress(OSError):
            bar.stop()


def _wants_bar(stream: TextIO) -> bool:
    environment = os.environ
    return stream.isatty() and not environment.get("CI") and environment.get("TERM") != "dumb"
