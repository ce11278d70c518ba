"""``summary.md``: verdict first, nothing that could break out of its Markdown."""

import re

import msgspec

from harness.report.summary import MAX_SIGNATURES, block, code, escaped, render
from harness.results import Result, Violation
from tests.harness.report_samples import (
    ack_violations,
    hostile,
    loss_violations,
    passing,
    records,
    result,
)


def test_the_verdict_comes_first() -> None:
    lines = render(result(), records()).splitlines()
    assert lines[0].startswith("# ❌ FAIL — durability gate, my-trainer")
    assert lines[2] == (
        "14 of 924 cases broke 2 invariants; 2 signatures; 2 layers skipped. Took 61.2 s."
    )
    assert render(passing(), []).startswith("# ✅ PASS — ")
    unsure = msgspec.structs.replace(passing(), verdict="inconclusive", reasons=["no *case*"])
    said = render(unsure, [])
    assert said.startswith("# ⚠️ INCONCLUSIVE — ")
    assert "Not everything could be judged:\n\n- no \\*case\\*\n" in said


def test_each_signature_has_one_case_and_its_command() -> None:
    said = render(result(), records())
    assert "### no-lost-ack: 12 cases (power/posix)" in said
    assert said.count("  reproduce   ") == 2
    assert f"reproduce   durability reproduce {ack_violations()[0].case[-8:]}" in said


def test_layers_and_what_was_skipped_are_tables() -> None:
    said = render(result(), records())
    row = "| kill | 525 | **2** | SIGKILL before each file-system call under the root | 66.0 s |"
    assert row in said
    assert "| realfs/xfs | mkfs.xfs not found: apt-get install xfsprogs |" in said
    assert "- `muon/point@release.renamed#9-c407cfcf` the process ended before" in said
    assert "| rename-before-fsync | `LATEST` | `train.py:88 point_to()` |" in said


def test_a_table_cell_cannot_be_broken_out_of() -> None:
    assert escaped("a|b\n<img src=x>*") == "a\\|b\\\\n\\<img src=x\\>\\*"
    assert code("a`b|c") == "``a`b\\|c``"
    assert code("`") == "`` ` ``"
    assert code("") == ""


def test_a_block_cannot_be_closed_by_its_content() -> None:
    assert block("x\n````\ny\n") == "`````text\nx\n````\ny\n`````"
    violation = msgspec.structs.replace(loss_violations()[0], message="```\n# I passed")
    said = render(msgspec.structs.replace(result(), violations=[violation]), [])
    assert "\n# I passed" not in said


def test_hostile_text_stays_text() -> None:
    said = render(*hostile())
    assert not {c for c in said if ord(c) < 32} - {"\n"}
    outside = re.sub(r"(`+)(text\n)?.+?\1", "", said, flags=re.DOTALL)
    assert not re.search(r"(?<!\\)<", outside)


def test_thousands_of_signatures_stay_below_what_ci_systems_show() -> None:
    """GitHub shows at most one megabyte a step, and nothing at all above it."""
    many = [
        Violation(
            case=f"s/kill@p-{n:08x}",
            layer="kill",
            invariant="resumable",
            signature=str(n),
            message="m" * 5000,
            evidence="e" * 50_000,
        )
        for n in range(5000)
    ]
    said = render(msgspec.structs.replace(result(), violations=many), records())
    assert len(said.encode()) < 200_000
    assert said.count("### ") == MAX_SIGNATURES
    assert "4980 more signatures" in said.replace(",", "")
    assert "and 4880 more in `result.json`." in said


def test_a_result_of_nothing_still_has_a_summary() -> None:
    said = render(Result(command="check", subject="s", verdict="inconclusive"), [])
    assert said.startswith("# ⚠️ INCONCLUSIVE — durability check, s\n")
