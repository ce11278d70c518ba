"""What a run found, as it is written to ``result.json``: the contract ``durability-result/1``.

The structs below are the file's fields, in order. Every page and every JUnit report is made from
this file alone, so that it can be made again from a stored one.
"""

import msgspec

FORMAT = "durability-result/1"

PASS, FAIL, INCONCLUSIVE = "pass", "fail", "inconclusive"


class Baseline(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The uninterrupted run: ``steps`` losses seen, wall ``seconds``, ``operations`` under root.

    ``losses`` are (step, loss as printed) for the page's curve; a long run may give every n-th.
    """

    steps: int
    seconds: float
    operations: int
    losses: list[tuple[int, str]] = []


class LayerCount(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Counts of one layer. ``cases``, ``failed`` always; the others where they apply.

    ``inconclusive`` cases whose fault was not seen. Power only: ``states`` distinct states,
    ``judged`` of them run for real, ``equal_reads`` answered without a run, ``sampled`` true when
    a crash place had more states than the bound.
    """

    cases: int
    failed: int
    inconclusive: int = 0
    states: int = 0
    judged: int = 0
    equal_reads: int = 0
    sampled: bool = False
    seconds: float = 0.0


class Violation(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One broken invariant in one case.

    ``message`` is in training terms. ``needs``, ``lost``, ``crash`` and ``holds_if`` are the lines
    that people are shown (empty when the layer cannot say). ``signature`` groups cases:
    invariant, needed order, source place. ``config`` names the subject's configuration.
    ``expected`` and ``found`` are the two values that differ, where the invariant compares two.
    """

    case: str
    layer: str
    invariant: str
    message: str
    bundle: str = ""
    config: str = ""
    signature: str = ""
    needs: str = ""
    lost: str = ""
    crash: str = ""
    holds_if: str = ""
    expected: str = ""
    found: str = ""
    evidence: str = ""
    reproduce: str = ""


class Lint(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """Advice from the trace alone: ``name``, the ``place`` of the operation, file and source."""

    name: str
    place: str
    file: str
    message: str
    site: str = ""
    config: str = ""


class CaseRecord(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """One case that ran: its verdict, and the evidence that its fault happened.

    ``fault`` and ``target`` are the row and the column of the coverage table: what was done
    ("SIGKILL", "ENOSPC") and to which file or in which phase. Left empty they are read from the id.
    """

    case: str
    layer: str
    verdict: str
    config: str = ""
    fault: str = ""
    target: str = ""
    evidence: str = ""
    seconds: float = 0.0
    message: str = ""


class Result(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One run of a command. ``verdict`` is pass, fail or inconclusive (exit 0, 1, 3).

    ``reasons`` says why a verdict is inconclusive. ``configs`` has a baseline per configuration
    where a run has several. ``records`` is written beside this file as ``cases.jsonl``.
    ``started`` is the UTC time in ISO 8601, for people and for the history; nothing is computed
    from it. ``arguments`` is the command line.
    """

    format: str = FORMAT
    command: str
    subject: str
    verdict: str
    reasons: list[str] = []
    baseline: Baseline | None = None
    configs: dict[str, Baseline] = {}
    layers: dict[str, LayerCount] = {}
    skipped: dict[str, str] = {}
    violations: list[Violation] = []
    lints: list[Lint] = []
    canary: str = ""
    notes: list[str] = []
    invariants: list[str] = []
    versions: dict[str, str] = {}
    seed: int = 0
    interrupted: bool = False
    seconds: float = 0.0
    loss_digits: str = ""
    started: str = ""
    arguments: list[str] = []


def exit_code(result: Result) -> int:
    """0 pass, 1 violations (they win), 130 interrupted, 3 inconclusive."""
    if result.violations:
        return 1
    if result.interrupted:
        return 130
    return 0 if result.verdict == PASS else 3
