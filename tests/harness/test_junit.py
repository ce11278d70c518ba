"""``junit.xml``: what a CI system that reads nothing else makes of a run."""

import xml.etree.ElementTree as ET
from pathlib import Path

import msgspec
from junitparser import JUnitXml

from harness.report.junit import render
from harness.results import CaseRecord, Result
from tests.harness.report_samples import (
    ACK_CASE,
    ack_violations,
    hostile,
    loss_violations,
    passing,
    records,
    result,
)


def by_name(xml: bytes) -> dict[str, ET.Element]:
    return {case.attrib["name"]: case for case in ET.fromstring(xml).iter("testcase")}


def test_counts_are_those_of_the_result() -> None:
    root = JUnitXml.fromstring(render(result(), records()))
    # 924 cases, two skipped layers, and the run itself
    assert (root.tests, root.failures, root.errors, root.skipped) == (927, 14, 2, 2)
    assert [suite.name for suite in root] == [
        "point",
        "kill",
        "power/posix",
        "realfs/xfs",
        "realfs/btrfs",
        "error",
        "run",
    ]


def test_a_failure_holds_its_block() -> None:
    case = by_name(render(result(), records()))[ACK_CASE.id]
    assert case.attrib["classname"] == "my-trainer.power/posix"
    assert case.attrib["time"] == "0.31"
    [failure] = case
    assert failure.tag == "failure"
    assert failure.attrib["type"] == "no-lost-ack"
    assert failure.attrib["message"].startswith("step 40 was acknowledged as saved;")
    assert failure.text is not None
    assert failure.text.startswith("FAIL no-lost-ack\n  step 40 was acknowledged")
    assert f"  reproduce   durability reproduce {ACK_CASE.digest}\n" in failure.text


def test_an_inconclusive_case_is_an_error_and_a_skipped_layer_is_skipped() -> None:
    cases = by_name(render(result(), records()))
    [error] = cases["muon/point@release.renamed#9-c407cfcf"]
    assert (error.tag, error.attrib["type"]) == ("error", "inconclusive")
    assert error.attrib["message"] == "the process ended before release.renamed#9 was reached"
    [skipped] = cases["layer realfs/xfs"]
    assert skipped.attrib["message"] == "mkfs.xfs not found: apt-get install xfsprogs"
    assert list(cases["adamw/kill@create-LATEST#1-" + _digest("create-LATEST#1")]) == []


def _digest(place: str) -> str:
    return next(r.case for r in records() if place in r.case and r.config == "adamw")[-8:]


def test_two_broken_invariants_of_one_case_are_one_failure() -> None:
    """Most readers show the first failure of a testcase only, and count each of them."""
    one = loss_violations()[0]
    two = msgspec.structs.replace(one, invariant="same-final", message="final.bin differs")
    broken = msgspec.structs.replace(result(), violations=[one, two])
    [failure] = by_name(render(broken, records()))[one.case]
    assert failure.attrib["type"] == "same-final, same-losses"
    assert failure.text is not None
    assert "FAIL same-losses\n" in failure.text
    assert "FAIL same-final\n  final.bin differs\n" in failure.text


def test_a_violation_without_a_record_is_not_lost() -> None:
    cases = by_name(render(result(), []))
    assert len(cases) == 14 + 2 + 1
    assert cases[ACK_CASE.id][0].tag == "failure"


def test_the_same_case_in_two_configurations_is_two_testcases() -> None:
    twice = [
        CaseRecord(case="s/kill@p#1-00000000", layer="kill", verdict="pass", config=c)
        for c in ("a", "b")
    ]
    broken = msgspec.structs.replace(ack_violations()[0], case=twice[0].case, config="b")
    root = ET.fromstring(render(msgspec.structs.replace(result(), violations=[broken]), twice))
    found = {c.attrib["classname"]: len(c) for c in root.iter("testcase")}
    assert found["a.kill"] == 0
    assert found["b.kill"] == 1


def test_a_run_that_could_not_judge_has_an_error_even_without_cases() -> None:
    """A report of no testcases is green in most CI systems."""
    nothing = Result(command="check", subject="s", verdict="inconclusive", reasons=["no case ran"])
    root = JUnitXml.fromstring(render(nothing, []))
    assert (root.tests, root.errors) == (1, 1)
    silent = msgspec.structs.replace(nothing, reasons=[])
    assert JUnitXml.fromstring(render(silent, [])).errors == 1


def test_a_passing_run_has_neither_failures_nor_errors() -> None:
    good = [r for r in records() if r.verdict == "pass"]
    root = JUnitXml.fromstring(render(passing(), good))
    assert (root.tests, root.failures, root.errors) == (len(good) + 3, 0, 0)


def test_an_interrupted_run_is_not_green() -> None:
    cut = msgspec.structs.replace(passing(), interrupted=True)
    [error] = by_name(render(cut, []))["judged"]
    assert error.attrib["message"] == "interrupted: the results are partial"


def test_characters_that_xml_forbids_are_escaped() -> None:
    bad = "a\x00\x1b[1m\udcff\ufffe]]>&<b>"
    violation = msgspec.structs.replace(
        loss_violations()[0], message=bad, evidence=bad, config=bad, case=bad
    )
    broken = msgspec.structs.replace(result(), violations=[violation], subject=bad)
    record = CaseRecord(
        case="odd", layer=bad, verdict="inconclusive", message=bad, evidence=bad, config=bad
    )
    xml = render(broken, [record])
    case = by_name(xml)["a\\x00\\x1b[1m\\xff\\ufffe]]>&<b>"]
    assert case[0].attrib["message"] == "a\\x00\\x1b[1m\\xff\\ufffe]]>&<b>"


def test_hostile_text_is_well_formed_xml_in_every_place() -> None:
    root = ET.fromstring(render(*hostile()))
    assert sum(1 for _ in root.iter("failure")) == 14
    said = "".join(root.itertext()) + "".join(v for e in root.iter() for v in e.attrib.values())
    assert not {c for c in said if ord(c) < 32} - {"\n"}


def test_ten_thousand_cases_take_a_second_and_stay_small(tmp_path: Path) -> None:
    many = [
        CaseRecord(
            case=f"adamw/kill@write-model.safetensors#{n}-{n:08x}",
            layer="kill",
            verdict="pass",
            config="adamw",
        )
        for n in range(10_000)
    ]
    xml = render(passing(), many)
    (tmp_path / "junit.xml").write_bytes(xml)
    assert JUnitXml.fromfile(str(tmp_path / "junit.xml")).tests == 10_003
    assert len(xml) < 2_000_000
