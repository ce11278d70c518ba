"""``summary.md``: the verdict for the summary page of a CI step.

Verdict first, then the signatures with one case and one command each, the layers, what was skipped
and why. Bounded: a CI system cuts a summary of more than a megabyte away as a whole.
"""

import re
from collections.abc import Sequence

from harness.report.clean import one_line
from harness.report.grouping import Group, group, reproduce_command
from harness.report.text import layer_notes, plain, violation_lines
from harness.report.words import (
    VERDICT_WORDS,
    count,
    duration,
    layer_key,
    layer_sentence,
    sentence,
    shown_verdict,
)
from harness.results import FAIL, INCONCLUSIVE, PASS, CaseRecord, Result

MAX_SIGNATURES = 20
MAX_BRIEF = 100
MAX_LINTS = 30
MAX_INCONCLUSIVE = 10
MAX_REASONS = 20

_MARKS = {PASS: "✅", FAIL: "❌", INCONCLUSIVE: "⚠️"}
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>#|!~$])")


def render(result: Result, records: Sequence[CaseRecord]) -> str:
    """The summary as GitHub-flavoured Markdown."""
    verdict = shown_verdict(result)
    groups = group(result.violations)
    title = f"{_MARKS.get(verdict, '')} {VERDICT_WORDS.get(verdict, verdict)}".strip()
    parts = [
        f"# {title} — durability {escaped(result.command)}, {escaped(result.subject)}",
        f"{sentence(result, signatures=len(groups))}. Took {duration(result.seconds)}.",
    ]
    if result.reasons:
        besides = "Besides, not everything" if verdict == FAIL else "Not everything"
        reasons = result.reasons[:MAX_REASONS]
        parts.append(f"{besides} could be judged:")
        parts.append("\n".join(f"- {escaped(reason)}" for reason in reasons))
    parts += _signatures(groups)
    parts += _layers(result)
    parts += _skipped(result)
    parts += _inconclusive(records)
    parts += _lints(result)
    parts += _foot(result)
    return "\n\n".join(parts) + "\n"


def escaped(words: str, *, limit: int = 300) -> str:
    """Words on one line, with what Markdown would take for markup escaped."""
    return _SPECIAL.sub(r"\\\1", one_line(words, limit=limit))


def code(words: str) -> str:
    """A code span, for a table too: its fence is longer than any run of backticks inside."""
    clean = one_line(words).replace("|", "\\|")
    longest = max((len(run) for run in re.findall("`+", clean)), default=0)
    fence = "`" * (longest + 1)
    space = " " if clean.startswith("`") or clean.endswith("`") else ""
    return f"{fence}{space}{clean}{space}{fence}" if clean else ""


def block(words: str) -> str:
    """A fenced block that its content cannot close."""
    longest = max((len(run) for run in re.findall("`+", words)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{words.rstrip()}\n{fence}"


def _signatures(groups: Sequence[Group]) -> list[str]:
    if not groups:
        return []
    parts = ["## What broke"]
    for one in groups[:MAX_SIGNATURES]:
        layers = ", ".join(one.layers)
        parts.append(
            f"### {escaped(one.invariant)}: {count(len(one.cases), 'case')} ({escaped(layers)})"
        )
        parts.append(block(plain(violation_lines(one.example, cases=len(one.cases)))))
    rest = groups[MAX_SIGNATURES:]
    if rest:
        parts.append(f"{count(len(rest), 'more signature')}:")
        parts.append("\n".join(_brief(one) for one in rest[:MAX_BRIEF]))
    if len(rest) > MAX_BRIEF:
        parts.append(f"and {len(rest) - MAX_BRIEF} more in `result.json`.")
    return parts


def _brief(one: Group) -> str:
    said = f"{escaped(one.invariant)}: {escaped(one.example.message)}"
    return f"- {said} {code(reproduce_command(one.example))}"


def _layers(result: Result) -> list[str]:
    if not result.layers:
        return []
    rows = ["| layer | cases | failed | what it did | |", "|---|---:|---:|---|---|"]
    for name, layer in sorted(result.layers.items(), key=lambda item: layer_key(item[0])):
        failed = f"**{layer.failed:,}**" if layer.failed else "0"
        notes = ", ".join(layer_notes(layer))
        said = f"{layer.cases:,} | {failed} | {escaped(layer_sentence(name))} | {escaped(notes)}"
        rows.append(f"| {escaped(name)} | {said} |")
    return ["## Layers", "\n".join(rows)]


def _skipped(result: Result) -> list[str]:
    if not result.skipped:
        return []
    rows = ["| skipped layer | why |", "|---|---|"]
    for layer, why in sorted(result.skipped.items(), key=lambda item: layer_key(item[0])):
        rows.append(f"| {escaped(layer)} | {escaped(why)} |")
    return ["## Not run", "\n".join(rows)]


def _inconclusive(records: Sequence[CaseRecord]) -> list[str]:
    unsure = sorted((r for r in records if r.verdict == INCONCLUSIVE), key=lambda r: r.case)
    if not unsure:
        return []
    rows = [
        f"- {code(r.case)} {escaped(r.message or 'the fault was not seen to happen')}"
        for r in unsure[:MAX_INCONCLUSIVE]
    ]
    if len(unsure) > MAX_INCONCLUSIVE:
        rows.append(f"- and {len(unsure) - MAX_INCONCLUSIVE:,} more in `cases.jsonl`")
    return [f"## {count(len(unsure), 'case')} inconclusive", "\n".join(rows)]


def _lints(result: Result) -> list[str]:
    if not result.lints:
        return []
    rows = ["| lint | file | source | |", "|---|---|---|---|"]
    for lint in result.lints[:MAX_LINTS]:
        where = f"{code(lint.file)} | {code(lint.site)}"
        rows.append(f"| {escaped(lint.name)} | {where} | {escaped(lint.message)} |")
    if len(result.lints) > MAX_LINTS:
        rows.append(f"| | | | and {len(result.lints) - MAX_LINTS} more in `result.json` |")
    return ["## Lints (advice)", "\n".join(rows)]


def _foot(result: Result) -> list[str]:
    said = [escaped(note) for note in result.notes]
    if result.canary:
        said.append(f"canary: {escaped(result.canary)}")
    said.append(f"seed {result.seed}")
    if result.loss_digits:
        said.append(f"losses: {escaped(result.loss_digits)}")
    versions = ", ".join(f"{escaped(k)} {escaped(v)}" for k, v in sorted(result.versions.items()))
    if versions:
        said.append(versions)
    return ["\n".join(f"- {line}" for line in said)]
