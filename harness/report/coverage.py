"""Which faults struck where: the table in which an empty cell can be seen.

A run in which one random choice always falls the same way is green and has tested half. So every
case is counted in the row of its fault (layer and what was done) and in the column of its target:
the file that was in the call, or the phase of the program. A cell without a case stays in the
table as a zero.

A record names its fault and target; where it does not, they are read from its id. Digits in file
names count as one file: ``step-000040`` and ``step-000050`` are both ``step-N``.
"""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from harness.cases import REWIND
from harness.report.words import layer_key
from harness.results import FAIL, CaseRecord

MAX_COLUMNS = 16
OTHER = "other"
UNNAMED = "unnamed"

_DIGITS = re.compile(r"[0-9]+")
_ID = re.compile(r"@(?P<words>.*)-[0-9a-f]{8}$")
_POINT = re.compile(r"(?P<phase>[a-z][a-z0-9_]*)\.[a-z0-9._-]+")
_CALL = re.compile(
    r"(?:before-|after-|at-)?(?:allocate|append|collapse|copy|create|exchange|fdatasync|fsync|"
    r"insert|link|meta|mkdir|open|output|punch|rename|rmdir|symlink|sync|truncate|unlink|write)"
    r"-(?P<file>.+)"
)
_SIGNAL = re.compile(r"SIG[A-Z0-9]+-")
_FAULTS = {
    "point": "SIGKILL",
    "kill": "SIGKILL",
    "double": "SIGKILL",
    "power": "power loss",
    "realfs": "power loss",
}


@dataclass(frozen=True, slots=True)
class Row:
    """One fault. ``cases`` and ``failed`` are counts, a column each."""

    layer: str
    fault: str
    cases: tuple[int, ...]
    failed: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Coverage:
    """A table. ``title`` says what the columns are; ``hidden`` columns were put into "other"."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    hidden: int = 0

    def empty_cells(self) -> list[tuple[str, str, str]]:
        """(layer, fault, column) of every cell without a case."""
        return [
            (row.layer, row.fault, column)
            for row in self.rows
            for column, cases in zip(self.columns, row.cases, strict=True)
            if cases == 0
        ]


def fault_of(record: CaseRecord) -> str:
    """What was done, in a word or two."""
    return record.fault or _FAULTS.get(record.layer.partition("/")[0], "fault")


def targets_of(record: CaseRecord) -> tuple[tuple[str, str], ...]:
    """("file" or "phase", name) of each place that the case struck; a double kill has several."""
    if record.target:
        kind = "phase" if record.layer == "point" else "file"
        return ((kind, _DIGITS.sub("N", record.target)),)
    match = _ID.search(record.case)
    words = match["words"] if match else record.case
    places = [place for place in words.split("+") if not place.startswith(REWIND)]
    if not places:  # an undisturbed rewind: the run was killed at its end
        return (("phase" if record.layer == "point" else "file", "end"),)
    return tuple(sorted({_target(place.partition("#")[0]) for place in places}))


def _target(place: str) -> tuple[str, str]:
    place = _SIGNAL.sub("", place)
    if match := _POINT.fullmatch(place):
        return ("phase", match["phase"])
    if match := _CALL.fullmatch(place):
        return ("file", _DIGITS.sub("N", match["file"]))
    return ("file", _DIGITS.sub("N", place) or UNNAMED)


def coverage(records: Sequence[CaseRecord]) -> tuple[Coverage, ...]:
    """The tables by file and by phase, those that have a case."""
    tables = []
    for kind, title in (("file", "by file"), ("phase", "by phase")):
        cases: Counter[tuple[str, str, str]] = Counter()
        failed: Counter[tuple[str, str, str]] = Counter()
        for record in records:
            for of_kind, target in targets_of(record):
                if of_kind == kind:
                    cell = (record.layer, fault_of(record), target)
                    cases[cell] += 1
                    failed[cell] += record.verdict == FAIL
        if cases:
            tables.append(_table(title, cases, failed))
    return tuple(tables)


def _table(
    title: str, cases: Counter[tuple[str, str, str]], failed: Counter[tuple[str, str, str]]
) -> Coverage:
    totals: Counter[str] = Counter()
    for (_, _, target), number in cases.items():
        totals[target] += number
    by_size = sorted(totals, key=lambda name: (-totals[name], name))
    own = by_size if len(by_size) <= MAX_COLUMNS else by_size[: MAX_COLUMNS - 1]
    hidden = len(by_size) - len(own)
    columns = tuple(sorted(own)) + ((OTHER,) if hidden else ())

    def cells(counts: Counter[tuple[str, str, str]], layer: str, fault: str) -> tuple[int, ...]:
        row = {t: n for (one, what, t), n in counts.items() if (one, what) == (layer, fault)}
        rest = sum(n for target, n in row.items() if target not in own)
        shown = tuple(row.get(name, 0) for name in columns[: len(own)])
        return shown + ((rest,) if hidden else ())

    keys = sorted({(layer, fault) for layer, fault, _ in cases}, key=lambda k: (layer_key(k[0]), k))
    rows = tuple(Row(la, fa, cells(cases, la, fa), cells(failed, la, fa)) for la, fa in keys)
    return Coverage(title, columns, rows, hidden)
