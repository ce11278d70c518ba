"""``index.html``: the whole run on one page that opens offline.

One file: no script, no font, no picture from anywhere (its content security policy forbids them).
Dark and light as the reader's system says, usable with a keyboard, a screen reader and a phone.
Cases that passed are counted, not listed, so that ten thousand of them do not make a page that
nobody can open; whatever is listed has a bound, and the page says what it left out.
"""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from harness.errors import UsageError
from harness.report import timeline as timelines
from harness.report.clean import one_line, printable
from harness.report.coverage import coverage
from harness.report.curve import curve
from harness.report.grouping import Group, config_tag, group, reproduce_command
from harness.report.text import layer_notes
from harness.report.words import (
    INVARIANT_SENTENCES,
    VERDICT_WORDS,
    count,
    duration,
    layer_key,
    layer_sentence,
    sentence,
    shown_verdict,
)
from harness.results import INCONCLUSIVE, CaseRecord, LayerCount, Result, exit_code
from harness.stored import read_json

MAX_CARDS = 30
MAX_BRIEF = 300
MAX_SAME = 20
MAX_INCONCLUSIVE = 50
MAX_LINTS = 100
MAX_REASONS = 50
MAX_BASELINES = 40


@dataclass(frozen=True, slots=True)
class _Card:
    """A signature as it is shown. ``bundle`` is its link, ``timeline`` an SVG; "" when none.

    ``also`` are the signatures of other invariants that the very same case shows: one crash often
    breaks several promises, and is to be looked at once.
    """

    group: Group
    also: tuple[Group, ...]
    command: str
    bundle: str
    timeline: Markup


@dataclass(frozen=True, slots=True)
class _LayerRow:
    name: str
    said: str
    count: LayerCount | None
    notes: tuple[str, ...]
    skipped: str = ""


def render(result: Result, records: Sequence[CaseRecord], *, directory: Path | None = None) -> str:
    """The page. ``directory`` is where the bundles' relative paths start, for their timelines."""
    groups = group(result.violations)
    together = _by_case(groups)
    shown = together[:MAX_CARDS]
    rest = [one for members in together[MAX_CARDS:] for one in members]
    unsure = sorted((r for r in records if r.verdict == INCONCLUSIVE), key=lambda r: r.case)
    verdict = shown_verdict(result)
    return (
        _environment()
        .get_template("page.html.j2")
        .render(
            result=result,
            verdict=verdict,
            word=VERDICT_WORDS.get(verdict, verdict),
            exit_code=exit_code(result),
            sentence=sentence(result, signatures=len(groups)),
            reasons=result.reasons[:MAX_REASONS],
            cards=[_card(one, directory) for one in shown],
            brief=rest[:MAX_BRIEF],
            brief_left=max(0, len(rest) - MAX_BRIEF),
            layers=_layer_rows(result),
            tables=coverage(records),
            invariants=_invariants(result),
            unsure=unsure[:MAX_INCONCLUSIVE],
            unsure_left=max(0, len(unsure) - MAX_INCONCLUSIVE),
            lints=result.lints[:MAX_LINTS],
            lints_left=max(0, len(result.lints) - MAX_LINTS),
            baselines=_baselines(result),
            legend=timelines.legend(),
            timeline_style=Markup(timelines.STYLE),
            max_same=MAX_SAME,
            config_tag=config_tag,
        )
    )


def _by_case(groups: Sequence[Group]) -> list[tuple[Group, ...]]:
    """Groups that show the same case together, in the order of the first of each."""
    found: dict[tuple[str, str], list[Group]] = {}
    for one in groups:
        found.setdefault((one.example.config, one.example.case), []).append(one)
    return [tuple(members) for members in found.values()]


def _card(members: Sequence[Group], directory: Path | None) -> _Card:
    one, *also = members
    example = one.example
    bundle, svg = _relative(example.bundle), Markup("")
    if bundle and directory is not None:
        with suppress(UsageError):  # a bundle without a timeline, or none any more
            found = read_json(directory / bundle / "timeline.json", timelines.Timeline)
            svg = Markup(timelines.as_svg(found, standalone=False))
    return _Card(one, tuple(also), reproduce_command(example), bundle, svg)


def _relative(bundle: str) -> str:
    """The bundle's path when it may be a link: below this page, and nothing but a path."""
    parts = bundle.split("/")
    safe = bundle and not bundle.startswith("/") and ".." not in parts and ":" not in parts[0]
    return bundle if safe else ""


def _layer_rows(result: Result) -> list[_LayerRow]:
    rows = [
        _LayerRow(name, layer_sentence(name), layer, tuple(layer_notes(layer)))
        for name, layer in result.layers.items()
    ]
    rows += [
        _LayerRow(name, layer_sentence(name), None, (), why)
        for name, why in result.skipped.items()
        if name not in result.layers
    ]
    return sorted(rows, key=lambda row: layer_key(row.name))


def _invariants(result: Result) -> list[tuple[str, str, str, str]]:
    """(id, what it says, "good", "bad" or "unsure", how it went) of those that were checked.

    "held" is said only of a run that could judge: no case that broke it proves little when no case
    ran, or when the harness itself is in doubt.
    """
    broken: dict[str, set[tuple[str, str]]] = {}
    for violation in result.violations:
        broken.setdefault(violation.invariant, set()).add((violation.config, violation.case))
    if not any(layer.cases for layer in result.layers.values()):
        otherwise = ("unsure", "not judged")
    elif shown_verdict(result) == INCONCLUSIVE or result.interrupted:
        otherwise = ("unsure", "not seen broken")
    else:
        otherwise = ("good", "held")
    rows = []
    for name in dict.fromkeys([*result.invariants, *sorted(broken)]):
        cases = len(broken.get(name, ()))
        how = ("bad", f"broken in {count(cases, 'case')}") if cases else otherwise
        rows.append((name, INVARIANT_SENTENCES.get(name, ""), *how))
    return rows


def _baselines(result: Result) -> list[tuple[str, object, Markup]]:
    found = dict(sorted(result.configs.items()))
    if not found and result.baseline is not None:
        found = {result.subject: result.baseline}
    shown = list(found.items())[:MAX_BASELINES]
    return [(name, one, Markup(curve(one.losses))) for name, one in shown]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("harness.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["line"] = one_line
    environment.filters["clean"] = printable
    environment.filters["count"] = count
    environment.filters["duration"] = duration
    return environment
