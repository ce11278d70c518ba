"""Saves, kills, resumes, rewinds and damage in any order, held against a model.

The model is a few lines: which step directories there are, what is in each, and what LATEST names.
A save that was not killed must do exactly what the model says. One that was killed may stop
anywhere, so what it left is checked against what is allowed, and then becomes the model's state.
"""

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tinyllm import checkpoints
from tests.tinyllm.checkpoints import find, flip, killed_at_number, latest, make_ckpt, names, save
from tinyllm.paths import MANIFEST, classify, step_name
from tinyllm.verification import verify_directory

INTERVAL = 4


@dataclass(frozen=True)
class Stored:
    """A step directory: the line of training that wrote it, and whether it is whole."""

    line: int
    good: bool


class CheckpointMachine(RuleBasedStateMachine):
    """See the module."""

    def __init__(self) -> None:
        super().__init__()
        self.scratch = Path(tempfile.mkdtemp(prefix="machine-"))
        self.ckpt = make_ckpt(self.scratch)
        self.stored: dict[int, Stored] = {}
        self.pointer: int | None = None
        self.lines = 0
        self.manifests: dict[tuple[int, int], bytes] = {}

    def teardown(self) -> None:
        shutil.rmtree(self.scratch)

    # What the model says.

    def good(self) -> list[int]:
        return sorted(step for step, what in self.stored.items() if what.good)

    def resumes_from(self) -> int | None:
        """The pointer's step or the newest good one below it; a newer one rather than nothing."""
        good = self.good()
        below = [s for s in good if self.pointer is None or s <= self.pointer]
        return max(below or good, default=None)

    def after_save(self, step: int, line: int, keep: int, *, rewound: bool) -> dict[int, Stored]:
        """The directories after a save of ``step`` that nothing disturbed."""
        stored = self.stored | {step: Stored(line, True)}
        good = sorted(s for s, what in stored.items() if what.good and s <= step)
        gone = set(good[:-keep])
        if rewound:
            gone |= {s for s, what in stored.items() if what.good and s > step}
        return {s: what for s, what in stored.items() if s not in gone}

    # What is on the disk.

    def expected_manifest(self, line: int, step: int) -> bytes:
        """The manifest of that checkpoint, which says every byte of it."""
        if (line, step) not in self.manifests:
            elsewhere = make_ckpt(self.scratch / f"expected-{line}-{step}")
            save(elsewhere, step, of_line=line)
            path = elsewhere / step_name(step) / MANIFEST
            self.manifests[line, step] = path.read_bytes()
        return self.manifests[line, step]

    def observed(self, possible_lines: Callable[[int], set[int]]) -> dict[int, Stored]:
        """The directories on the disk, each of one of its ``possible_lines``."""
        result = {}
        for step in classify(names(self.ckpt)).steps:
            directory = self.ckpt / step_name(step)
            lines = possible_lines(step)
            if not verify_directory(str(directory)).verifies:
                assert not self.stored[step].good, f"{directory} was damaged by us"
                result[step] = self.stored[step]
                continue
            manifest = (directory / MANIFEST).read_bytes()
            fitting = [n for n in lines if manifest == self.expected_manifest(n, step)]
            assert fitting, f"{directory} is of no line that could have written it"
            result[step] = Stored(fitting[0], True)
        return result

    def saving(self, step: int, line: int, keep: int, explicit: Path | None) -> Callable[[], None]:
        def work() -> None:
            known = checkpoints.resumed_line(self.ckpt, explicit)
            save(self.ckpt, step, keep=keep, line=known, of_line=line)

        return work

    def next_save(self, rewind_to: int | None) -> tuple[int, int, Path | None]:
        """The step, the line and the explicit path of the next save."""
        base = self.resumes_from() if rewind_to is None else rewind_to
        if rewind_to is not None:
            self.lines += 1
            return base + INTERVAL, self.lines, self.ckpt / step_name(base)
        line = 0 if base is None else self.stored[base].line
        return (base or 0) + INTERVAL, line, None

    @initialize()
    def begin(self) -> None:
        steps = [INTERVAL, 2 * INTERVAL, 3 * INTERVAL]
        save(self.ckpt, *steps)
        self.stored = dict.fromkeys(steps, Stored(0, True))
        self.pointer = steps[-1]

    @rule(keep=st.sampled_from([2, 3, 1]))
    def save_one(self, keep: int) -> None:
        self.do_save(keep, None)

    @precondition(lambda self: self.good())
    @rule(keep=st.sampled_from([2, 3, 1]), data=st.data())
    def rewind_and_save(self, keep: int, data: st.DataObject) -> None:
        self.do_save(keep, data.draw(st.sampled_from(self.good())))

    def do_save(self, keep: int, rewind_to: int | None) -> None:
        if not self.good():
            return
        step, line, explicit = self.next_save(rewind_to)
        expected = self.after_save(step, line, keep, rewound=explicit is not None)
        self.saving(step, line, keep, explicit)()
        assert self.observed(lambda s: {expected[s].line}) == expected
        assert not classify(names(self.ckpt)).temporary
        self.stored, self.pointer = expected, step

    @rule(keep=st.sampled_from([2, 3, 1]), number=st.integers(1, 30))
    def killed_save(self, keep: int, number: int) -> None:
        self.do_killed_save(keep, number, None)

    @precondition(lambda self: self.good())
    @rule(keep=st.sampled_from([2, 3, 1]), number=st.integers(1, 30), data=st.data())
    def rewind_and_killed_save(self, keep: int, number: int, data: st.DataObject) -> None:
        self.do_killed_save(keep, number, data.draw(st.sampled_from(self.good())))

    def do_killed_save(self, keep: int, number: int, rewind_to: int | None) -> None:
        if not self.good():
            return
        base = self.resumes_from() if rewind_to is None else rewind_to
        step, line, explicit = self.next_save(rewind_to)
        undisturbed = self.after_save(step, line, keep, rewound=explicit is not None)
        where = killed_at_number(self.saving(step, line, keep, explicit), number)
        before = self.stored
        now = self.observed(
            lambda s: (
                ({before[s].line} if s in before else set()) | ({line} if s == step else set())
            )
        )
        pointer = latest(self.ckpt)
        durable = pointer == step_name(step) and now.get(step) == Stored(line, True)
        missing = set(before) - set(now) - {step}
        if where is None:
            assert now == undisturbed
        if where is None or where == "save.announced" or where.startswith("retention."):
            assert durable, f"killed at {where}, LATEST is {pointer}"
        assert missing <= set(before) - set(undisturbed)
        assert durable or not missing, f"killed at {where}: {missing} went too early"
        allowed = {step_name(step), step_name(base)}
        allowed |= {step_name(self.pointer)} if self.pointer is not None else {"", "rubbish"}
        assert pointer in allowed
        assert any(what.good for what in now.values())
        self.stored = now
        self.pointer = classify([pointer]).steps[0] if classify([pointer]).steps else None

    @precondition(lambda self: len(self.good()) > 1)
    @rule(data=st.data())
    def damage_one(self, data: st.DataObject) -> None:
        step = data.draw(st.sampled_from(self.good()))
        file = data.draw(st.sampled_from([*checkpoints.FILES, MANIFEST]))
        path = self.ckpt / step_name(step) / file
        if file == MANIFEST:
            path.write_bytes(b"")
        else:
            flip(path, data.draw(st.integers(0, path.stat().st_size - 1)))
        self.stored[step] = Stored(self.stored[step].line, False)

    @rule(remove=st.booleans())
    def damage_latest(self, remove: bool) -> None:
        (self.ckpt / "LATEST").unlink(missing_ok=True)
        if not remove:
            (self.ckpt / "LATEST").write_text("rubbish")
        self.pointer = None

    @invariant()
    def what_is_found_is_what_the_model_says(self) -> None:
        if not self.stored:
            return
        before = checkpoints.tree(self.ckpt)
        checkpoint = find(self.ckpt).checkpoint
        assert (checkpoint.step if checkpoint else None) == self.resumes_from()
        assert checkpoints.tree(self.ckpt) == before


CheckpointMachine.TestCase.settings = settings(
    max_examples=25,
    stateful_step_count=10,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
TestCheckpoints = CheckpointMachine.TestCase
