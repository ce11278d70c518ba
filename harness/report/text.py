"""What is said at the end of a run: layers, what was skipped, lints, FAIL blocks, the verdict.

In training terms first, then the order that was needed, then the command. The order of the parts
is chosen for somebody who sees the last twenty lines only, as in the log of a CI job: the last
block and the verdict below it name the case, the crash, what was expected and found, the path that
was kept and the one command that shows it again.

Lines are made as plain data; colour (rich) comes in only when they are printed on a terminal.
"""

import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.text import Text

from harness.report.clean import one_line, printable
from harness.report.grouping import Group, config_tag, group, reproduce_command
from harness.report.words import VERDICT_WORDS, count, duration, layer_key, sentence, shown_verdict
from harness.results import (
    FAIL,
    INCONCLUSIVE,
    PASS,
    LayerCount,
    Lint,
    Result,
    Violation,
    exit_code,
)

MAX_BLOCKS = 10
MAX_BRIEF = 40
MAX_LINTS = 20
MAX_REASONS = 5
EVIDENCE_LINES = 3
LINE_CHARACTERS = 1000
_VARIES = re.compile(r"[0-9]+")

_STYLES = {
    "bad": "bold red",
    "good": "bold green",
    "unsure": "bold yellow",
    "dim": "dim",
    "command": "bold cyan",
    "plain": "",
}


@dataclass(frozen=True, slots=True)
class Line:
    """One line: ``text``, and ``role``, which decides its colour on a terminal."""

    text: str
    role: str = "plain"


def failure_lines(groups: Sequence[Group], *, directory: Path | None = None) -> list[Line]:
    """The FAIL blocks, one heading an invariant and one block a signature.

    ``directory`` is where the run wrote, for the paths of bundles. When there are more signatures
    than ``MAX_BLOCKS`` the others come first, a line each: the end of a log is what is read.
    """
    shown, brief = groups[:MAX_BLOCKS], groups[MAX_BLOCKS:]
    lines = []
    if brief:
        lines.append(Line(f"{count(len(brief), 'more signature')}, a line each", "bad"))
        for one in brief[:MAX_BRIEF]:
            message = one_line(one.example.message, limit=120)
            command = one_line(reproduce_command(one.example))
            lines.append(Line(f"  {one.invariant}: {message}   ({command})"))
        if len(brief) > MAX_BRIEF:
            lines.append(Line(f"  and {len(brief) - MAX_BRIEF} more in result.json"))
        lines.append(Line(""))
    done: set[str] = set()
    for one in shown:
        if one.invariant not in done:
            done.add(one.invariant)
            members = [g for g in groups if g.invariant == one.invariant]
            cases = len({case for g in members for case in g.cases})
            said = f"{count(cases, 'case')}, {count(len(members), 'signature')}"
            lines.append(Line(f"FAIL {one.invariant:<23}{said}", "bad"))
        lines += violation_lines(one.example, cases=len(one.cases), directory=directory)
        lines.append(Line(""))
    return lines


def violation_lines(
    violation: Violation, *, cases: int = 1, directory: Path | None = None
) -> list[Line]:
    """The body of one block: what happened to the training, the order, the case, the command."""
    tag = config_tag(violation.config, violation.case)
    config = f"   [{one_line(tag)}]" if tag else ""
    lines = [Line(f"  {one_line(violation.message, limit=600)}{config}")]
    pairs = [
        ("expected", violation.expected),
        ("found   ", violation.found),
        ("needs", violation.needs),
        ("lost", violation.lost),
        ("crash", violation.crash),
    ]
    lines += [Line(f"  {label:<7} {one_line(text)}") for label, text in pairs if text]
    if violation.holds_if:
        lines.append(Line(f"  holds if {one_line(violation.holds_if.removeprefix('holds if '))}"))
    lines += _evidence(violation.evidence)
    more = f"   and {cases - 1:,} more like it" if cases > 1 else ""
    lines.append(Line(f"  case    {one_line(violation.case)}{more}"))
    if violation.bundle:
        kept = directory / violation.bundle if directory else Path(violation.bundle)
        lines.append(Line(f"  kept    {one_line(str(kept))}"))
    lines.append(Line(f"  reproduce   {one_line(reproduce_command(violation))}", "command"))
    return lines


def _evidence(text: str) -> list[Line]:
    if not text:
        return []
    found = printable(text, limit=600).splitlines()
    lines = [Line(f"  seen    {found[0]}", "dim")]
    lines += [Line(f"          {line}", "dim") for line in found[1:EVIDENCE_LINES]]
    if len(found) > EVIDENCE_LINES:
        lines.append(Line(f"          ({len(found) - EVIDENCE_LINES} more lines)", "dim"))
    return lines


def result_lines(result: Result, *, directory: Path | None = None) -> list[Line]:
    """All that is said of a run, ending in the verdict, the pages' place and the exit code."""
    groups = group(result.violations)
    lines = _layers(result.layers)
    lines += [
        Line(f"skipped {one_line(layer):<17} {one_line(why)}", "unsure")
        for layer, why in sorted(result.skipped.items(), key=lambda item: layer_key(item[0]))
    ]
    lines += [Line(f"note    {one_line(note)}", "dim") for note in result.notes]
    if result.canary:
        lines.append(Line(f"canary  {one_line(result.canary)}", "dim"))
    lines += _lints(result.lints)
    lines.append(Line(""))
    lines += failure_lines(groups, directory=directory)
    word = "besides" if shown_verdict(result) == FAIL else "because"
    lines += [
        Line(f"  {word} {one_line(reason, limit=600)}", "unsure")
        for reason in result.reasons[:MAX_REASONS]
    ]
    if len(result.reasons) > MAX_REASONS:
        lines.append(Line(f"  and {len(result.reasons) - MAX_REASONS} more reasons", "unsure"))
    lines += _verdict(result, signatures=len(groups), directory=directory)
    if mendable := [one.example for one in groups if one.example.needs]:
        command = reproduce_command(mendable[0]).replace(" reproduce ", " explain ", 1)
        lines.append(Line(f"mend     {one_line(command)}   names the fsyncs to add", "command"))
    return lines


def _lints(lints: Sequence[Lint]) -> list[Line]:
    """A line for each mistake: those of one source line that differ in numbers are one."""
    alike: dict[tuple[str, ...], list[Lint]] = {}
    for lint in lints:
        key = (lint.config, lint.name, lint.site, _VARIES.sub("N", lint.message))
        alike.setdefault(key, []).append(lint)
    lines = []
    for first, *others in list(alike.values())[:MAX_LINTS]:
        site = f"   {one_line(first.site)}" if first.site else ""
        more = f"   and {len(others):,} more like it" if others else ""
        what = f"{first.name}: {one_line(first.message)}   {one_line(first.place)}{site}{more}"
        lines.append(Line(f"lint    {what}", "dim"))
    if len(alike) > MAX_LINTS:
        lines.append(Line(f"lint    and {len(alike) - MAX_LINTS} more in result.json", "dim"))
    return lines


def _layers(layers: dict[str, LayerCount]) -> list[Line]:
    if not layers:
        return []
    lines = [Line(f"{'layer':<16} {'cases':>8} {'failed':>8}", "dim")]
    for name, layer in sorted(layers.items(), key=lambda item: layer_key(item[0])):
        notes = layer_notes(layer)
        tail = f"   {', '.join(notes)}" if notes else ""
        row = f"{one_line(name):<16} {layer.cases:>8,} {layer.failed:>8,}{tail}"
        lines.append(Line(row, "bad" if layer.failed else "plain"))
    return lines


def layer_notes(layer: LayerCount) -> list[str]:
    """What else there is to say of a layer, in a few words each."""
    notes = []
    if layer.inconclusive:
        notes.append(f"{layer.inconclusive:,} inconclusive")
    if layer.states:
        notes.append(f"{count(layer.states, 'distinct state')}")
    if layer.judged:
        notes.append(f"{layer.judged:,} run for real")
    if layer.equal_reads:
        notes.append(f"{layer.equal_reads:,} by equal reads")
    if layer.sampled:
        notes.append("sampled")
    if layer.seconds:
        notes.append(duration(layer.seconds))
    return notes


def _verdict(result: Result, *, signatures: int, directory: Path | None) -> list[Line]:
    verdict = shown_verdict(result)
    role = {PASS: "good", FAIL: "bad", INCONCLUSIVE: "unsure"}.get(verdict, "plain")
    what = f"{result.command} of {one_line(result.subject)}"
    said = (
        f"{VERDICT_WORDS.get(verdict, verdict)}  {what}: {sentence(result, signatures=signatures)}"
    )
    lines = [Line(f"{said}   ({duration(result.seconds)}, exit {exit_code(result)})", role)]
    if directory is not None:
        lines.append(Line(f"results  {shlex.quote(str(directory / 'index.html'))}"))
    return lines


def plain(lines: Iterable[Line]) -> str:
    """The lines as text, each ended by a newline; nothing in them drives a terminal."""
    return "".join(f"{one_line(line.text, limit=LINE_CHARACTERS)}\n" for line in lines)


def print_lines(lines: Iterable[Line], *, stream: TextIO) -> None:
    """Print on ``stream``: in colour on a terminal that wants it, plain everywhere else."""
    if not stream.isatty():
        stream.write(plain(lines))
        stream.flush()
        return
    console = Console(file=stream, highlight=False, soft_wrap=True)
    for line in lines:
        text = one_line(line.text, limit=LINE_CHARACTERS)
        console.print(Text(text, style=_STYLES.get(line.role, "")))
