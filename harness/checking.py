"""The check of an exploration: run in forks, remembered by state and by what it looked at.

A check is run supervised, so that it is known what it asked of the tree: another state that answers
the same (``harness.power.equal_reads``) gets the same answer without a run. A check that reads
nearly everything in every state gains nothing by that, and is run unsupervised from then on. Of the
states that were answered so a sample is run all the same; when one comes out otherwise, the check
depends on something that is not seen, and all are to be run (:class:`Unsteady`).
"""

import gc
import os
import pickle
import random
import sys
import sysconfig
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import NoReturn

from fault_injection import hugepages
from fault_injection.attempt import Attempt, Command, Settings, run_attempt
from fault_injection.crash_states import LayoutError, State, VisibleTree, materialize
from harness.errors import CannotJudge
from harness.isolated import Ended, in_fork, killed_by
from harness.power.equal_reads import Known, questions_of
from harness.report.clean import printable
from harness.scratch import emptied

_BEAT_EVERY_S = 0.5
_CHECKS_BEFORE_HUGE_PAGES = 32  # many checks are many forks, of a process that may have much loaded
# After so many supervised runs, at least one in so many states must have been answered without.
_RUNS_BEFORE_COUNTING, _ANSWERED_AT_LEAST = 64, 0.3
_CHECK_EVERY = 50  # of the states answered without a run, at most one in so many is run
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


@dataclass(frozen=True, slots=True)
class Plan:
    """What to explore. ``told``: the check takes the printed lines as a second argument."""

    setup: Callable[[Path], object] | None
    workload: Callable[[Path], object]
    check: Callable[..., object]
    told: bool
    models: tuple[str, ...]
    seed: int
    bound: int
    root: Path
    spool: Path
    timeout_s: float
    equal_reads: bool = True


@dataclass(frozen=True, slots=True)
class Wrong:
    """What a check said of a state that it did not like."""

    error: str
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Printed:
    """The ``lines`` on stdout; operation ``ends[k]`` completed all up to number ``counts[k]``."""

    ends: tuple[int, ...] = ()
    counts: tuple[int, ...] = ()
    lines: tuple[str, ...] = ()

    def by(self, state: State) -> tuple[str, ...]:
        """What had been printed before the crash."""
        return self.lines[: self.counts[state.outputs - 1]] if state.outputs else ()


class Unsteady(Exception):
    """Two states that answered alike all that the check was seen to ask, and were judged apart."""


@dataclass(frozen=True, slots=True)
class _Answer:
    wrong: Wrong | None


@dataclass(slots=True)
class Checks:
    """The check, and what is known of it. ``ran`` counts its runs.

    ``equal_reads`` False: each distinct state is a run.
    """

    plan: Plan
    printed: Printed
    beat: Callable[[], None]
    equal_reads: bool
    ran: int = 0
    _answered: int = 0
    _states: dict[tuple[str, int], Wrong | None] = field(default_factory=dict)
    _alike: dict[tuple[str, ...], Known[_Answer]] = field(default_factory=dict)
    _rng: random.Random = field(default_factory=random.Random)
    _heard_s: float = 0.0

    def __post_init__(self) -> None:
        self._rng.seed(self.plan.seed)

    def wrong(self, state: State) -> Wrong | None:
        """What is wrong with a state, or None. Raises :class:`Unsteady`."""
        if time.monotonic() - self._heard_s > _BEAT_EVERY_S:
            self.beat()
            self._heard_s = time.monotonic()
        if state.identity not in self._states:
            self._states[state.identity] = self._judged(state)
        return self._states[state.identity]

    def is_good(self, state: State) -> bool:
        """Whether the check passes."""
        return self.wrong(state) is None

    def _judged(self, state: State) -> Wrong | None:
        tree = state.tree()
        told = self.printed.by(state)
        if not self._pays():
            return self._run(tree, told)
        alike = self._alike.setdefault(told, Known())
        found = alike.find(tree)
        if found is None:
            return self._run_observed(tree, told, alike)
        self._answered += 1
        if self._rng.random() < min(1 / _CHECK_EVERY, 1 / self._answered):
            wrong = self._run(tree, told)
            if (wrong is None) != (found.wrong is None):
                raise Unsteady
        return found.wrong

    def _pays(self) -> bool:
        if self.equal_reads and self.ran >= _RUNS_BEFORE_COUNTING:
            self.equal_reads = self._answered >= _ANSWERED_AT_LEAST * (self._answered + self.ran)
        return self.equal_reads

    def _lay_out(self, tree: VisibleTree) -> None:
        try:
            materialize(tree, str(emptied(self.plan.root)))
        except LayoutError as error:
            raise CannotJudge(f"a crash state cannot be laid out: {error}") from error
        self.ran += 1
        if self.ran == _CHECKS_BEFORE_HUGE_PAGES:
            hugepages.collapse()

    def _run(self, tree: VisibleTree, told: tuple[str, ...]) -> Wrong | None:
        self._lay_out(tree)
        plan = self.plan
        ended = in_fork(lambda _: _asked(plan, told), silence_s=plan.timeout_s)
        self.beat()
        return _wrong_of(ended)

    def _run_observed(
        self, tree: VisibleTree, told: tuple[str, ...], alike: Known[_Answer]
    ) -> Wrong | None:
        self._lay_out(tree)
        plan = self.plan
        with open(os.memfd_create("answer"), "w+b", buffering=0) as file:
            attempt = run_attempt(
                Command(("the check",), os.getcwd(), (), call=lambda: _answer(plan, told, file)),
                Settings(
                    str(plan.root),
                    timeout_s=plan.timeout_s,
                    observe_reads=True,
                    follow_outputs=False,
                    leftover_grace_s=0.0,  # its answer is all that was wanted
                ),
            )
            file.seek(0)
            wrong = _wrong_of(_ended(attempt, file.read(), plan.timeout_s))
        self.beat()
        for stream, output in ((sys.stdout, attempt.stdout), (sys.stderr, attempt.stderr)):
            stream.write(output.decode(errors="backslashreplace"))
        if attempt.reads is not None and not attempt.untraceable and not attempt.timed_out:
            alike.add(tree, questions_of(attempt.reads), _Answer(wrong))
        return wrong


def _answer(plan: Plan, told: tuple[str, ...], file: FileIO) -> NoReturn:
    """In the supervised child: check, and leave the answer in ``file``."""
    gc.freeze()  # garbage of the parent is not ours to finalize
    file.write(pickle.dumps(_asked(plan, told)))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(0)  # threads of the check are not waited for


def _ended(attempt: Attempt, answer: bytes, timeout_s: float) -> Ended[Wrong | None]:
    if attempt.start_error or attempt.bounded:
        return Ended(problem=f"was stopped: {attempt.start_error or attempt.bounded}")
    if attempt.timed_out:
        return Ended(problem=f"did not end within {timeout_s:g} s")
    if attempt.signal is not None:
        return Ended(problem=killed_by(attempt.signal))
    if not answer:
        return Ended(problem=f"ended without an answer (exit {attempt.exit_code})")
    return Ended(value=pickle.loads(answer))


def _wrong_of(ended: Ended[Wrong | None]) -> Wrong | None:
    return Wrong(f"the check {ended.problem}") if ended.problem else ended.value


def _asked(plan: Plan, told: tuple[str, ...]) -> Wrong | None:
    try:
        answer = plan.check(plan.root, list(told)) if plan.told else plan.check(plan.root)
        if answer is None or answer:
            return None
    except BaseException as error:
        said = "".join(traceback.format_exception(error))
        return Wrong(_in_a_line(error), printable(said, limit=20_000))
    return Wrong(f"the check returned {answer!r}")


def _in_a_line(error: BaseException) -> str:
    """The exception, and the last line that is neither the library's nor an installed package's."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename != __file__]
    own = [f for f in frames if not f.filename.startswith(_LIBRARIES)] or frames
    message = str(error).strip() or (own[-1].line or "" if own else "")
    first = f": {message.splitlines()[0]}" if message else ""
    name = os.path.basename(own[-1].filename) if own else ""
    where = f"   at {name}:{own[-1].lineno} {own[-1].name}()" if own else ""
    return f"{type(error).__name__}{first}{where}"
