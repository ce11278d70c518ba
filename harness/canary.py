"""The canary's subject and its cases: every gate and nightly must catch it, or says nothing."""

from pathlib import Path

from harness.subjects import Pattern, Subject, checked

NAME = "canary"


def canary_subject() -> Subject:
    """A writer that must fail under every layer that runs."""
    words = ("python", "-m", "harness.canary_writer", "{root}")
    return checked(
        Subject(
            name=NAME,
            train=words,
            resume=words,
            cwd=str(Path(__file__).resolve().parent.parent),
            losses=Pattern("stdout", r"^step=(?P<step>\d+) loss=(?P<loss>\S+)"),
            acknowledged=Pattern("stdout", r"^saved step=(?P<step>\d+)"),
            final=("state.json",),
        ),
        where="the canary",
    )
