"""All files of a run written, and the pages made again from the two that hold the truth.

``result.json`` and ``cases.jsonl`` are the truth; ``junit.xml``, ``summary.md`` and ``index.html``
are made from them, now or later (``durability report DIR``). Every file is written durably, the
truth first.
"""

from collections.abc import Sequence
from pathlib import Path

from harness.durable import make_directory, write_durably
from harness.errors import UsageError
from harness.report import junit, page, summary
from harness.results import FORMAT, CaseRecord, Result
from harness.stored import decode, encode, encode_pretty, read_json, read_regular


def write_all(out_dir: Path, result: Result, records: Sequence[CaseRecord]) -> None:
    """Write every file of a run to ``out_dir``. Raises OSError."""
    make_directory(out_dir)
    ordered = sorted(records, key=lambda r: (r.layer, r.case, r.config))
    lines = b"".join(encode(record) + b"\n" for record in ordered)
    write_durably(out_dir / "cases.jsonl", lines)
    write_durably(out_dir / "result.json", encode_pretty(result))
    _write_pages(out_dir, result, ordered)


def rewrite(directory: Path) -> Result:
    """Make the pages again from ``result.json`` and ``cases.jsonl``; returns the result.

    Raises UsageError naming the file and, for a case, the line that cannot be read.
    """
    result = read_result(directory / "result.json")
    _write_pages(directory, result, read_records(directory / "cases.jsonl"))
    return result


def _write_pages(out_dir: Path, result: Result, records: Sequence[CaseRecord]) -> None:
    write_durably(out_dir / "junit.xml", junit.render(result, records))
    write_durably(out_dir / "summary.md", summary.render(result, records))
    write_durably(out_dir / "index.html", page.render(result, records, directory=out_dir))


def read_result(path: Path) -> Result:
    """A stored result. Raises UsageError."""
    result = read_json(path, Result)
    if result.format != FORMAT:
        raise UsageError(f"{path}: format {result.format!r} is not {FORMAT!r}")
    return result


def read_records(path: Path) -> list[CaseRecord]:
    """The stored cases. Raises UsageError."""
    lines = read_regular(path).splitlines()
    return [
        decode(line, CaseRecord, said=f"{path}, line {number},")
        for number, line in enumerate(lines, start=1)
    ]
