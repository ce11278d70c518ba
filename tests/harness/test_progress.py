"""Progress: plain lines in a log, a bar on a terminal, and never a reason for a run to fail."""

import io
import threading

import pytest

from harness.progress import HEARTBEAT_S, progress


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class BrokenPipe(io.StringIO):
    def write(self, _: str) -> int:
        raise BrokenPipeError(32, "Broken pipe")


class Closed(io.StringIO):
    """A stream that was closed under us."""

    def __init__(self, closed: io.StringIO) -> None:
        super().__init__()
        self.write = closed.write  # type: ignore[method-assign]


@pytest.fixture(autouse=True)
def _ordinary_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CI", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def test_a_log_has_a_line_at_each_end_and_one_now_and_then() -> None:
    stream, clock = io.StringIO(), Clock()
    with progress(30, stream, clock=clock) as shown:
        shown.layer("adamw point", 20)
        for number in range(20):
            clock.now += HEARTBEAT_S / 10
            shown.advance(failed=number in (3, 4))
        shown.layer("adamw kill", 10)
        for _ in range(10):
            clock.now += 0.001
            shown.advance()
    assert stream.getvalue().splitlines() == [
        "adamw point: 0/20   [0/30 in all]   0.0 s",
        "adamw point: 10/20, 2 failed   [10/30 in all]   10.0 s",
        "adamw point: 20/20, 2 failed   [20/30 in all]   20.0 s",
        "adamw point: 20/20, 2 failed   [20/30 in all]   took 20.0 s",
        "adamw kill: 0/10   [20/30 in all]   20.0 s",
        "adamw kill: 10/10   [30/30 in all]   took 0.0 s",
    ]
    assert (shown.done, shown.failed) == (30, 2)


def test_a_long_case_beats_without_an_advance() -> None:
    stream, clock = io.StringIO(), Clock()
    with progress(stream=stream, clock=clock) as shown:
        shown.layer("realfs/xfs", 1)
        for _ in range(100):
            clock.now += 1.0
            shown.beat()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 12
    assert lines[1] == "realfs/xfs: 0/1   10.0 s"


@pytest.mark.parametrize("kind", [io.StringIO, Terminal])
def test_how_far_the_cases_under_way_are_is_shown(kind: type[io.StringIO]) -> None:
    """A layer of two long cases must not stand at 0/2 for minutes."""
    stream, clock = kind(), Clock()
    with progress(stream=stream, clock=clock) as shown:
        shown.layer("adamw power", 2)
        for states in range(100):
            clock.now += HEARTBEAT_S / 50
            shown.working(f"{states} states judged")
        shown.advance(failed=True)
        shown.layer("adamw signal", 2)
    said = stream.getvalue()
    if kind is Terminal:
        assert {f"{n} states judged" for n in range(100) if f"{n} states judged" in said} >= {
            "10 states judged",
            "50 states judged",
        }
    else:
        assert said.splitlines() == [
            "adamw power: 0/2   0.0 s",
            "adamw power: 0/2, 49 states judged   10.0 s",
            "adamw power: 0/2, 99 states judged   20.0 s",
            "adamw power: 1/2, 1 failed, 99 states judged   took 20.0 s",
            "adamw signal: 0/2   20.0 s",
            "adamw signal: 0/2   took 0.0 s",
        ]


def test_a_run_without_layers_says_nothing() -> None:
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.beat()
    assert stream.getvalue() == ""


def test_a_terminal_gets_a_bar_that_is_gone_at_the_end() -> None:
    stream, clock = Terminal(), Clock()
    with progress(10, stream, clock=clock) as shown:
        shown.layer("adamw [bold]kill", 10)
        clock.now += 1.0
        shown.advance(failed=True)
    said = stream.getvalue()
    assert "1/10" in said
    assert "1 failed" in said
    assert "\x1b[?25h" in said  # the cursor is back
    assert "in all" not in said


@pytest.mark.parametrize(("name", "value"), [("CI", "true"), ("TERM", "dumb")])
def test_a_ci_system_with_a_terminal_gets_lines(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    stream = Terminal()
    with progress(stream=stream) as shown:
        shown.layer("kill", 1)
        shown.advance()
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().startswith("kill: 0/1")


def test_a_closed_pipe_does_not_end_the_run() -> None:
    with progress(stream=BrokenPipe()) as shown:
        shown.layer("kill", 2)
        shown.advance()
    assert shown.done == 1
    closed = io.StringIO()
    closed.close()
    with progress(stream=Closed(closed)) as shown:
        shown.layer("kill", 2)
        shown.advance()
    assert shown.done == 1


def interrupted(stream: io.StringIO) -> None:
    with progress(stream=stream) as shown:
        shown.layer("kill", 2)
        raise KeyboardInterrupt


def test_the_bar_is_gone_after_an_exception_too() -> None:
    stream = Terminal()
    with pytest.raises(KeyboardInterrupt):
        interrupted(stream)
    assert "\x1b[?25h" in stream.getvalue()


def test_there_is_no_thread_behind_it() -> None:
    """The harness forks while progress is shown."""
    before = threading.active_count()
    with progress(stream=Terminal()) as shown:
        shown.layer("kill", 2)
        assert threading.active_count() == before


def test_a_layer_name_cannot_drive_the_terminal() -> None:
    stream = io.StringIO()
    with progress(stream=stream) as shown:
        shown.layer("a\x1b[2J\nb", 1)
    assert "\x1b" not in stream.getvalue()
    assert stream.getvalue().splitlines()[0] == "a\\x1b[2J\\nb: 0/1   0.0 s"
