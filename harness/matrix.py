"""The detection matrix: mutants times layers, every cell known in advance.

A broken mutant must be caught in each claimed layer by one of the invariants that are expected
there: a failure by another one, or an error of the program, does not count. A correct one, and
every cell where nothing can be seen, must be silent.
"""

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from fault_injection import volumes
from harness.baseline import Baseline
from harness.campaign import Campaign, Options, Progress, baselines
from harness.errors import CannotJudge, HarnessError
from harness.layers import Bounds, run_subject
from harness.mutants import Mutant
from harness.subjects import with_timeout

BOUNDS = Bounds(
    kill=None,
    second_kill=40,
    later_kill=12,
    saved_kill=6,
    third_kill=16,
    signal=18,
    output_signal=12,
    realfs=None,
    rewind=8,
)
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Cell:
    """One mutant under one layer. ``found`` are the invariants that were reported there.

    ``expected`` None: nothing is claimed. ``ok`` says whether the claim holds.
    """

    layer: str
    expected: tuple[str, ...] | None
    found: tuple[str, ...]
    ok: bool
    cases: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One mutant. ``problem`` is why a claim of the whole row does not hold, or ""."""

    mutant: Mutant
    cells: tuple[Cell, ...]
    problem: str = ""
    said: str = ""

    @property
    def ok(self) -> bool:
        """Whether every claim holds."""
        return not self.problem and all(cell.ok for cell in self.cells)


def matrix(
    mutants: Sequence[Mutant],
    *,
    options: Options,
    executor: Executor,
    progress: Progress,
    bounds: Bounds = BOUNDS,
) -> Iterator[Row]:
    """The rows, one after another, in the order of the mutants."""
    for mutant in mutants:
        if mutant.missing:
            continue
        subject = with_timeout(mutant.subject, baseline_seconds=0)
        if mutant.subject.timeout_s is None:
            slow = "torch" in subject.preload  # tinyllm, whichever part of it
            subject = replace(subject, timeout_s=TIMEOUT_S * (4 if slow else 1))
        [(_, answer)] = baselines([subject], options=options, executor=executor)
        yield _row(replace(mutant, subject=subject), answer, options, executor, progress, bounds)


def _row(
    mutant: Mutant,
    answer: Baseline | HarnessError,
    options: Options,
    executor: Executor,
    progress: Progress,
    bounds: Bounds,
) -> Row:
    if isinstance(answer, HarnessError):
        if mutant.kind == "nondeterministic" and isinstance(answer, CannotJudge):
            return Row(mutant, (), said=str(answer))
        return Row(mutant, (), problem=f"no baseline: {answer}")
    if mutant.kind == "nondeterministic":
        return Row(mutant, (), problem="the baseline took it for deterministic")
    if mutant.kind == "untraceable":
        named = answer.untraceable
        problem = "" if mutant.call in named else f"{mutant.call} was not named, but {named!r}"
        return Row(mutant, (), problem=problem, said=named)
    if answer.untraceable:
        return Row(mutant, (), problem=f"not traceable: {answer.untraceable}")
    claimed = tuple(
        layer
        for layer in options.faults
        if layer in mutant.expect and volume_missing(layer) is None
    )
    needed = claimed if "kill" in claimed or "double" not in claimed else ("kill", *claimed)
    if mutant.expect.get("signal") and not mutant.expect.get("kill"):
        # What only a signal shows may need one certain place: a sample could pass it by.
        bounds = replace(bounds, signal=None, output_signal=None)
    if mutant.subject.format == "tinyllm":
        # One save, the first with retention at work: there every mutant shows itself.
        retaining = (mutant.subject.keep_ckpts,)
        bounds = replace(bounds, saves=retaining, power_saves=retaining)
    campaign = Campaign(
        options=replace(options, faults=needed),
        executor=executor,
        progress=progress,
        deadline=None,
    )
    run_subject(campaign, mutant.subject, answer, bounds)
    return Row(mutant, tuple(_cell(campaign, mutant, layer) for layer in claimed))


def volume_missing(layer: str) -> str | None:
    """Why a layer of real file systems cannot run here; None for all that can."""
    kind, _, file_system = layer.partition("/")
    return volumes.unavailable(file_system) if kind == "realfs" else None


def _cell(campaign: Campaign, mutant: Mutant, layer: str) -> Cell:
    found = tuple(sorted({v.invariant for v in campaign.violations if v.layer == layer}))
    expected = mutant.expect[layer]
    count = campaign.layers.get(layer)
    ran = count.cases if count else 0
    # A double layer may have nothing to build on when every single kill already failed.
    caught = bool(set(found) & set(expected))
    ok = (caught if expected else not found) and (ran > 0 or layer == "double")
    return Cell(layer, expected, found, ok, ran)


def short_name(layer: str) -> str:
    """A layer's name as a column's heading: a model by its own, a real file system as real."""
    kind, _, name = layer.partition("/")
    return f"real {name}" if kind == "realfs" else name or kind


def markdown(mutants: Sequence[Mutant], *, layers: Sequence[str]) -> str:
    """The known truth for the README: caught (**x**), silent (-), not claimed (blank)."""
    short = [short_name(layer) for layer in layers]
    lines = [
        f"| mutant | {' | '.join(short)} | what is wrong, or how it is right |",
        f"|---{'|:-:' * len(layers)}|---|",
    ]
    for mutant in mutants:
        cells = []
        for layer in layers:
            expected = mutant.expect.get(layer)
            if mutant.kind in ("untraceable", "nondeterministic"):
                cells.append("exit 3")
            else:
                cells.append("" if expected is None else "**x**" if expected else "-")
        name = f"`{mutant.name}`"
        lines.append(f"| {name} | {' | '.join(cells)} | {mutant.kind}: {mutant.what} |")
    return "\n".join(lines) + "\n"
