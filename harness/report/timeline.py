"""The timeline of one case: each operation, what became of it, the crash, what the resume read.

Drawn twice from the same data: as text for the terminal and the bundle, and as an SVG of our own
for the page. What became of an operation is told by shape and word as well as by colour. Long
stretches of operations with nothing to tell are folded into one row that says how many they were.

Not covered: deciding which operations were durable; that is the crash state's description.
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import msgspec

from harness.report.clean import one_line

DURABLE, LOST, PARTIAL, SEEN, AFTER = "durable", "lost", "partial", "seen", "after"
STATUSES = (DURABLE, LOST, PARTIAL, SEEN, AFTER)

NEAR = 3
MAX_ROWS = 60
MAX_READS = 12
MAX_OUTCOME = 6

_WORDS = {DURABLE: "durable", LOST: "LOST", PARTIAL: "PARTIAL", SEEN: "seen", AFTER: "never ran"}
_ROW = 26
_HEAD = 26
_RAIL = 22
_STATUS_X = 44
_TEXT_X = 178
_CHARACTER = 7.3  # the width of one character of the 12 px monospaced face, rounded up
_MIN_WIDTH = 640


class Step(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One operation. ``text`` says it in words: ``rename LATEST.tmp -> LATEST``.

    ``status``: ``durable``; ``lost``; ``partial`` (some of its bytes, ``note`` says which);
    ``seen`` (output, which the world saw whatever the disk did); ``after`` (the crash came first).
    ``site`` is the place in the source; ``attempt`` counts from 1.
    """

    index: int
    text: str
    status: str
    site: str = ""
    note: str = ""
    attempt: int = 1

    def __post_init__(self) -> None:
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status!r} is none of {', '.join(STATUSES)}")


class Read(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the resume looked at, and what it got: ``LATEST`` -> ``step-000030``."""

    path: str
    answer: str


class Timeline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``steps`` in order. The crash falls before the first that is ``after``, or at the end.

    ``crash`` describes it; ``outcome`` is what came of the resume, in training terms.
    """

    title: str
    steps: tuple[Step, ...]
    crash: str = "the crash"
    reads: tuple[Read, ...] = ()
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that is drawn: an operation, a fold (``step`` None) or the crash (``crash`` true)."""

    text: str
    step: Step | None = None
    crash: bool = False


def rows(timeline: Timeline) -> tuple[_Row, ...]:
    """Operations worth a row (lost, partial, seen, near the crash or near such a one) and folds."""
    steps = timeline.steps
    crash = next((i for i, s in enumerate(steps) if s.status == AFTER), len(steps))
    kept = set(range(max(0, crash - NEAR), min(len(steps), crash + NEAR)))
    kept |= {i for i, s in enumerate(steps) if s.status in (LOST, PARTIAL)}
    kept |= {i for i, s in enumerate(steps) if s.status == SEEN and i >= crash - 4 * NEAR}
    if len(kept) > MAX_ROWS:  # keep those nearest to the crash
        kept = set(sorted(kept, key=lambda i: (abs(i - crash), i))[:MAX_ROWS])
    drawn: list[_Row] = []
    skipped: list[Step] = []
    for number in range(len(steps) + 1):
        if number == crash:
            _fold(drawn, skipped)
            drawn.append(_Row(timeline.crash, crash=True))
        if number == len(steps):
            break
        if number in kept:
            _fold(drawn, skipped)
            drawn.append(_Row(steps[number].text, steps[number]))
        else:
            skipped.append(steps[number])
    _fold(drawn, skipped)
    return tuple(drawn)


def _fold(drawn: list[_Row], skipped: list[Step]) -> None:
    """Close a stretch that is not drawn: one operation is drawn after all, more become a line."""
    if len(skipped) == 1:
        drawn.append(_Row(skipped[0].text, skipped[0]))
    elif skipped:
        counts = {s: sum(step.status == s for step in skipped) for s in STATUSES}
        said = ", ".join(f"{n} {_WORDS[s].lower()}" for s, n in counts.items() if n)
        drawn.append(_Row(f"… {len(skipped)} operations: {said}"))
    skipped.clear()


def as_text(timeline: Timeline) -> str:
    """The timeline for a terminal, lines of at most about 110 columns, ended by newlines."""
    lines = [one_line(timeline.title)]
    attempt = 0
    several = len({s.attempt for s in timeline.steps}) > 1
    for row in rows(timeline):
        if row.step is None:
            mark = "  ══ CRASH ══  " if row.crash else "               "
            lines.append(f"{mark}{one_line(row.text)}")
            continue
        if several and row.step.attempt != attempt:
            attempt = row.step.attempt
            lines.append(f"  attempt {attempt}")
        number = f"#{row.step.index}"
        what = f"  {number:>5} {_WORDS[row.step.status]:<9} {one_line(row.text, limit=120)}"
        note = f"   {one_line(row.step.note)}" if row.step.note else ""
        site = f"   {one_line(row.step.site)}" if row.step.site else ""
        lines.append(f"{what}{note}{site}")
    if timeline.reads:
        lines.append("  the resume read")
        for read in timeline.reads[:MAX_READS]:
            lines.append(f"        {one_line(read.path):<28} {one_line(read.answer)}")
        if len(timeline.reads) > MAX_READS:
            lines.append(f"        and {len(timeline.reads) - MAX_READS} more")
    for place, words in enumerate(_wrapped(timeline.outcome)):
        lines.append(f"{'      ' if place else '  so: '}{words}")
    return "\n".join(lines) + "\n"


def as_svg(timeline: Timeline, *, standalone: bool = True) -> str:
    """The timeline as SVG. ``standalone`` adds the colours; a page that has them leaves it out."""
    drawn = rows(timeline)
    reads = timeline.reads[:MAX_READS]
    outcome = _wrapped(timeline.outcome)
    tail = (len(reads) + 1 if reads else 0) + len(outcome)
    height = _HEAD + _ROW * (len(drawn) + tail - 1) + 16
    body: list[str] = []
    y = _HEAD
    crash_y = y + _ROW * next((i for i, r in enumerate(drawn) if r.crash), len(drawn))
    end_y = _HEAD + _ROW * (len(drawn) - 1)
    body.append(_line(_RAIL, y - 8, _RAIL, crash_y - 8, "tl-rail"))
    body.append(_line(_RAIL, crash_y + 8, _RAIL, max(end_y, crash_y + 8) + 8, "tl-rail tl-cut"))
    widest = float(_MIN_WIDTH)
    for row in drawn:
        body += _svg_row(row, y)
        widest = max(widest, _width(row))
        y += _ROW
    if reads:
        body.append(_text(_STATUS_X, y + 4, "the resume read", "tl-head"))
        y += _ROW
        for read in reads:
            body.append(_text(_STATUS_X, y + 4, one_line(read.path, limit=40), "tl-path"))
            body.append(_text(_TEXT_X + 140, y + 4, one_line(read.answer, limit=80), "tl-text"))
            y += _ROW
    for line in outcome:
        body.append(_text(_STATUS_X, y + 4, line, "tl-outcome"))
        widest = max(widest, _STATUS_X + _CHARACTER * 1.08 * len(line))  # it is bold
        y += _ROW
    width = int(widest) + 16
    title = escape(one_line(timeline.title))
    style = f"<style>{STYLE_ALONE}{STYLE}</style>" if standalone else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="tl" role="img" width="{width}" '
        f'height="{height}" viewBox="0 0 {width} {height}"><title>{title}</title>{style}'
        f"{''.join(body)}</svg>"
    )


def _wrapped(text: str) -> list[str]:
    """An outcome of several sentences, on as many lines as it needs up to a bound."""
    lines = [
        line for part in text.split("\n") for line in textwrap.wrap(one_line(part, limit=4000), 96)
    ]
    return [*lines[:MAX_OUTCOME], "…"] if len(lines) > MAX_OUTCOME else lines


def _svg_row(row: _Row, y: int) -> list[str]:
    if row.crash:
        text = f"crash: {one_line(row.text, limit=110)}"
        return [
            f'<path class="tl-bolt" d="M{_RAIL - 14} {y} l7 -5 l5 10 l6 -10 l5 10 l7 -5"/>',
            _text(_STATUS_X, y + 4, text, "tl-crash"),
        ]
    if row.step is None:
        return [_text(_TEXT_X, y + 4, one_line(row.text), "tl-fold")]
    step = row.step
    number = _text(_STATUS_X, y + 4, f"#{step.index}", "tl-number")
    status = _text(_STATUS_X + 48, y + 4, _WORDS[step.status], f"tl-word tl-{step.status}")
    return [_dot(step.status, y), number, status, _described(step, y)]


def _described(step: Step, y: int) -> str:
    note = f'<tspan class="tl-note" dx="12">{_fit(step.note, 60)}</tspan>' if step.note else ""
    site = f'<tspan class="tl-site" dx="12">{_fit(step.site, 60)}</tspan>' if step.site else ""
    shown = f'<tspan class="tl-text tl-t-{step.status}">{_fit(step.text, 90)}</tspan>'
    return f'<text x="{_TEXT_X}" y="{y + 4}">{shown}{note}{site}</text>'


def _dot(status: str, y: int) -> str:
    """The mark on the rail: its shape alone tells the status."""
    x = _RAIL
    if status == LOST:
        return f'<path class="tl-mark tl-lost" d="M{x - 5} {y - 5} l10 10 m0 -10 l-10 10"/>'
    if status == PARTIAL:
        half = f"M{x} {y - 5} a5 5 0 0 0 0 10 z"
        ring = f'<circle class="tl-mark tl-partial" cx="{x}" cy="{y}" r="5" fill="none"/>'
        return f'{ring}<path class="tl-full tl-partial" d="{half}"/>'
    if status == SEEN:
        return f'<path class="tl-full tl-seen" d="M{x} {y - 6} l6 6 l-6 6 l-6 -6 z"/>'
    if status == AFTER:
        return f'<circle class="tl-mark tl-after" cx="{x}" cy="{y}" r="3.5"/>'
    return f'<circle class="tl-full tl-durable" cx="{x}" cy="{y}" r="5"/>'


def _width(row: _Row) -> float:
    if row.step is None:
        return _TEXT_X + _CHARACTER * min(len(row.text) + 8, 120)
    parts = [min(len(row.step.text), 93), min(len(row.step.note), 63), min(len(row.step.site), 63)]
    return _TEXT_X + _CHARACTER * sum(parts) + 24


def _fit(text: str, limit: int) -> str:
    """For SVG: one line, cut short with an ellipsis alone, escaped."""
    clean = one_line(text)
    return escape(clean if len(clean) <= limit else f"{clean[:limit]}…")


def _line(x1: int, y1: int, x2: int, y2: int, cls: str) -> str:
    return f'<line class="{cls}" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'


def _text(x: int, y: int, text: str, cls: str) -> str:
    return f'<text class="{cls}" x="{x}" y="{y}">{escape(text)}</text>'


def legend() -> Sequence[tuple[str, str]]:
    """(status, what it means), for the page."""
    return (
        (DURABLE, "on the disk when it crashed"),
        (LOST, "done by the program, not on the disk"),
        (PARTIAL, "some of its bytes on the disk"),
        (SEEN, "output that the world saw"),
        (AFTER, "would have come after the crash"),
    )


STYLE = (
    ".tl{font:12px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}"
    ".tl text{fill:var(--fg)}.tl-rail{stroke:var(--line);stroke-width:2}"
    ".tl-cut{stroke-dasharray:2 5}.tl-bolt{fill:none;stroke:var(--bad);stroke-width:2.2;"
    "stroke-linejoin:round}.tl .tl-crash{fill:var(--bad);font-weight:700}"
    ".tl .tl-number,.tl .tl-fold,.tl .tl-site{fill:var(--dim)}"
    ".tl .tl-head,.tl .tl-outcome{font-weight:700}.tl .tl-note{fill:var(--unsure)}"
    ".tl-mark{fill:none;stroke-width:2.2}.tl-durable{fill:var(--good)}"
    ".tl .tl-word.tl-durable{fill:var(--good)}.tl .tl-word.tl-lost{fill:var(--bad);font-weight:700}"
    ".tl-mark.tl-lost{stroke:var(--bad)}.tl-partial{fill:var(--unsure)}"
    ".tl-mark.tl-partial{fill:none;stroke:var(--unsure)}"
    ".tl .tl-word.tl-partial{fill:var(--unsure);font-weight:700}.tl-seen{fill:var(--link)}"
    ".tl .tl-word.tl-seen{fill:var(--link)}.tl-mark.tl-after{stroke:var(--line)}"
    ".tl .tl-word.tl-after,.tl .tl-t-after{fill:var(--dim)}"
    ".tl .tl-t-lost{text-decoration:line-through;text-decoration-thickness:1px}"
)
STYLE_ALONE = (
    ":root{--fg:#1c2128;--dim:#6a737d;--line:#c9d1d9;--bad:#c0202b;--good:#1a7f37;"
    "--unsure:#9a6700;--link:#0b5cad}@media(prefers-color-scheme:dark){:root{--fg:#e6e9ee;"
    "--dim:#929ba6;--line:#3b434d;--bad:#ff7b72;--good:#56d364;--unsure:#e3b341;--link:#79b8ff}"
    ".tl{background:#14181d}}"
)
