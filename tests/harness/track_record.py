"""The rows of ``reports/track-record.md``, read as data, and a bounded run of what each says."""

import argparse
import importlib.util
import re
import shlex
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from harness.benchmarks.quiet import Quiet
from harness.campaign import Campaign, Options, baselines
from harness.cli import build_parser
from harness.commands.check import DEFAULT_FAULTS
from harness.commands.common import expanded
from harness.errors import HarnessError
from harness.layers import Bounds, run_subject
from harness.results import Violation
from harness.subjects import Subject, load_subject, with_timeout

ROOT = Path(__file__).resolve().parents[2]
RECORD = ROOT / "reports" / "track-record.md"
COLUMNS = (
    "library and version",
    "what breaks",
    "layer and model",
    "signature",
    "the one command that shows it",
    "last reproduced at",
)
# The names under which distributions are imported, where they differ.
_MODULES = {"pytorch-ignite": "ignite", "lightning-fabric": "lightning_fabric", "Python": "sys"}


@dataclass(frozen=True, slots=True)
class Row:
    """A row: a library in a version, the layer that shows the fault, and the command.

    ``across_file_systems``: only where temporary files lie on another file system than the tree.
    """

    library: str
    version: str
    layer: str
    signature: str
    command: str
    across_file_systems: bool

    @property
    def arguments(self) -> argparse.Namespace:
        """The command as the command line understands it."""
        program, *words = shlex.split(self.command)
        assert program == "durability"
        return build_parser().parse_args(words)

    @property
    def subject(self) -> Subject:
        """The subject that the command names."""
        [target] = self.arguments.target
        return load_subject(ROOT / target)

    @property
    def layers(self) -> tuple[str, ...]:
        """The layers that the command runs."""
        arguments = self.arguments
        return expanded(arguments.faults or DEFAULT_FAULTS, models=arguments.models)

    def missing(self) -> str:
        """Why the row cannot be tried here; empty when it can."""
        if importlib.util.find_spec(_MODULES.get(self.library, self.library)) is None:
            return f"{self.library} is not installed: pip install {self.library}=={self.version}"
        if self.library == "Python":
            return ""
        found = metadata.version(self.library).partition("+")[0]
        if found != self.version:
            return f"the row is of {self.library} {self.version}, here is {found}"
        return ""


def rows() -> list[Row]:
    """Every row of every table with the record's columns."""
    found = []
    for line in RECORD.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip().replace("\\|", "|") for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) != len(COLUMNS) or cells[0] == COLUMNS[0] or set(cells[0]) <= {"-", ":"}:
            continue
        library, version = cells[0].split()[:2]
        found.append(
            Row(
                library=library,
                version=version,
                layer=cells[2].strip("`"),
                signature=cells[3].strip("`"),
                command=cells[4].strip("`"),
                across_file_systems="another file system" in cells[1],
            )
        )
    return found


def correct_subjects() -> list[Path]:
    """The subject files that the record names as the correct way."""
    named = re.findall(r"\]\((\.\./smoke_configs/[^)]+\.toml)\)", RECORD.read_text())
    return [(RECORD.parent / name).resolve() for name in named]


def violations(
    subject: Subject, layers: tuple[str, ...], *, executor: Executor, temp: str
) -> list[Violation]:
    """What is found: by kills in the whole run, by power loss in its first save."""
    options = Options(faults=layers, jobs=1, trace_dir=f"{temp}/traces")
    [(_, baseline)] = baselines([subject], options=options, executor=executor)
    if isinstance(baseline, HarnessError):
        raise baseline
    campaign = Campaign(options, executor, Quiet(), None)
    subject = with_timeout(subject, baseline_seconds=baseline.seconds)
    for layer in layers:
        campaign.options = replace(options, faults=(layer,))
        saves = None if layer == "kill" else (0,)
        run_subject(campaign, subject, baseline, Bounds(saves=saves))
    assert campaign.records, "no case was run"
    return campaign.violations
