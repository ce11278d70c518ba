"""The timeline as text and as SVG."""

import xml.etree.ElementTree as ET

import msgspec
import pytest

from harness.report.timeline import MAX_ROWS, Read, Step, Timeline, as_svg, as_text
from tests.harness.report_samples import timeline


def test_the_text_tells_what_became_of_each_operation() -> None:
    assert as_text(timeline()).splitlines()[1:] == [
        "               … 13 operations: 13 durable",
        (
            "    #14 PARTIAL   write step-000040/.metadata.tmp 0..8192   4,096 of 8,192 bytes   "
            "writer.py:761 _write()"
        ),
        "    #15 durable   fsync step-000040/.metadata.tmp",
        "    #16 durable   unlink step-000020/.metadata",
        "    #17 LOST      rename step-000040/.metadata.tmp -> .metadata   writer.py:790 save()",
        '    #18 seen      stdout "saved step=40"   train.py:57',
        "  ══ CRASH ══  after #18, the acknowledgement; no fsync of the directory follows",
        "    #19 never ran unlink step-000030/.metadata",
        "    #20 never ran rmdir step-000030",
        "  the resume read",
        "        step-000040/.metadata        no such file",
        "        step-000030/.metadata        8,192 bytes, whole",
        "  so: step 40 was acknowledged as saved; training resumed from step 30",
    ]


def test_a_crash_at_the_end_and_one_before_anything() -> None:
    end = Timeline(title="t", steps=(Step(index=1, text="a", status="durable"),))
    assert as_text(end).splitlines() == [
        "t",
        "     #1 durable   a",
        "  ══ CRASH ══  the crash",
    ]
    start = Timeline(title="t", steps=(Step(index=1, text="a", status="after"),))
    assert as_text(start).splitlines()[1] == "  ══ CRASH ══  the crash"
    assert as_text(Timeline(title="t", steps=())).splitlines() == ["t", "  ══ CRASH ══  the crash"]


def test_lost_operations_far_from_the_crash_are_never_folded_away() -> None:
    steps = [Step(index=n, text=f"op {n}", status="durable") for n in range(200)]
    steps[20] = msgspec.structs.replace(steps[20], status="lost")
    said = as_text(Timeline(title="t", steps=tuple(steps)))
    assert "    #20 LOST      op 20" in said
    assert "… 20 operations: 20 durable" in said
    assert "… 176 operations: 176 durable" in said


def test_a_single_operation_is_shown_rather_than_folded() -> None:
    steps = [Step(index=n, text=f"op {n}", status="durable") for n in range(4)]
    assert "…" not in as_text(Timeline(title="t", steps=tuple(steps)))


def test_thousands_of_lost_operations_stay_bounded_and_are_counted() -> None:
    steps = tuple(Step(index=n, text=f"op {n}", status="lost") for n in range(5000))
    said = as_text(Timeline(title="t", steps=steps))
    assert len(said.splitlines()) <= MAX_ROWS + 3
    assert f"… {5000 - MAX_ROWS} operations: {5000 - MAX_ROWS} lost" in said


def test_attempts_are_told_apart_when_there_are_several() -> None:
    steps = tuple(Step(index=n, text=f"op {n}", status="durable", attempt=n) for n in (1, 2))
    lines = as_text(Timeline(title="t", steps=steps)).splitlines()
    assert lines[1] == "  attempt 1"
    assert lines[3] == "  attempt 2"


def test_the_svg_is_xml_and_shows_the_same() -> None:
    root = ET.fromstring(as_svg(timeline()))
    said = ["".join(e.itertext()) for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "LOST" in said
    assert "rename step-000040/.metadata.tmp -> .metadatawriter.py:790 save()" in said
    assert "crash: after #18, the acknowledgement; no fsync of the directory follows" in said
    assert "… 13 operations: 13 durable" in said
    assert "the resume read" in said
    assert "<style>" not in as_svg(timeline(), standalone=False)


def test_the_svg_is_wide_and_high_enough_for_its_text() -> None:
    long = Step(index=1, text="x" * 200, status="lost", site="y" * 200, note="z" * 200)
    root = ET.fromstring(as_svg(Timeline(title="t", steps=(long,), outcome="o" * 300)))
    assert int(root.attrib["width"]) > 178 + 7.2 * (91 + 61 + 61)
    lowest = max(int(e.attrib["y"]) for e in root.iter("{http://www.w3.org/2000/svg}text"))
    assert lowest < int(root.attrib["height"])


def test_a_long_outcome_is_wrapped_and_bounded() -> None:
    said = as_text(Timeline(title="t", steps=(), outcome="one; two\n" + "word " * 300))
    lines = said.splitlines()[2:]
    assert lines[0] == "  so: one; two"
    assert lines[1].startswith("      word word")
    assert lines[-1] == "      …"
    assert len(lines) == 7
    root = ET.fromstring(as_svg(Timeline(title="t", steps=(), outcome="word " * 300)))
    assert int(root.attrib["width"]) > 44 + 7.3 * 94


def test_hostile_names_neither_break_the_svg_nor_the_terminal() -> None:
    bad = "</svg><script>\x1b[2J\x00\udcff&\n"
    line = Timeline(
        title=bad,
        steps=(Step(index=1, text=bad, status="lost", site=bad, note=bad),),
        crash=bad,
        reads=(Read(path=bad, answer=bad),),
        outcome=bad,
    )
    root = ET.fromstring(as_svg(line))
    assert root.find(".//{http://www.w3.org/2000/svg}script") is None
    assert "\x1b" not in as_text(line)


def test_an_unknown_status_is_refused() -> None:
    with pytest.raises(ValueError, match="status 'gone' is none of"):
        Step(index=1, text="a", status="gone")
    with pytest.raises(msgspec.ValidationError, match="status 'gone'"):
        msgspec.json.decode(b'{"index":1,"text":"a","status":"gone"}', type=Step)
