"""What was told is known in its order also where a write to stdout or stderr costs nothing."""

import sys
from pathlib import Path

import pytest

from fault_injection import seccomp, supervision
from fault_injection.attempt import Attempt, Settings, run_attempt
from fault_injection.faults import ActionKind, Fault, TriggerKind
from fault_injection.recorder import Recorder
from fault_injection.settings import BEFORE_ANY_CALL
from fault_injection.spool import Spool

from .attempts import command, script

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}"
)

SAVES = """
    import os
    print("begins", flush=True)
    for step in (1, 2):
        fd = os.open("state.tmp", os.O_WRONLY | os.O_CREAT)
        os.write(fd, b"step-%d" % step)
        os.close(fd)
        print("writes", step, flush=True)
        os.rename("state.tmp", "state")
        print("saved", step, flush=True)
    """


def run(tmp_path: Path, source: str, fault: Fault | None = None, **more: object) -> Attempt:
    root = tmp_path / "root"
    root.mkdir(exist_ok=True)
    for path in root.iterdir():
        path.unlink()
    asked = command(sys.executable, script(tmp_path, source), cwd=root)
    given: dict[str, object] = {"timeout_s": 30.0, "follow_outputs": False, **more}
    return run_attempt(asked, Settings(str(root), fault=fault, **given))  # type: ignore[arg-type]


def told(attempt: Attempt) -> list[tuple[bytes, int]]:
    """What was told, and how many changing calls had been made by then."""
    changing = [BEFORE_ANY_CALL, *(p for p in attempt.places if not p.startswith("output"))]
    last = BEFORE_ANY_CALL
    found = []
    places = iter(attempt.places)
    for seen in attempt.seen:
        if seen.place.startswith("output"):  # the call before it
            for place in places:
                if place == seen.place:
                    break
                last = place if place in changing else last
            found.append((seen.data, changing.index(last)))
        else:
            found.append((seen.data, changing.index(seen.place)))
    return found


def test_outputs_are_no_places_and_keep_their_order(tmp_path: Path) -> None:
    followed = run(tmp_path, SAVES, follow_outputs=True)
    attempt = run(tmp_path, SAVES)
    assert [p for p in attempt.places if p.startswith("output")] == []
    assert len(attempt.places) == len(followed.places) - 5
    assert attempt.seen[0].place == BEFORE_ANY_CALL
    assert (
        told(attempt)
        == told(followed)
        == [
            (b"begins\n", 0),
            (b"writes 1\n", 2),
            (b"saved 1\n", 3),
            (b"writes 2\n", 5),
            (b"saved 2\n", 6),
        ]
    )


@pytest.mark.parametrize(("place", "words"), [("create-state.tmp#1", 1), ("rename-state#2", 4)])
def test_a_kill_at_a_call_knows_all_that_was_told_before(
    tmp_path: Path, place: str, words: int
) -> None:
    attempt = run(tmp_path, SAVES, Fault(TriggerKind.CALL, place, ActionKind.KILL))
    assert attempt.fault_seen
    assert attempt.places[-1] == place
    assert len(attempt.seen) == words
    assert place not in {seen.place for seen in attempt.seen}, "all was told before the call"


def test_a_flood_between_two_calls_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe holds 64 KiB: the second write of it waits for a look, and then for none any more."""
    monkeypatch.setattr(supervision, "_TICK_S", 5.0)
    flood = """
        import os
        for _ in range(40):
            os.write(1, b"x" * 65535 + b"\\n")
        os.mkdir("done")
        os.rmdir("done")
        """
    attempt = run(tmp_path, flood, output_limit_bytes=40 << 16)
    assert (attempt.exit_code, len(attempt.stdout)) == (0, 40 << 16)
    assert attempt.seconds < 10
    assert {seen.place for seen in attempt.seen} == {BEFORE_ANY_CALL}


def test_what_comes_after_the_end_is_taken_too(tmp_path: Path) -> None:
    late = """
        import os, sys
        if os.fork() == 0:
            print("x" * 200_000)
            sys.stdout.flush()
        """
    attempt = run(tmp_path, late, leftover_grace_s=20.0)
    assert (len(attempt.stdout), attempt.left_behind) == (200_001, ())


def test_a_file_of_the_tree_in_the_place_of_a_stream_is_noticed(tmp_path: Path) -> None:
    redirects = """
        import os
        fd = os.open("log", os.O_WRONLY | os.O_CREAT)
        os.dup2(fd, 1)
        os.write(1, b"words")
        """
    assert run(tmp_path, redirects, follow_outputs=True).redirected
    assert not run(tmp_path, SAVES, follow_outputs=True).redirected


def test_a_trace_without_outputs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="outputs: they are to be followed"):
        Recorder(tmp_path, spool=Spool(str(tmp_path / "spool")), follow_outputs=False)
