"""``junit.xml``: a testcase a case, for the CI systems that read nothing else.

A suite is a layer. A violation is a failure with its FAIL block; a case whose fault was not seen is
an error, and so is every reason why the run as a whole could not judge; a layer that could not run
is a skipped testcase of that name. Cases with violations but without a record are not left out.

The file is the same for the same result: no clock and no host name goes into it.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from harness.report.clean import one_line, printable
from harness.report.text import plain, violation_lines
from harness.report.words import layer_key, shown_verdict
from harness.results import FAIL, PASS, CaseRecord, Result, Violation

RUN_SUITE = "run"


def render(result: Result, records: Sequence[CaseRecord]) -> bytes:
    """The report as UTF-8 XML."""
    violations: dict[tuple[str, str], list[Violation]] = defaultdict(list)
    for violation in result.violations:
        violations[(violation.config, violation.case)].append(violation)
    suites: dict[str, list[TestCase]] = defaultdict(list)
    recorded = set()
    for record in sorted(records, key=lambda r: (r.layer, r.case, r.config)):
        broken = violations.get((record.config, record.case), [])
        recorded.add((record.config, record.case))
        suites[record.layer].append(_case(result, record, broken))
    for key, broken in sorted(violations.items()):
        if key not in recorded:
            first = broken[0]
            record = CaseRecord(case=first.case, layer=first.layer, verdict=FAIL, config=key[0])
            suites[first.layer].append(_case(result, record, broken))
    for layer, why in result.skipped.items():
        suites[layer].append(_skipped(result, layer, why))
    root: Any = JUnitXml(one_line(f"durability {result.command}"))
    for layer in sorted(suites, key=layer_key):
        root.append(_suite(layer, suites[layer]))
    root.append(_suite(RUN_SUITE, _run_cases(result)))
    root.update_statistics()
    text: bytes = root.tostring()
    return b'<?xml version="1.0" encoding="utf-8"?>\n' + text + b"\n"


def _suite(name: str, cases: list[TestCase]) -> TestSuite:
    suite = TestSuite(one_line(name))
    suite.add_testcases(cases)
    return suite


def _case(result: Result, record: CaseRecord, broken: Sequence[Violation]) -> TestCase:
    owner = record.config or result.subject
    case = TestCase(
        name=one_line(record.case),
        classname=one_line(f"{owner}.{record.layer}"),
        time=round(record.seconds, 3),
    )
    if broken or record.verdict == FAIL:
        case.result = [_failure(record, broken)]
    elif record.verdict != PASS:
        said = record.message or "the fault was not seen to happen"
        error = Error(one_line(said), "inconclusive")
        error.text = printable("\n".join(t for t in (said, record.evidence) if t))
        case.result = [error]
    return case


def _failure(record: CaseRecord, broken: Sequence[Violation]) -> Failure:
    """One failure a case: most readers show the first only, so it holds every violation."""
    if not broken:
        failure = Failure(one_line(record.message or "failed"), "violation")
        failure.text = printable("\n".join(t for t in (record.message, record.evidence) if t))
        return failure
    invariants = sorted({v.invariant for v in broken})
    failure = Failure(one_line(broken[0].message), one_line(", ".join(invariants)))
    blocks = [f"FAIL {one_line(v.invariant)}\n{plain(violation_lines(v))}" for v in broken]
    failure.text = "\n".join(blocks)
    return failure


def _skipped(result: Result, layer: str, why: str) -> TestCase:
    case = TestCase(name=one_line(f"layer {layer}"), classname=one_line(result.subject))
    case.result = [Skipped(one_line(why))]
    return case


def _run_cases(result: Result) -> list[TestCase]:
    """The run itself is a testcase: a run of no cases must not look like a passing one."""
    case = TestCase(
        name="judged", classname=one_line(result.subject), time=round(result.seconds, 3)
    )
    reasons = list(result.reasons)
    if result.interrupted:
        reasons.append("interrupted: the results are partial")
    if not reasons and shown_verdict(result) not in (PASS, FAIL):
        reasons.append("the verdict is inconclusive, and no reason was given")
    if reasons and (shown_verdict(result) != PASS or result.interrupted):
        error = Error(one_line(reasons[0]), "inconclusive")
        error.text = printable("\n".join(reasons))
        case.result = [error]
    return [case]
