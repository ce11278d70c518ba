"""The run to its end that rewinds begin with: made once, and only for what it was made for."""

from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection.attempt import Attempt
from fault_injection.faults import Fault, TriggerKind
from harness import ended
from harness.baseline import Baseline
from harness.ended import run_to_its_end
from harness.evidence import Step
from harness.subjects import Subject
from tests.harness.histories import a_baseline, a_subject, killed

END = Fault(TriggerKind.AFTER_LAST_CALL, "end")
BASELINE = a_baseline()


class Beginning:
    """Makes a first attempt that leaves one file, and counts how often."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "root"
        self.tree = tmp_path / "ended"
        self.made = 0

    def begin(
        self,
        *,
        subject: Subject | None = None,
        baseline: Baseline = BASELINE,
        tree: Path | None = None,
        happened: bool = True,
    ) -> tuple[Attempt, Step]:
        def make() -> tuple[Attempt, Step]:
            self.made += 1
            self.root.mkdir(exist_ok=True)
            (self.root / "file").write_text(str(self.made))
            return Attempt(), replace(killed(), fault=END, fault_seen=happened)

        return run_to_its_end(
            subject or a_subject(), baseline, END, root=self.root, tree=tree or self.tree, make=make
        )


@pytest.fixture
def beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Beginning:
    monkeypatch.setattr(ended, "_last", [])
    return Beginning(tmp_path)


def test_the_second_time_the_first_tree_is_laid_out(beginning: Beginning) -> None:
    first = beginning.begin()
    (beginning.root / "file").write_text("what the next attempt made of it")
    (beginning.root / "more").touch()
    assert beginning.begin() == first
    assert beginning.made == 1
    assert [(p.name, p.read_text()) for p in beginning.root.iterdir()] == [("file", "1")]


def test_another_subject_baseline_or_place_begins_anew(beginning: Beginning) -> None:
    beginning.begin()
    beginning.begin(subject=a_subject(name="other"))
    beginning.begin(subject=a_subject(name="other"), baseline=a_baseline(seconds=2.0))
    beginning.begin(tree=beginning.tree.with_name("elsewhere"))
    assert beginning.made == 4


def test_an_attempt_that_was_not_killed_is_not_remembered(beginning: Beginning) -> None:
    beginning.begin(happened=False)
    beginning.begin()
    beginning.begin()
    assert beginning.made == 2
