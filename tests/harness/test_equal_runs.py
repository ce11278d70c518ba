"""What saves runs saves no verdict: every state judged the same with ``--no-equal-reads``."""

from concurrent.futures import Executor, Future
from itertools import islice
from pathlib import Path
from typing import Any, cast

import pytest

from fault_injection import seccomp
from fault_injection.crash_states import Entry, VisibleTree, enumerate_states
from fault_injection.crash_states.content import EMPTY, ContentStore
from fault_injection.crash_states.tree import make_tree
from fault_injection.trace import FileType
from harness.benchmarks.quiet import Quiet
from harness.campaign import Campaign, Options
from harness.evidence import Finding
from harness.observation import Event
from harness.power import judge as judging
from harness.power.equal_reads import answer
from harness.power.explore import Exploration, Explored
from harness.power.judge import Judge, Resumed
from harness.power.layer import Piece, _take_down
from tests.fault_injection.test_crash_states_enumeration import checkpoint_save
from tests.harness.histories import a_baseline, a_subject, ack, ended, loss, losses
from tests.harness.test_check_command import check, described

STORE = cast("ContentStore", None)  # no content is read

# A checkpoint is a directory of three files; a start removes what an unfinished save has left.
CLEARS = """
    import json, os, shutil, sys
    root = sys.argv[1]
    state = {"step": 0, "w": 1.0}
    pointer = os.path.join(root, "pointer")
    PARTS = ("a", "b", "c")

    def sync(path):
        directory = os.open(path, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    def write(path, text):
        with open(path, "w") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())

    def load(name):
        found = [json.load(open(os.path.join(root, name, part))) for part in PARTS]
        assert found[0] == found[1] == found[2]
        return found[0]

    if os.path.exists(pointer):
        state = load(open(pointer).read())
    for name in sorted(os.listdir(root)):
        if name.endswith(".tmp") and os.path.isdir(os.path.join(root, name)):
            LEFTOVER
    while state["step"] < 2:
        state = {"step": state["step"] + 1, "w": state["w"] * 0.5 + 0.25}
        print(f"step={state['step']} loss={state['w']!r}", flush=True)
        name = f"step-{state['step']}"
        staging = os.path.join(root, name + ".tmp")
        shutil.rmtree(staging, ignore_errors=True)
        os.mkdir(staging)
        for part in PARTS:
            write(os.path.join(staging, part), json.dumps(state))
        sync(staging)
        shutil.rmtree(os.path.join(root, name), ignore_errors=True)
        os.rename(staging, os.path.join(root, name))
        sync(root)
        write(pointer + ".tmp", name)
        os.rename(pointer + ".tmp", pointer)
        sync(root)
        print(f"saved step={state['step']}", flush=True)
"""
REMOVE = "shutil.rmtree(os.path.join(root, name))"
# Adopts a leftover by its names, though its bytes may never have been written.
ADOPT = """
            there = set(os.listdir(os.path.join(root, name)))
            if there >= set(WANTED):
                shutil.rmtree(os.path.join(root, name[:-4]), ignore_errors=True)
                os.rename(os.path.join(root, name), os.path.join(root, name[:-4]))
                state = load(name[:-4])
            else:
                shutil.rmtree(os.path.join(root, name))
"""


def program(leftover: str = REMOVE) -> str:
    return CLEARS.replace("            LEFTOVER", "            " + leftover.strip())


PROGRAMS = {
    "removes": program(),
    "adopts the complete": program(ADOPT.replace("WANTED", "'abc'")),
    "adopts some": program(ADOPT.replace("WANTED", "'ac'")),
    "adopts by one name": program(ADOPT.replace("WANTED", "'b'")),
    "fails at one": program(f"assert 'b' not in os.listdir(os.path.join(root, name)); {REMOVE}"),
    "overwrites": program("pass").replace(
        "        shutil.rmtree(staging, ignore_errors=True)\n        os.mkdir(staging)\n",
        "        os.makedirs(staging, exist_ok=True)\n",
    ),
}


# What a resume depends on without reading it under the name that it has in the crash state.
SLOTS = """
    import json, os, sys
    root = sys.argv[1]
    state = {"step": 0, "w": 1.0}
    slots = [os.path.join(root, name) for name in ("a", "b")]

    def write(path, text, synced=True):
        with open(path + ".tmp", "w") as file:
            file.write(text)
            file.flush()
            if synced:
                os.fsync(file.fileno())

    def sync():
        directory = os.open(root, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)

    there = [slot for slot in slots if os.path.exists(slot)]
    if there:
        state = json.loads(READ)
    START
    while state["step"] < 4:
        state = {"step": state["step"] + 1, "w": state["w"] * 0.5 + 0.25}
        print(f"step={state['step']} loss={state['w']!r}", flush=True)
        slot = slots[state["step"] % 2]
        write(slot, json.dumps(state))
        os.rename(slot + ".tmp", slot)
        sync()
        print(f"saved step={state['step']}", flush=True)
    END
"""
NEWEST = "max((open(slot).read() for slot in there), key=lambda text: json.loads(text)['step'])"
FINAL = 'os.path.join(root, "final")'


def of_slots(*, read: str = NEWEST, start: str = "pass", end: str = "pass") -> str:
    return SLOTS.replace("READ", read).replace("START", start).replace("END", end)


PUBLISHED = f"""if not os.path.exists({FINAL}):
        write({FINAL}, str(state), synced=False)
        os.rename({FINAL} + ".tmp", {FINAL})"""
PUBLISHES = f"os.path.exists({FINAL} + '.tmp') and os.rename({FINAL} + '.tmp', {FINAL})"
IN_DIRECTORY = """if not os.path.exists(os.path.join(root, "export")):
        os.makedirs(os.path.join(root, "staged"), exist_ok=True)
        write(os.path.join(root, "staged", "x"), str(state), synced=False)
        os.rename(os.path.join(root, "staged", "x.tmp"), os.path.join(root, "staged", "x"))
        os.rename(os.path.join(root, "staged"), os.path.join(root, "export"))"""
PROMOTES = (
    "os.path.exists(os.path.join(root, 'staged')) "
    "and os.rename(os.path.join(root, 'staged'), os.path.join(root, 'export'))"
)
OTHERS = {
    "publishes unread": (of_slots(start=PUBLISHES, end=PUBLISHED), "final", 1),
    "promotes unread": (of_slots(start=PROMOTES, end=IN_DIRECTORY), "export/*", 1),
    "takes the newest": (
        of_slots(read="open(max(there, key=lambda s: os.stat(s).st_mtime_ns)).read()"),
        "",
        0,
    ),
    "reads through proc": (
        of_slots(read=NEWEST.replace("open(slot)", "open(f'/proc/self/fd/{os.open(slot, 0)}')")),
        "",
        0,
    ),
}


@pytest.mark.skipif(seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}")
@pytest.mark.parametrize("name", [*PROGRAMS, *OTHERS])
def test_every_state_is_judged_alike(name: str, tmp_path: Path) -> None:
    broken = int(name not in ("removes", "overwrites"))
    source, final, expected = OTHERS.get(name) or (PROGRAMS[name], "", broken)
    options = [*described("--faults", "power", "--models", "posix", "--exhaustive")]
    options[options.index("--final") : options.index("--final") + 2] = (
        ["--final", final] if final else []
    )
    code, with_it = check(tmp_path, source, *options)
    same_code, without = check(tmp_path, source, *options, "--no-equal-reads")
    assert code == same_code == expected
    counted, all_run = (result["layers"]["power/posix"] for result in (with_it, without))
    for key in ("cases", "failed", "states"):
        assert counted[key] == all_run[key], key
    assert "equal_reads" not in all_run
    assert _told(with_it) == _told(without)
    if name == "overwrites":
        assert counted["judged"] * 3 < counted["states"]


def _told(result: dict[str, Any]) -> list[tuple[str, str, str]]:
    return sorted((v["case"], v["invariant"], v["message"]) for v in result["violations"])


def tree(**entries: Entry) -> VisibleTree:
    return make_tree({name.encode(): entry for name, entry in entries.items()}, STORE)


def file(mode: int = 0o644, *, digest: str = "", link: int = -1) -> Entry:
    return Entry(FileType.FILE, mode, EMPTY, digest, link=link)


ABSENT = tree()


@pytest.mark.parametrize("word", ["replaced", "emptied-644"])
def test_a_name_that_is_overwritten_answers_alike_for_any_file_and_for_none(word: str) -> None:
    question = (b"name", frozenset({word}))
    expected = answer(ABSENT, question)
    assert answer(tree(name=file()), question) == expected
    assert answer(tree(name=file(digest="other")), question) == expected


@pytest.mark.parametrize(
    "entry",
    [
        Entry(FileType.DIRECTORY, 0o755),
        Entry(FileType.SYMLINK, 0o777, target=b"x"),
        Entry(FileType.OTHER, 0o644),
        file(link=3),  # what becomes of it shows under its other name
    ],
)
@pytest.mark.parametrize("word", ["replaced", "emptied-644"])
def test_anything_else_in_its_place_is_another_answer(word: str, entry: Entry) -> None:
    question = (b"name", frozenset({word}))
    assert answer(tree(name=entry), question) != answer(ABSENT, question)


def test_an_emptied_file_keeps_its_mode_and_a_replaced_one_does_not() -> None:
    private = tree(name=file(0o600))
    for word, alike in (("emptied-644", False), ("emptied-600", True), ("replaced", True)):
        question = (b"name", frozenset({word}))
        assert (answer(private, question) == answer(ABSENT, question)) is alike


def test_a_name_that_was_also_asked_for_is_told_from_none() -> None:
    question = (b"name", frozenset({"replaced", "exists"}))
    assert answer(tree(name=file()), question) != answer(ABSENT, question)


def test_a_missing_parent_is_another_answer() -> None:
    question = (b"in/name", frozenset({"replaced"}))
    there = make_tree({b"in": Entry(FileType.DIRECTORY, 0o755)}, STORE)
    assert answer(there, question) != answer(ABSENT, question)


def resumed(*events: Event, presumed: frozenset[bytes] = frozenset()) -> Resumed:
    return Resumed(ended(*events), {}, False, frozenset(), presumed)


def checking(monkeypatch: pytest.MonkeyPatch, *runs: Resumed, scratch: Path) -> Judge:
    """A judge of which every answer is checked, and whose runs come out like this in turn."""
    turn = iter(runs)
    question = (b"name", frozenset({"content"}))
    monkeypatch.setattr(Judge, "run", lambda *_: (next(turn), (question,), frozenset()))
    monkeypatch.setattr(judging, "CHECK_EVERY", 1)
    monkeypatch.setattr(judging, "CHECKED_OF_EACH_FOLD", 1e9)
    return Judge(a_subject(), a_baseline(), scratch, shown=(), check=True)


def test_a_sample_that_comes_out_otherwise_makes_the_run_inconclusive(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one, other = resumed(loss(1), ack(1)), resumed(loss(1))
    judge = checking(monkeypatch, one, one, other, scratch=tmp_path)
    there = tree(name=file(digest="x"))
    assert judge.resumed(there) == judge.resumed(there) == one
    assert judge.contradictions == []
    assert judge.resumed(there) == other  # what was seen counts
    [said] = judge.contradictions
    assert "it depends on something that is not seen" in said
    assert (judge.counts.judged, judge.counts.equal_reads, judge.counts.checked) == (1, 2, 2)

    exploration = Exploration(a_subject(), a_baseline(), str(tmp_path), "posix")
    explored = Explored("posix", 3, 3, 1, 2, 2, False, 0, (), (), contradictions=(said,))
    campaign = Campaign(Options(("power/posix",), ("posix",), 1), Executor(), Quiet(), None)
    _take_down(campaign, Piece((exploration,), Future(), ""), [explored])
    assert campaign.reasons == [f"{a_subject().name}: {said}"]
    assert campaign.layers["power/posix"].cases == 3


def test_a_verdict_that_was_shared_wrongly_is_a_contradiction_too(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    one = resumed(*losses(1, 10))
    judge = checking(monkeypatch, *[one] * 4, scratch=tmp_path)
    first, second = islice(enumerate_states(checkpoint_save(2), model="posix"), 2)
    found = judge.findings(first)
    for shared, said in ((found, 0), ([Finding("resumable", "not so")], 1)):
        monkeypatch.setattr(judge.verdicts.__class__, "find", lambda *_, s=shared: (s, frozenset()))
        judge._remembered.clear()
        assert judge.findings(second) == found
        assert len(judge.contradictions) == said
