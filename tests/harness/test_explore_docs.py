"""The examples of the page on Python and pytest are run as they stand."""

import re
from pathlib import Path
from typing import Any

import pytest

from fault_injection import seccomp

pytestmark = pytest.mark.skipif(
    seccomp.unavailable() is not None, reason=str(seccomp.unavailable())
)

PAGE = Path(__file__).resolve().parents[2] / "docs" / "from-python-and-pytest.md"


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def test_the_examples_run_and_fail_as_the_page_says(tmp_path: Path) -> None:
    source = tmp_path / "test_settings.py"
    source.write_text(blocks("python")[0])
    scope: dict[str, Any] = {"__name__": "example"}
    exec(compile(source.read_text(), str(source), "exec"), scope)
    from harness import explore

    shown: list[str] = []

    def crash_explorer(**arguments: Any) -> None:
        shown.append(explore(**arguments).text())

    scope["test_a_crash_leaves_the_old_settings_or_the_new"](crash_explorer)
    assert shown[0].split() == blocks("text")[0].split()
    with pytest.raises(AssertionError, match="the check fails on crash states   posix 5 of 13"):
        exec(compile(blocks("python")[1], "second", "exec"), scope)
    exec(compile(blocks("python")[2], "third", "exec"), scope)
