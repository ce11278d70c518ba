"""``durability report``: the pages again from the results."""

import argparse
import sys
from pathlib import Path
from typing import Any

from harness.report.text import print_lines, result_lines
from harness.report.write import rewrite


def add_parser(subparsers: Any) -> None:
    """Add ``report``."""
    parser = subparsers.add_parser(
        "report",
        help="the pages again from the results",
        description="Make junit.xml, summary.md and index.html again from result.json.",
    )
    parser.add_argument("directory", type=Path, metavar="DIR", help="where a run wrote its results")
    parser.set_defaults(run=run_report)


def run_report(arguments: argparse.Namespace) -> int:
    """Rewrite the pages and show the result; exit 0."""
    result = rewrite(arguments.directory)
    print_lines(result_lines(result, directory=arguments.directory), stream=sys.stdout)
    return 0
