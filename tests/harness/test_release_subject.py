"""The release writer as a program under test: killed in the layers that can hurt it.

A third of the cases, so that it is seconds: those at the third hit of a place, which are most of
the third release, with its head and its chat template. The file itself says how to run them all.
"""

import json
from pathlib import Path

import pytest

from fault_injection import seccomp
from harness import cli

SUBJECT = Path(__file__).parents[2] / "smoke_configs" / "subjects" / "release" / "subject.toml"


@pytest.mark.skipif(seccomp.unavailable() is not None, reason=f"seccomp: {seccomp.unavailable()}")
@pytest.mark.timeout(300)
def test_a_release_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["check", str(SUBJECT), "--jobs", "1", "--out", str(out), "--filter", "*#3-*"]
    code = cli.main([*words, "--faults", "point,kill"])
    result = json.loads((out / "result.json").read_text())
    assert (code, result["verdict"], result["violations"]) == (0, "pass", [])
    assert {name: layer["failed"] for name, layer in result["layers"].items()} == {
        "point": 0,
        "kill": 0,
    }
    assert result["layers"]["point"]["cases"] >= 15
    assert result["layers"]["kill"]["cases"] >= 15
    assert result["baseline"]["steps"] == 3
