"""Whether attempts can be forks is found out with all that the later forks will find loaded."""

from pathlib import Path

import pytest

from harness import tasks
from harness.workers import worker_pool

from .toys import CORRECT, toy


@pytest.mark.parametrize(
    ("weight", "fork"), [("1.0", True), ("1.0 + ('stringprep' in sys.modules)", False)]
)
def test_the_fork_that_must_agree_has_what_the_one_before_had_to_load(
    tmp_path: Path, weight: str, fork: bool
) -> None:
    """Nothing but this program minds; the first fork of it would say that all is well."""
    text = CORRECT.replace('"weight": 1.0', f'"weight": {weight}', 1)
    subject = toy(tmp_path, text + "\nimport stringprep\n")
    with worker_pool(1) as (executor, _):
        baseline = executor.submit(tasks.baseline_task, subject, True, None).result()
    assert baseline.fork is fork
    notes = [note for note in baseline.notes if "not as a fork" in note]
    assert len(notes) == (0 if fork else 1)
