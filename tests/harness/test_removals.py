"""Leftovers that an attempt only clears away: what is taken not to matter, and when it is not."""

import itertools
from collections.abc import Callable, Iterator
from typing import cast

import pytest

from fault_injection.crash_states import Entry, VisibleTree
from fault_injection.crash_states.content import EMPTY, ContentStore
from fault_injection.crash_states.tree import make_tree
from fault_injection.trace import FileType
from harness.power.equal_reads import Question
from harness.power.removals import Removals

NAMES = "abcdef"
Names = frozenset[str]
STORE = cast("ContentStore", None)  # no content is read


def tree(names: Names, *, beside: str = "x") -> VisibleTree:
    """``left/`` with the names in it, and a file ``beside`` with that content."""
    entries = {
        b"left": Entry(FileType.DIRECTORY, 0o755),
        b"beside": Entry(FileType.FILE, 0o644, EMPTY, beside),
    }
    for name in names:
        entries[b"left/" + name.encode()] = Entry(FileType.FILE, 0o644, EMPTY, name)
    return make_tree(entries, STORE)


def questions(names: Names, level: str = "exists") -> tuple[Question, ...]:
    """What a program asks that lists ``left``, unlinks each name and removes it."""
    asked: list[Question] = [(b"beside", frozenset({"content"}))]
    asked.append((b"left", frozenset({"exists", "listing"})))
    asked += [(b"left/" + name.encode(), frozenset({level})) for name in sorted(names)]
    return tuple(asked)


def growing() -> Iterator[Names]:
    """Every subset, as the places of a save come to them: one name more at each place."""
    live = [frozenset[str]()]
    yield live[0]
    for name in NAMES:
        more = [subset | {name} for subset in live]
        live += more
        yield from more


def shrinking() -> Iterator[Names]:
    """Every subset, as the places of a removal come to them."""
    live = [frozenset(NAMES)]
    yield live[0]
    for name in NAMES:
        fewer = [subset - {name} for subset in live]
        live += fewer
        yield from fewer


class Judged:
    """A program that ends as ``outcome`` says of the names; how often it was run.

    ``keeps``: where it is not "cleared" the directory is kept, and not removed.
    """

    def __init__(self, outcome: Callable[[Names], str], *, keeps: bool = False) -> None:
        self.removals: Removals[str] = Removals()
        self.outcome, self.keeps = outcome, keeps
        self.run = 0

    def judge(self, names: Names, *, beside: str = "x") -> str:
        there = tree(names, beside=beside)
        known = self.removals.find(there)
        if known is not None:
            assert known[1] == {b"left"}
            return known[0]
        self.run += 1
        outcome = self.outcome(names)
        self.removals.add(
            there,
            questions(names),
            frozenset() if self.keeps and outcome != "cleared" else frozenset({b"left"}),
            essence=outcome,
            outcome=None if outcome == "failed" else outcome,
        )
        return outcome


@pytest.mark.parametrize("order", [growing, shrinking])
def test_a_few_runs_answer_for_all_sets_of_leftovers(
    order: Callable[[], Iterator[Names]],
) -> None:
    program = Judged(lambda _: "same")
    assert {program.judge(names) for names in order()} == {"same"}
    assert program.run <= 2 + len(NAMES) * (len(NAMES) + 1) / 2 + len(NAMES)


def test_what_was_shown_beside_one_thing_holds_beside_another() -> None:
    """But the fullest is run in each."""
    program = Judged(lambda _: "same")
    for beside in ("x", "y", "z"):
        for names in shrinking():
            program.judge(names, beside=beside)
    alone = Judged(lambda _: "same")
    for names in shrinking():
        alone.judge(names)
    assert program.run <= alone.run + 2 * 1


@pytest.mark.parametrize("marker", NAMES)
@pytest.mark.parametrize("order", [growing, shrinking])
def test_all_but_one_name_is_no_presumption(
    order: Callable[[], Iterator[Names]], marker: str
) -> None:
    """It adopts what has every part and no mark that it is unfinished."""
    wanted = frozenset(NAMES) - {marker}
    program = Judged(lambda names: "adopted" if names == wanted else "cleared")
    said = {names: program.judge(names) for names in order()}
    wrong = [names for names in said if said[names] != program.outcome(names)]
    assert not wrong or program.removals.material == {b"left"}


@pytest.mark.parametrize("order", [growing, shrinking])
@pytest.mark.parametrize("size", range(1, len(NAMES) + 1))
@pytest.mark.parametrize("how", ["failed", "adopted", "kept"])
@pytest.mark.parametrize("end", ["first", "last"])
def test_no_state_is_taken_wrongly_where_a_complete_or_a_nearly_complete_one_matters(
    order: Callable[[], Iterator[Names]], size: int, how: str, end: str
) -> None:
    """The names that a save writes first, or last, from one to all of them."""
    wanted = frozenset(NAMES[:size] if end == "first" else NAMES[-size:])

    def outcome(names: Names) -> str:
        return how if names >= wanted else "cleared"

    program = Judged(outcome, keeps=how == "kept")
    said = {names: program.judge(names) for names in order()}
    assert all(said[names] == outcome(names) for names in said if len(names) == len(NAMES))
    wrong = [names for names in said if said[names] != outcome(names)]
    # A state that was taken wrongly is found out: it is judged again once the directory mattered.
    assert not wrong or program.removals.material == {b"left"}


@pytest.mark.parametrize("name", NAMES)
def test_a_single_name_that_matters_is_found_before_anything_presumes_it(name: str) -> None:
    for order in (growing, shrinking):
        program = Judged(lambda names: "adopted" if name in names else "cleared")
        for names in order():
            assert program.judge(names) == program.outcome(names)
        assert program.removals.material == {b"left"}


def test_a_pair_of_names_that_matters_is_found_when_the_fullest_is_run() -> None:
    pairs = itertools.combinations(NAMES, 2)
    for (one, other), keeps, order in itertools.product(pairs, (False, True), (growing, shrinking)):
        program = Judged(
            lambda names, pair={one, other}: "up" if names >= pair else "cleared", keeps=keeps
        )
        said = {names: program.judge(names) for names in order()}
        wrong = [names for names in said if said[names] != program.outcome(names)]
        assert not wrong or program.removals.material == {b"left"}


def test_a_run_that_failed_answers_for_nothing() -> None:
    program = Judged(lambda _: "failed")
    for names in growing():
        assert program.judge(names) == "failed"
    assert program.run == 2 ** len(NAMES)


@pytest.mark.parametrize("level", ["content", "stat"])
def test_a_leftover_that_was_looked_into_is_none(level: str) -> None:
    removals: Removals[str] = Removals()
    for names in growing():
        asked = questions(names, level if names else "exists")
        removals.add(tree(names), asked, frozenset({b"left"}), essence="", outcome="same")
    assert removals.find(tree(frozenset("ac"))) is None


def test_a_name_asked_for_that_was_not_there_is_more_than_a_removal() -> None:
    removals: Removals[str] = Removals()
    for names in growing():
        asked = questions(names | {"manifest"})
        removals.add(tree(names), asked, frozenset({b"left"}), essence="", outcome="same")
    assert removals.find(tree(frozenset("ac"))) is None


def test_a_directory_that_is_kept_is_none() -> None:
    removals: Removals[str] = Removals()
    for names in growing():
        removals.add(tree(names), questions(names), frozenset(), essence="", outcome="same")
    assert removals.find(tree(frozenset("ac"))) is None


def test_other_answers_elsewhere_are_never_the_same() -> None:
    program = Judged(lambda _: "same")
    for names in growing():
        program.judge(names)
    assert program.removals.find(tree(frozenset("ac"))) is not None
    assert program.removals.find(tree(frozenset("ac"), beside="y")) is None


def test_another_mode_or_type_is_another_entry() -> None:
    program = Judged(lambda _: "same")
    for names in growing():
        program.judge(names)
    entries = dict(tree(frozenset("ac")).entries)
    for entry in (
        Entry(FileType.FILE, 0o600, EMPTY, "a"),
        Entry(FileType.DIRECTORY, 0o755),
        Entry(FileType.SYMLINK, 0o777, target=b"elsewhere"),
    ):
        assert program.removals.find(make_tree({**entries, b"left/a": entry}, STORE)) is None
