"""``explore``: every crash state of a piece of Python that writes files, judged by your own check.

The workload runs, recorded, in a forked child; from the recording every state that a power
loss may leave under a persistence model is computed, laid out as real files, and given to the
check, each in a fork of its own. Nothing that setup, workload and checks do in memory reaches the
caller or each other, except that workload and checks see what setup did.

Not covered: what the workload asks other programs to do that were running already; failpoints.
See ``docs/from-python-and-pytest.md``.
"""

import contextlib
import functools
import importlib
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fault_injection import leftovers, pylayout, seccomp
from fault_injection.crash_states import DEFAULT_BOUND, MODELS
from harness.checking import Plan
from harness.errors import CannotJudge, UsageError, no_room
from harness.exploring import Count, Explored, Violation, explored
from harness.isolated import in_fork
from harness.report.clean import printable
from harness.scratch import emptied, removed

__all__ = ["DEFAULT_MODELS", "Count", "Exploration", "Violation", "explore"]

DEFAULT_MODELS = ("posix", "ext4", "xfs", "btrfs")
MAX_SHOWN = 3
_MEMORY = "/dev/shm"
_ROOM_BYTES = 512 << 20
_SLACK_S = 30.0  # for what is bounded by itself: laying out, enumerating


@dataclass(frozen=True, slots=True)
class Exploration:
    """What was found. ``violations`` are the failing states, the smallest first, by model.

    Only the simplest are explained (``needs``), and only the first are kept where there are very
    many: ``counts`` has the true numbers. ``checks`` is how often the check ran; ``operations``
    what the workload did; ``notes`` what was not tried.
    """

    violations: tuple[Violation, ...]
    counts: Mapping[str, Count]
    checks: int
    operations: tuple[str, ...]
    seed: int = 0
    notes: tuple[str, ...] = ()

    def raise_for_violations(self) -> None:
        """AssertionError with :meth:`text` when any state failed."""
        __tracebackhide__ = True
        if self.violations:
            raise AssertionError(self.text())

    def text(self) -> str:
        """The smallest failing states for people, one of each cause, and the counts."""
        lines = [self._headline()]
        shown: dict[str, Violation] = {}
        under: dict[str, list[str]] = {}
        for violation in self.violations:
            if violation.explained:
                shown.setdefault(violation.signature, violation)
                under.setdefault(violation.signature, []).append(violation.model)
        for signature, violation in list(shown.items())[:MAX_SHOWN]:
            others = [m for m in self.counts if m in under[signature] and m != violation.model]
            also = [f"    also under {', '.join(others)}"] if others else []
            lines += ["", *violation.lines(), *also]
        if len(shown) > MAX_SHOWN:
            lines += ["", f"  and {len(shown) - MAX_SHOWN} more causes: see .violations"]
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join(lines)

    def _headline(self) -> str:
        said = [
            f"{model} {n.failed} of {n.states}{' (sampled)' if n.sampled else ''}"
            for model, n in self.counts.items()
        ]
        word = "fails on crash states" if self.violations else "holds on every crash state"
        return f"the check {word}   {', '.join(said)}"


def explore(
    *,
    workload: Callable[[Path], object],
    check: Callable[..., object],
    setup: Callable[[Path], object] | None = None,
    models: Sequence[str] = DEFAULT_MODELS,
    seed: int = 0,
    bound: int = DEFAULT_BOUND,
    root: str | os.PathLike[str] | None = None,
    timeout_s: float = 30.0,
    equal_reads: bool = True,
) -> Exploration:
    """Record ``workload(root)`` and run ``check(root)`` on every state a power loss may leave.

    The workload runs once; one that starts threads or processes runs again from the same tree with
    one after another of them slow, so that what nobody waits for comes late.

    ``setup(root)`` makes the tree that is durable before. A check fails by returning something
    false, by an exception, by a crash or by taking longer than ``timeout_s``; returning None is
    passing, so that a check can be made of assertions. A check that takes ``told``, or a second
    argument, gets the list of the lines that the workload had printed before the crash.

    ``root`` is the path of the tree, for setup, workload and checks alike: a directory that is
    empty or does not exist (default: one in memory), left as it was. ``bound`` is the number of
    sets of durable operations that are tried at one crash place before they are sampled by
    ``seed``; ``counts`` says where that happened. ``timeout_s`` bounds setup, workload and each
    check. A state that answers alike all that a check asked of another (which names, whose content)
    is judged alike without a run, but for a sample; ``equal_reads=False`` runs the check on every
    distinct state.

    Raises UsageError for wrong arguments, CannotJudge, naming the reason, when the workload cannot
    be traced, fails by itself, or changes nothing; and what setup raises.
    """
    _require(models, bound=bound, timeout_s=timeout_s)
    for name, function in (("setup", setup), ("workload", workload), ("check", check)):
        if not callable(function) and not (name == "setup" and function is None):
            raise UsageError(f"{name}={function!r}: has to be a function that takes the root")
    reason = seccomp.unavailable()
    if reason is not None:
        raise CannotJudge(f"explore cannot run here: {reason}")
    _load_once()
    with contextlib.ExitStack() as undone:
        work = Path(
            undone.enter_context(leftovers.workspace(run_id="explore", memory=_fits_in_memory()))
        )
        tree = work / "root" if root is None else _usable(root)
        undone.callback(_left_as_it_was, tree, existed=tree.exists())
        tree.mkdir(exist_ok=True)
        plan = Plan(
            setup=setup,
            workload=workload,
            check=check,
            told=_takes_told(check),
            models=tuple(dict.fromkeys(models)),
            seed=seed,
            bound=bound,
            root=tree,
            spool=work / "spool",
            timeout_s=timeout_s,
            equal_reads=equal_reads,
        )
        ended = in_fork(lambda beat: explored(plan, beat), silence_s=timeout_s + _SLACK_S)
    if ended.error is not None:
        if isinstance(ended.error, OSError) and (full := no_room(ended.error)):
            raise full from ended.error
        if not isinstance(ended.error, CannotJudge):
            ended.error.add_note(f"in the process that explores:\n{printable(ended.problem)}")
        raise ended.error
    if ended.value is None:
        raise CannotJudge(
            f"setup, or the process that explores, {printable(ended.problem)}".rstrip()
        )
    return _exploration(ended.value, seed=seed)


@functools.cache
def _load_once() -> None:
    """Load here what every child would otherwise load anew."""
    importlib.import_module("fault_injection.recorder")
    importlib.import_module("fault_injection.spool")
    pylayout.layout()


def _fits_in_memory() -> bool:
    """Whether the file system in memory can be used, and has room for trees."""
    with contextlib.suppress(OSError):
        room = os.statvfs(_MEMORY)
        return room.f_bavail * room.f_frsize >= _ROOM_BYTES and os.access(_MEMORY, os.W_OK)
    return False


def _exploration(found: Explored, *, seed: int) -> Exploration:
    return Exploration(
        violations=found.violations,
        counts=dict(found.counts),
        checks=found.checks,
        operations=found.operations,
        seed=seed,
        notes=found.notes,
    )


def _require(models: Sequence[str], *, bound: int, timeout_s: float) -> None:
    if isinstance(models, str) or not models:
        raise UsageError(f"models={models!r}: give a list of names, such as ['posix', 'ext4']")
    for model in models:
        if model not in MODELS:
            raise UsageError(
                f"models: {model!r} is no persistence model; there are {', '.join(MODELS)}"
            )
    if bound < 1:
        raise UsageError(f"bound={bound}: at least one set a place is needed")
    if not timeout_s > 0:
        raise UsageError(f"timeout_s={timeout_s}: has to be more than nothing")


def _usable(root: str | os.PathLike[str]) -> Path:
    path = Path(os.path.realpath(root))
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UsageError(f"root={path}: has to be an empty directory, or not to exist")
    if not path.parent.is_dir():
        raise UsageError(f"root={path}: {path.parent} is no directory")
    return path


def _left_as_it_was(tree: Path, *, existed: bool) -> None:
    if existed:
        emptied(tree)
    else:
        removed(tree)


def _takes_told(check: Callable[..., object]) -> bool:
    """Whether a check wants the printed lines: a second argument without a default, or ``told``."""
    try:
        parameters = list(inspect.signature(check).parameters.values())
    except (TypeError, ValueError):
        return False
    positional = [
        p
        for p in parameters
        if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        and (p.default is p.empty or p.name == "told")
    ]
    return len(positional) >= 2
