"""``durability matrix``: mutants x layers."""

import argparse
import fnmatch
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fault_injection import leftovers
from harness import mutants
from harness.commands.common import add_common, fresh_out, options_of
from harness.commands.gate import smoke_configs
from harness.errors import UsageError
from harness.matrix import Cell, Row, matrix, short_name, volume_missing
from harness.progress import progress
from harness.stored import encode_pretty
from harness.workers import worker_pool

DEFAULT_FAULTS = ("kill", "double", "signal", "power", "realfs")
SPEC = "adamw.json"


def add_parser(subparsers: Any) -> None:
    """Add ``matrix``."""
    parser = subparsers.add_parser(
        "matrix",
        help="mutants x layers",
        description="Run the deliberately broken programs and the correct ones under every layer, "
        "and compare with what is known about each: caught where it must be, silent elsewhere.",
    )
    parser.add_argument(
        "names", nargs="*", metavar="MUTANT", help="only these (globs; default: all)"
    )
    parser.add_argument("--mutants", type=Path, metavar="DIR", help="default: tests/mutants")
    add_common(parser, command="matrix", default_faults=DEFAULT_FAULTS)
    parser.set_defaults(run=run_matrix)


def run_matrix(arguments: argparse.Namespace) -> int:
    """Print the table; exit 1 when a cell is not as it must be."""
    options = options_of(arguments, default_faults=DEFAULT_FAULTS)
    directory = arguments.mutants or mutants.directory()
    out = fresh_out(arguments.out)
    rows: list[Row] = []
    with (
        leftovers.workspace(run_id="build") as build,
        worker_pool(options.jobs) as (executor, temp_dir),
        progress(stream=sys.stderr) as shown,
    ):
        chosen = chosen_mutants(directory, arguments.names, build=Path(build))
        for row in matrix(
            chosen,
            options=replace(options, trace_dir=f"{temp_dir}/traces"),
            executor=executor,
            progress=shown,
        ):
            rows.append(row)
    show(rows, layers=options.faults)
    for layer in options.faults:
        if reason := volume_missing(layer):
            print(f"skipped {layer}: {reason}")
    (out / "matrix.json").write_bytes(encode_pretty([as_json(row) for row in rows]))
    return 0 if all(row.ok for row in rows) else 1


def chosen_mutants(directory: Path, names: list[str], *, build: Path) -> list[mutants.Mutant]:
    """The mutants whose name matches one of the globs (all when there is none)."""
    everything = mutants.programs(directory, build=build)
    if (directory / "tinyllm").is_dir():
        everything += mutants.tinyllm_mutants(directory, spec=smoke_configs() / SPEC)
    if not names:
        return everything
    chosen = [m for m in everything if any(fnmatch.fnmatchcase(m.name, n) for n in names)]
    if not chosen:
        raise UsageError(f"no mutant matches {', '.join(names)}")
    return chosen


def show(rows: list[Row], *, layers: tuple[str, ...]) -> None:
    """The table on stdout: what was found in each cell, and what was not as it must be."""
    table = Table(title="Mutants x layers", show_lines=False)
    table.add_column("mutant")
    for layer in layers:
        table.add_column(short_name(layer))
    for row in rows:
        cells = {cell.layer: cell for cell in row.cells}
        table.add_row(row.mutant.name, *[_words(cells.get(layer), row) for layer in layers])
    Console(width=None if sys.stdout.isatty() else 200).print(table)
    for row in rows:
        if row.problem:
            print(f"WRONG {row.mutant.name}: {row.problem}")
        for cell in row.cells:
            if not cell.ok:
                wanted = " or ".join(cell.expected or ()) or "nothing"
                found = ", ".join(cell.found) or "nothing"
                print(
                    f"WRONG {row.mutant.name} {cell.layer}: {found}, where {wanted} must be found"
                )
    wrong = sum(not row.ok for row in rows)
    print(
        f"{len(rows)} mutants, {wrong} not as they must be"
        if wrong
        else f"{len(rows)} mutants, every cell as it must be"
    )


def _words(cell: Cell | None, row: Row) -> str:
    if cell is None:
        return {"untraceable": "exit 3", "nondeterministic": "exit 3"}.get(row.mutant.kind, "")
    if not cell.ok:
        return f"[bold red]{', '.join(cell.found) or 'missed'}[/]"
    return ", ".join(cell.found) or "[dim]silent[/]"


def as_json(row: Row) -> dict[str, Any]:
    """A row as JSON values."""
    return {
        "mutant": row.mutant.name,
        "kind": row.mutant.kind,
        "what": row.mutant.what,
        "ok": row.ok,
        "problem": row.problem,
        "said": row.said,
        "cells": {
            cell.layer: {
                "expected": list(cell.expected or ()),
                "found": list(cell.found),
                "ok": cell.ok,
                "cases": cell.cases,
            }
            for cell in row.cells
        },
    }
