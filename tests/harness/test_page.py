"""``index.html``: one file, offline, safe to open, small whatever the run's size."""

import re
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from harness.report.page import MAX_CARDS, render
from harness.results import CaseRecord, Lint, Result, Violation
from tests.harness.report_samples import (
    ack_violations,
    hostile,
    loss_violations,
    passing,
    records,
    result,
    timeline,
    write_sample_bundle,
)

VOID = {"meta", "br", "path", "line", "circle", "polyline"}


class Tree(HTMLParser):
    """Checks that tags nest, and collects what a page refers to."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            assert not name.startswith("on"), f"<{tag} {name}> runs code"
            if name in ("href", "src"):
                self.links.append(value or "")
            if name == "id":
                self.ids.append(value or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def parsed(html: str) -> Tree:
    tree = Tree()
    tree.feed(html)
    tree.close()
    assert tree.open == []
    return tree


@pytest.fixture
def failing(tmp_path: Path) -> str:
    write_sample_bundle(tmp_path)
    return render(result(), records(), directory=tmp_path)


def test_it_is_one_well_formed_file_without_script_or_network(failing: str) -> None:
    tree = parsed(failing)
    assert not {"script", "link", "img", "iframe", "object", "form"} & set(tree.tags)
    for link in tree.links:
        assert not re.match(r"[a-z]+:|//", link), link
    assert "default-src 'none'" in failing
    assert "url(" not in failing
    assert "@import" not in failing
    assert len(tree.ids) == len(set(tree.ids))
    anchors = {link[1:] for link in tree.links if link.startswith("#")}
    assert anchors <= set(tree.ids)


def test_it_can_be_used_by_anyone(failing: str) -> None:
    assert '<html lang="en">' in failing
    assert 'name="viewport" content="width=device-width' in failing
    assert "prefers-color-scheme: dark" in failing
    assert failing.count("<h1>") == 1
    assert failing.count("<th scope=") == failing.count("<th ")
    for found in re.findall(r'<div class="scroll"[^>]*>', failing):
        assert 'tabindex="0"' in found
        assert "aria-label=" in found


def test_the_verdict_and_one_case_of_each_signature(failing: str) -> None:
    assert '<span class="stamp">FAIL</span>' in failing
    assert "14 of 924 cases broke 2 invariants; 2 signatures; 2 layers skipped" in failing
    assert failing.count('<article class="card">') == 2
    assert "12 cases <span>in power/posix</span>" in failing
    assert "step 40 was acknowledged as saved" in failing
    bundle = ack_violations()[0].bundle.replace("@", "%40")
    assert f'href="{bundle}/README.md"' in failing
    assert "besides" in failing.lower()


def test_one_case_that_breaks_two_promises_has_one_card(tmp_path: Path) -> None:
    first = ack_violations()[0]
    second = msgspec.structs.replace(
        first, invariant="ack-after-durable", signature="other", message="said too early"
    )
    broken = msgspec.structs.replace(result(), violations=[first, second])
    write_sample_bundle(tmp_path)
    page = render(broken, [], directory=tmp_path)
    assert page.count('<article class="card">') == 1
    assert "<b>ack-after-durable</b> said too early" in page
    assert page.count(timeline().crash) == 2  # in the card, and once in a timeline


def test_the_bundle_timeline_is_drawn_on_the_page(failing: str) -> None:
    assert failing.count("<svg") == 1 + 5  # the timeline, and a loss curve a baseline
    assert "rename step-000040/.metadata.tmp -&gt; .metadata" in failing
    assert timeline().crash in failing


def test_a_damaged_timeline_leaves_the_page_whole(tmp_path: Path) -> None:
    bundle = write_sample_bundle(tmp_path)
    (bundle / "timeline.json").write_text('{"title": 1}')
    tree = parsed(render(result(), records(), directory=tmp_path))
    assert tree.tags.count("svg") == 5


def test_an_empty_cell_of_the_coverage_is_visible(failing: str) -> None:
    by_file = failing[failing.index("<caption>by file") :]
    row = by_file[by_file.index(">ENOSPC<") :]
    cells = row[: row.index("</tr>")]
    assert cells.count('<td class="n none" title="no case">') == 5
    assert '<td class="n hit">2/75</td>' in failing


def test_skipped_layers_and_lints_are_there(failing: str) -> None:
    assert "mkfs.xfs not found: apt-get install xfsprogs" in failing
    assert "renamed and acknowledged; the directory is never fsynced" in failing
    assert "the process ended before release.renamed#9 was reached" in failing


def test_held_is_said_only_of_a_run_that_could_judge() -> None:
    """Nothing broke where nothing ran; that must not look green."""
    good = render(passing(), [r for r in records() if r.verdict == "pass"])
    assert good.count('<span class="held">held</span>') == 11
    unsure = msgspec.structs.replace(passing(), verdict="inconclusive", reasons=["canary"])
    page = render(unsure, records())
    assert page.count("not seen broken") == 11
    assert ">held<" not in page
    nothing = msgspec.structs.replace(unsure, layers={})
    page = render(nothing, [])
    assert page.count("not judged") == 11
    assert "No layer ran" not in page  # two were skipped, and are in the table
    assert "The harness could not judge:" in page
    broken = render(result(), records())
    assert broken.count('<span class="held">held</span>') == 9
    assert "broken in 12 cases" in broken


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    write_sample_bundle(tmp_path)
    page = render(*hostile(), directory=tmp_path)
    tree = parsed(page)
    assert not {"script", "img"} & set(tree.tags)
    assert not any("javascript" in link for link in tree.links)
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "\r" not in page
    page.encode()


@pytest.mark.parametrize("bundle", ["/etc/passwd", "../../x", "https://x/", "a/../../b", ""])
def test_a_bundle_outside_the_directory_is_no_link(bundle: str, tmp_path: Path) -> None:
    violation = msgspec.structs.replace(loss_violations()[0], bundle=bundle)
    broken = msgspec.structs.replace(result(), violations=[violation])
    tree = parsed(render(broken, [], directory=tmp_path))
    assert not any("README.md" in link for link in tree.links)


def test_ten_thousand_cases_stay_under_two_megabytes() -> None:
    many = [
        CaseRecord(
            case=f"adamw/kill@write-file{chr(97 + n % 26)}.bin#{n}-{n:08x}",
            layer="kill",
            verdict=("pass", "fail", "inconclusive")[n % 3],
            config="adamw",
            evidence="e" * 500,
            message="m" * 500,
        )
        for n in range(10_000)
    ]
    broken = [
        Violation(
            case=r.case,
            layer="kill",
            invariant="resumable",
            message="m" * 5000,
            evidence="e" * 50_000,
            signature="s0" if n < 1000 else f"s{n % 3000}",
        )
        for n, r in enumerate(many)
    ]
    lints = [
        Lint(name="rename-before-fsync", place=f"p{n}", file="f", message="m" * 300)
        for n in range(5000)
    ]
    page = render(msgspec.structs.replace(result(), violations=broken, lints=lints), many)
    assert len(page.encode()) < 2_000_000
    assert page.count('<article class="card">') == MAX_CARDS
    assert "2,970 more signatures" in page
    assert "and 2670 more in result.json" in page
    assert "1,003 cases with this signature" in page
    assert '<li class="dim">and 983 more in result.json</li>' in page
    parsed(page)


def test_a_result_of_nothing_still_has_a_page() -> None:
    page = render(Result(command="check", subject="s", verdict="inconclusive"), [])
    assert "No layer ran." in page
    parsed(page)
