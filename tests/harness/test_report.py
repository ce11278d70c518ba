"""The files of a run: written whole, made again from the stored truth, said on the terminal."""

import io
import json
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from harness.errors import UsageError
from harness.report.clean import one_line, printable
from harness.report.coverage import coverage, fault_of, targets_of
from harness.report.curve import curve, numbers
from harness.report.grouping import config_tag, group, reproduce_command, signature_of
from harness.report.text import MAX_BLOCKS, plain, print_lines, result_lines
from harness.report.words import count, duration, layer_key, sentence, shown_verdict
from harness.report.write import read_records, read_result, rewrite, write_all
from harness.results import CaseRecord, Result, Violation
from tests.harness.report_samples import (
    ACK_CASE,
    ack_violations,
    hostile,
    loss_violations,
    passing,
    records,
    result,
    write_sample_bundle,
)

FILES = ["cases.jsonl", "index.html", "junit.xml", "result.json", "summary.md"]


def test_a_run_writes_exactly_its_files(tmp_path: Path) -> None:
    write_all(tmp_path / "new" / "out", result(), records())
    assert sorted(p.name for p in (tmp_path / "new" / "out").iterdir()) == FILES


def test_the_pages_are_made_again_byte_for_byte(tmp_path: Path) -> None:
    """``durability report DIR`` must not depend on anything but the two files of truth."""
    write_sample_bundle(tmp_path)
    write_all(tmp_path, result(), list(reversed(records())))
    pages = ("index.html", "junit.xml", "summary.md")
    before = {name: (tmp_path / name).read_bytes() for name in pages}
    for name in pages:
        (tmp_path / name).unlink()
    assert rewrite(tmp_path) == result()
    assert {name: (tmp_path / name).read_bytes() for name in pages} == before


def test_the_truth_survives_the_round_trip(tmp_path: Path) -> None:
    write_all(tmp_path, result(), records())
    assert read_result(tmp_path / "result.json") == result()
    ordered = sorted(records(), key=lambda r: (r.layer, r.case, r.config))
    assert read_records(tmp_path / "cases.jsonl") == ordered
    stored = json.loads((tmp_path / "result.json").read_bytes())
    assert stored["format"] == "durability-result/1"
    assert stored["layers"]["power/posix"]["states"] == 914
    assert stored["skipped"]["realfs/xfs"] == "mkfs.xfs not found: apt-get install xfsprogs"


def test_a_file_name_that_is_no_utf8_does_not_lose_the_results(tmp_path: Path) -> None:
    """JSON cannot hold a lone surrogate; a subject may name its files with any byte."""
    name = b"w\xff\x1b[2J".decode("utf-8", "surrogateescape")
    violation = msgspec.structs.replace(loss_violations()[0], message=f"lost {name}", evidence=name)
    broken = msgspec.structs.replace(result(), violations=[violation], notes=["\ud800"])
    write_all(tmp_path, broken, [])
    again = read_result(tmp_path / "result.json")
    assert again.violations[0].message == "lost w\\xff\x1b[2J"
    assert again.notes == ["\\ud800"]
    before = (tmp_path / "index.html").read_bytes()
    rewrite(tmp_path)
    assert (tmp_path / "index.html").read_bytes() == before
    assert b"\x1b" not in before
    assert "\x1b" not in plain(result_lines(again))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("result.json", b"{", "result.json does not hold what it should"),
        ("result.json", b"[" * 100_000, "result.json does not hold what it should"),
        ("result.json", b'{"format":"durability-result/9"}', "result.json does not hold"),
        ("cases.jsonl", b'{"case":"a","layer":"kill","verdict":"pass"}\n{}\n', "line 2,"),
        ("cases.jsonl", None, "cases.jsonl cannot be read: No such file"),
        ("result.json", None, "result.json cannot be read: No such file"),
    ],
)
def test_damaged_results_are_named(
    tmp_path: Path, name: str, content: bytes | None, said: str
) -> None:
    write_all(tmp_path, result(), records())
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UsageError, match=said):
        rewrite(tmp_path)


def test_another_format_is_refused(tmp_path: Path) -> None:
    write_all(tmp_path, msgspec.structs.replace(result(), format="durability-result/2"), [])
    with pytest.raises(UsageError, match=r"format 'durability-result/2' is not"):
        rewrite(tmp_path)


def test_the_fail_block_reads_as_documented() -> None:
    text = plain(result_lines(result(), directory=Path("reports/gate")))
    block = (
        "FAIL no-lost-ack            12 cases, 1 signature\n"
        "  step 40 was acknowledged as saved; after the crash training resumed from step 30\n"
        "  needs   fsync(step-000040's directory)  before  the acknowledgement      "
        "writer.py:790 save()\n"
        "  lost    #17 rename .metadata.tmp -> .metadata      not durable at the crash\n"
        "  crash   after #18, the acknowledgement; no fsync of the directory follows\n"
        "  holds if #17 is durable: my-trainer/power-posix@ack#4-10c2e4d7\n"
        "  seen    the resumed attempt printed step=31 loss=2.30129 as its first loss\n"
        "          stdout: resuming from step-000030\n"
        "          exit 0 after 0.41 s\n"
        f"  case    {ACK_CASE.id}   and 11 more like it\n"
        f"  kept    reports/gate/{ack_violations()[0].bundle}\n"
        f"  reproduce   durability reproduce {ACK_CASE.digest}\n"
    )
    assert block in text


def test_the_last_twenty_lines_tell_it_all() -> None:
    """A CI log is read from its end: case, crash, expected, found, path, command, verdict."""
    broken = msgspec.structs.replace(
        result(), violations=[msgspec.structs.replace(v, bundle="b/c") for v in loss_violations()]
    )
    text = plain(result_lines(broken, directory=Path("out")))
    last = "".join(text.splitlines(keepends=True)[-20:])
    for needed in (
        f"case    {loss_violations()[0].case}",
        "crash   SIGKILL before rename-LATEST#2",
        "expected 2.3012986 (40134880)",
        "found    2.3013101 (401348d9)",
        "kept    out/b/c",
        "reproduce   durability reproduce --config sgd 5c1d",
        "FAIL  gate of",
        "exit 1)",
        "results  out/index.html",
    ):
        assert needed in last


def test_many_signatures_leave_the_blocks_at_the_end() -> None:
    many = [
        Violation(case=f"s/kill@p{n}-{n:08x}", layer="kill", invariant="resumable", message=f"{c}")
        for n, c in enumerate("abcdefghijklmnopqrstuvwxyz")
    ]
    lines = plain(result_lines(msgspec.structs.replace(result(), violations=many))).splitlines()
    brief = lines.index(f"{26 - MAX_BLOCKS} more signatures, a line each")
    heading = lines.index("FAIL resumable              26 cases, 26 signatures")
    assert brief < heading
    assert sum("reproduce   " in line for line in lines) == MAX_BLOCKS
    assert lines[brief + 1] == "  resumable: k   (durability reproduce 0000000a)"


def test_skipped_layers_lints_and_the_canary_are_named() -> None:
    lines = plain(result_lines(result())).splitlines()
    assert "skipped realfs/xfs        mkfs.xfs not found: apt-get install xfsprogs" in lines
    assert "canary  caught: no-lost-ack, pointer-complete" in lines
    assert any(line.startswith("lint    no-directory-fsync: renamed and") for line in lines)
    assert (
        "power/posix           312       12   914 distinct states, 402 run for real, "
        "512 by equal reads, sampled, 41.2 s"
    ) in lines


def test_a_passing_run_says_pass_and_nothing_of_failures() -> None:
    text = plain(result_lines(passing()))
    assert "FAIL" not in text
    assert text.splitlines()[-1] == (
        "PASS  gate of my-trainer, adamw, sgd, muon, adamw-bf16, file-tokenizer: 924 cases, "
        "11 invariants held in every one; 2 layers skipped   (61.2 s, exit 0)"
    )


def test_an_inconclusive_run_gives_its_reasons() -> None:
    unsure = msgspec.structs.replace(passing(), verdict="inconclusive", reasons=["no case ran"])
    lines = plain(result_lines(unsure)).splitlines()
    assert lines[-2] == "  because no case ran"
    assert lines[-1].startswith("INCONCLUSIVE  gate of ")
    assert lines[-1].endswith("exit 3)")


def test_a_violation_wins_over_the_stored_verdict() -> None:
    assert shown_verdict(msgspec.structs.replace(result(), verdict="pass")) == "fail"


def test_a_pipe_gets_plain_text_and_a_terminal_colour() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    lines = result_lines(result())
    pipe, terminal = io.StringIO(), Terminal()
    print_lines(lines, stream=pipe)
    assert pipe.getvalue() == plain(lines)
    print_lines(lines, stream=terminal)
    assert [line.rstrip() for line in terminal.getvalue().splitlines()] != plain(lines).splitlines()
    assert "\x1b[" in terminal.getvalue()


def test_progress_does_not_wait_for_the_page_templates() -> None:
    """``harness.progress`` is imported by every command; jinja2 is needed at the end of a run."""
    code = "import sys, harness.progress; sys.exit('jinja2' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_hostile_text_does_not_drive_the_terminal() -> None:
    said = plain(result_lines(hostile()[0], directory=Path("out")))
    assert not {c for c in said if ord(c) < 32} - {"\n"}
    assert not any(line.startswith("# ") for line in said.splitlines())
    said.encode()


def test_groups_show_the_easiest_case_and_count_each_case_once() -> None:
    first, *rest = ack_violations()
    [found] = group([*rest, first, rest[0]])
    assert found.example == first  # the one with a bundle
    assert len(found.cases) == 12
    point = msgspec.structs.replace(first, layer="point", case="a/point@p-00000001")
    [mixed] = group([first, point])
    assert mixed.layers == ("point", "power/posix")
    assert mixed.example == point  # the simplest layer


def test_groups_without_a_signature_differ_by_message_not_by_numbers() -> None:
    def violation(message: str, needs: str = "") -> Violation:
        return Violation(case="c", layer="kill", invariant="i", message=message, needs=needs)

    assert signature_of(violation("step 40 lost")) == signature_of(violation("step 7 lost"))
    assert signature_of(violation("a 1")) != signature_of(violation("b 1"))
    assert signature_of(violation("a", "x before y")) == "i: x before y"
    assert [g.invariant for g in group(loss_violations() + ack_violations())] == [
        "no-lost-ack",
        "same-losses",
    ]


def test_the_command_is_made_of_the_id_when_none_is_given() -> None:
    violation = Violation(case="a/kill@x#1-0123abcd", layer="kill", invariant="i", message="m")
    assert reproduce_command(violation) == "durability reproduce 0123abcd"
    assert config_tag("a", violation.case) == ""
    assert config_tag("b", violation.case) == "b"


def test_coverage_shows_the_cell_that_nobody_tried() -> None:
    by_file, by_phase = coverage(records())
    assert by_phase.columns == ("release", "resume", "retention", "save", "start", "step")
    assert by_phase.rows[0].cases == (1, 15, 15, 15, 15, 15)
    assert by_file.columns == (
        "LATEST",
        "MANIFEST.json",
        "config.json",
        "fN",
        "model.safetensors",
        "optimizer.safetensors",
        "shard-N.bin",
        "stdout",
        "step-N",
        "trainer_state.json",
    )
    rows = {(r.layer, r.fault): r for r in by_file.rows}
    assert list(rows) == [
        ("kill", "SIGKILL"),
        ("power/posix", "power loss"),
        ("error", "EIO"),
        ("error", "ENOSPC"),
    ]
    assert rows["kill", "SIGKILL"].cases == (75, 75, 75, 0, 75, 75, 0, 0, 75, 75)
    assert rows["kill", "SIGKILL"].failed == (2, 0, 0, 0, 0, 0, 0, 0, 0, 0)
    assert ("error", "ENOSPC", "step-N") in by_file.empty_cells()
    assert ("error", "EIO", "step-N") not in by_file.empty_cells()
    assert by_phase.empty_cells() == []


def test_coverage_puts_too_many_files_together_and_loses_no_case() -> None:
    many = [
        CaseRecord(case=f"s/kill@write-{c}.bin#1-{n:08x}", layer="kill", verdict="pass")
        for n, c in enumerate("abcdefghijklmnopqrst")
    ]
    [table] = coverage(many)
    assert len(table.columns) == 16
    assert table.columns[-1] == "other"
    assert table.hidden == 5
    assert sum(table.rows[0].cases) == 20


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("s/kill@rename-LATEST#2-00000000", (("file", "LATEST"),)),
        ("s/kill@write-step-000040.tmp#2-00000000", (("file", "step-N.tmp"),)),
        ("s/point@save.manifest-written#3-00000000", (("phase", "save"),)),
        (
            "s/double@save.renamed#1+resume.found#1-00000000",
            (("phase", "resume"), ("phase", "save")),
        ),
        ("s/kill@rewind-step-000006+rename-LATEST#2-00000000", (("file", "LATEST"),)),
        ("s/kill@rewind-step-000006-00000000", (("file", "end"),)),
        ("s/power-posix@before-fsync-a.bin#1-00000000", (("file", "a.bin"),)),
        ("s/corrupt@zeros-model.safetensors-00000000", (("file", "zeros-model.safetensors"),)),
        ("no id at all", (("file", "no id at all"),)),
    ],
)
def test_targets_are_read_from_ids(case: str, expected: object) -> None:
    assert targets_of(CaseRecord(case=case, layer="kill", verdict="pass")) == expected


def test_a_record_may_name_its_fault_and_target() -> None:
    record = CaseRecord(case="x", layer="corrupt", verdict="pass", fault="flip", target="LATEST")
    assert fault_of(record) == "flip"
    assert targets_of(record) == (("file", "LATEST"),)
    assert fault_of(CaseRecord(case="x", layer="realfs/xfs", verdict="pass")) == "power loss"


def test_losses_are_decimal_unless_all_are_float32_bits() -> None:
    assert numbers(["40133333", "3f800000"]) == [2.299999952316284, 1.0]
    assert numbers(["40133333", "2.5"]) == [40133333.0, 2.5]


def test_a_curve_leaves_out_what_is_not_finite_and_says_so() -> None:
    svg = curve([(1, "4.0"), (2, "nan"), (3, "2.0"), (4, "oops")])
    assert "<title>loss from 4 at step 1 to 2 at step 3; 2 not finite</title>" in svg
    assert 'points="46.0,8.0 352.0,100.0"' in svg
    assert curve([(1, "4.0")]) == ""
    assert curve([(1, "nan"), (2, "nan")]) == ""
    assert curve([]) == ""


def test_a_long_curve_is_thinned_but_keeps_its_last_step() -> None:
    svg = curve([(s, f"{s}.0") for s in range(1, 10_002)])
    assert svg.count(",") < 420
    assert "at step 10001</title>" in svg


def test_unfit_characters_become_visible() -> None:
    assert printable("a\x1b[31m\x00\r\n\tb") == "a\\x1b[31m\\x00\\x0d\n\tb"
    assert printable("\udcff\ud800\u202e\ufffe") == "\\xff\\ud800\\u202e\\ufffe"
    assert one_line("a\nb\tc") == "a\\nb\\tc"
    assert printable("abcdef", limit=4) == "abcd … (2 more characters)"


def test_words() -> None:
    assert [duration(s) for s in (0.04, 61.24, 245.0, 7380.0)] == [
        "0.0 s",
        "61.2 s",
        "4 min 05 s",
        "2 h 03 min",
    ]
    assert count(1, "case") == "1 case"
    assert count(3110, "case") == "3,110 cases"
    layers = ["signal", "realfs/xfs", "power/posix", "odd", "kill", "power/ext4", "point"]
    assert sorted(layers, key=layer_key) == [
        "point",
        "kill",
        "power/posix",
        "power/ext4",
        "realfs/xfs",
        "signal",
        "odd",
    ]


def test_an_empty_run_is_never_said_to_have_held() -> None:
    empty = Result(
        command="check", subject="s", verdict="inconclusive", reasons=["no case was run"]
    )
    assert sentence(empty, signatures=0).startswith("0 cases ran, and the harness cannot say")
