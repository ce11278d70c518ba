"""The detection matrix: caught where it must be, silent everywhere else. Every cell is asserted."""

import atexit
import contextlib
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace
from pathlib import Path

import pytest

from fault_injection import seccomp, volumes
from harness import mutants, oracle, tinyllm_oracle
from harness.campaign import Options
from harness.matrix import BOUNDS, Cell, Row, markdown, matrix
from harness.mutants import POWER, REAL, Mutant
from harness.progress import progress
from harness.workers import worker_pool

pytestmark = [
    pytest.mark.skipif(
        seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
    ),
    pytest.mark.timeout(300),
]

DIRECTORY = Path(__file__).parents[1] / "mutants"
SPEC = Path(__file__).parents[2] / "smoke_configs" / "adamw.json"
LAYERS = ("kill", "double", "signal", *POWER)
BUILD = Path(tempfile.mkdtemp(prefix="durability-mutants-"))
OWNER = os.getpid()


def _remove_build() -> None:
    if os.getpid() == OWNER:  # not at the end of a fork of this process
        shutil.rmtree(BUILD, ignore_errors=True)


atexit.register(_remove_build)
PROGRAMS = mutants.programs(DIRECTORY, build=BUILD)


@pytest.fixture(scope="module")
def pool() -> Iterator[tuple[Executor, str]]:
    with contextlib.ExitStack() as stack:
        yield stack.enter_context(worker_pool(1))


def run(
    mutant: Mutant,
    pool: tuple[Executor, str],
    *,
    layers: tuple[str, ...] = LAYERS,
    kill: int | None = None,
) -> Row:
    executor, temp_dir = pool
    options = Options(faults=layers, jobs=1, trace_dir=f"{temp_dir}/traces")
    with progress(stream=io.StringIO()) as shown:
        [row] = matrix(
            [mutant],
            options=options,
            executor=executor,
            progress=shown,
            bounds=replace(
                BOUNDS,
                kill=kill,
                second_kill=24,
                later_kill=6,
                third_kill=8,
                signal=12,
                output_signal=6,
            ),
        )
    return row


@pytest.mark.parametrize("mutant", PROGRAMS, ids=[m.name for m in PROGRAMS])
def test_every_cell_is_as_it_must_be(mutant: Mutant, pool: tuple[Executor, str]) -> None:
    if mutant.missing:
        pytest.skip(mutant.missing)
    row = run(mutant, pool)
    assert row.problem == ""
    assert [cell for cell in row.cells if not cell.ok] == []


# Correct programs that are cut on real file systems as well, one for each way of saving.
CORRECT_ON_REAL = {"tmp_rename", "two_slots", "o_sync"}
ON_REAL = [
    m
    for m in PROGRAMS
    if set(m.expect) & set(REAL) and (m.kind == "broken" or m.name in CORRECT_ON_REAL)
]


@pytest.mark.parametrize("mutant", ON_REAL, ids=[m.name for m in ON_REAL])
def test_every_cell_on_real_file_systems(mutant: Mutant, pool: tuple[Executor, str]) -> None:
    for layer in REAL:
        if reason := volumes.unavailable(layer.partition("/")[2]):
            pytest.skip(f"{layer}: {reason}")
    if mutant.missing:
        pytest.skip(mutant.missing)
    row = run(mutant, pool, layers=REAL)
    assert row.problem == ""
    assert [cell for cell in row.cells if not cell.ok] == []


ONE_AN_INVARIANT = {
    "tinyllm-pointer-before-step": "kill",  # pointer-complete
    "tinyllm-rewind-leaves-the-pointer": "kill",  # pointer-complete, in a rewind only
    "tinyllm-abandoned-line-stays": "point",  # retention, in a rewind by two only
    "tinyllm-stale-lock": "kill",  # resumable
    "tinyllm-resumes-from-the-oldest": "kill",  # no-lost-ack
    "tinyllm-starts-anew-without-latest": "kill",  # no-silent-restart
    "tinyllm-momentum-not-restored": "kill",  # same-losses
    "tinyllm-resumed-is-written-down": "kill",  # same-final
    "tinyllm-progress-begun-anew": "kill",  # progress-readable
    "tinyllm-leftovers-stay": "kill",  # retention
    "tinyllm-literal-six-steps": "power/posix",  # the fsync that the six steps leave out
    "tinyllm-unchanged": "power/xfs",
}
TINYLLM = {m.name: m for m in mutants.tinyllm_mutants(DIRECTORY, spec=SPEC)}


@pytest.mark.parametrize("name", ONE_AN_INVARIANT)
def test_tinyllm_with_one_thing_patched(name: str, pool: tuple[Executor, str]) -> None:
    """One mutant for each invariant; ``durability matrix`` runs all of them."""
    layer = ONE_AN_INVARIANT[name]
    row = run(TINYLLM[name], pool, layers=(layer,))
    assert row.problem == ""
    assert [cell.ok for cell in row.cells] == [True]


RELEASES = [
    ("tinyllm-release-in-place", "kill"),
    ("tinyllm-release-name-not-synced", "power/ext4"),
    ("tinyllm-release-unchanged", "power/xfs"),
]


@pytest.mark.parametrize(("name", "layer"), RELEASES)
def test_broken_release_writers_and_the_right_one(
    name: str, layer: str, pool: tuple[Executor, str]
) -> None:
    """A sample of the kills is enough: what is written in place is half there for most of them."""
    row = run(TINYLLM[name], pool, layers=(layer,), kill=16)
    assert row.problem == ""
    assert [cell.ok for cell in row.cells] == [True]


def test_every_invariant_of_kills_has_a_mutant_of_tinyllm() -> None:
    broken = {i for m in TINYLLM.values() for found in m.expect.values() for i in found}
    assert broken >= {*oracle.GENERAL, *tinyllm_oracle.CHECKS}


def by_name(name: str) -> Mutant:
    return next(m for m in PROGRAMS if m.name == name)


def test_a_claim_that_does_not_hold_is_seen(pool: tuple[Executor, str]) -> None:
    """The matrix itself can fail: a correct program said to be broken, and the other way round."""
    right = by_name("tmp_rename")
    claimed = replace(right, kind="broken", expect={"kill": ("no-lost-ack",)})
    [cell] = run(claimed, pool, layers=("kill",)).cells
    assert (cell.ok, cell.found) == (False, ())
    wrong = replace(by_name("in_place"), expect={"kill": ()})
    [cell] = run(wrong, pool, layers=("kill",)).cells
    assert (cell.ok, cell.found) == (False, ("resumable",))
    other = replace(by_name("in_place"), expect={"kill": ("same-final",)})
    [cell] = run(other, pool, layers=("kill",)).cells
    assert not cell.ok


def test_a_mutant_that_dies_of_something_else_is_an_error_and_not_a_catch(
    pool: tuple[Executor, str],
) -> None:
    broken = by_name("in_place")
    dies = replace(
        broken, subject=replace(broken.subject, train=("python", "-c", "import gone{root}"))
    )
    row = run(dies, pool, layers=("kill",))
    assert not row.ok
    assert "no baseline" in row.problem


def test_a_cell_without_a_case_is_not_ok() -> None:
    assert not Row(by_name("in_place"), (Cell("kill", (), (), False, 0),)).ok


def test_the_readme_shows_the_matrix() -> None:
    page = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- matrix:begin -->\n")[2].partition("<!-- matrix:end -->")[0]
    assert shown.strip() == markdown(PROGRAMS, layers=(*LAYERS, *REAL)).strip()
