"""Losses and acknowledgements are read a line at a time, as the world could see them."""

from dataclasses import replace

import pytest

from fault_injection.attempt import Seen
from harness import observation
from harness.errors import UsageError
from harness.observation import Event, events, fewest_digits
from harness.subjects import Pattern
from tests.harness.histories import a_subject

SUBJECT = a_subject()


def kinds(*chunks: bytes, ended: bool = True) -> list[tuple[str, int, str]]:
    found = events([Seen("stdout", c) for c in chunks], subject=SUBJECT, ended_by_itself=ended)
    return [(e.kind, e.step, e.loss) for e in found]


def test_a_line_may_come_in_pieces() -> None:
    assert kinds(b"1 0.", b"5\n2 0.25\nsaved", b" 2\n") == [
        ("loss", 1, "0.5"),
        ("loss", 2, "0.25"),
        ("ack", 2, ""),
    ]


def test_a_torn_loss_does_not_count_and_a_torn_acknowledgement_does() -> None:
    assert kinds(b"1 0.5\n2 0.2", ended=False) == [("loss", 1, "0.5")]
    assert kinds(b"1 0.5\n2 0.2") == [("loss", 1, "0.5"), ("loss", 2, "0.2")]
    assert kinds(b"1 0.5\nsaved 1", ended=False) == [("loss", 1, "0.5"), ("ack", 1, "")]


def test_other_sources_and_other_scripts_digits_do_not_count() -> None:
    assert kinds("\N{ARABIC-INDIC DIGIT ONE} 0.5\n".encode()) == []
    assert events([Seen("stderr", b"1 0.5\n")], subject=SUBJECT, ended_by_itself=True) == ()


def test_undecodable_bytes_do_no_harm() -> None:
    assert kinds(b"\xff\xfe\n1 0.5\n") == [("loss", 1, "0.5")]


def test_the_digits_of_losses() -> None:
    printed = [Event("loss", 1, "0.125"), Event("loss", 2, "1.5e-05"), Event("loss", 3, "10.25")]
    assert fewest_digits(printed) == 2
    assert fewest_digits([Event("loss", 1, "3f800000")]) == 0


def test_a_pattern_that_backtracks_is_an_error_and_does_not_hang(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """This search would take years; the bound is one of computing time, so no load decides."""
    monkeypatch.setattr(observation, "MATCHING_LIMIT_S", 0.05)
    pattern = Pattern("stdout", r"(?P<step>\d+) (?P<loss>(a+)+)$")
    said = r"\(a\+\)\+.* in stdout .* took more than 0\.05 s: the pattern backtracks"
    with pytest.raises(UsageError, match=said):
        events(
            [Seen("stdout", b"1 " + b"a" * 200 + b"b\n")],
            subject=replace(SUBJECT, losses=pattern),
            ended_by_itself=True,
        )
    assert kinds(b"1 0.5\n") == [("loss", 1, "0.5")]
