"""``docs/failpoints.md`` lists the failpoints of the code, all of them and no others."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def _in_the_code() -> list[str]:
    names = []
    for path in sorted((ROOT / "tinyllm").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "point":
                argument = node.args[0]
                assert isinstance(argument, ast.Constant), f"{path}: a point's name is a literal"
                assert isinstance(argument.value, str)
                names.append(argument.value)
    return names


def test_the_documentation_lists_every_point() -> None:
    text = (ROOT / "docs/failpoints.md").read_text()
    documented = re.findall(r"^\| `([^`]+)` \| \S.*\. \|$", text, flags=re.MULTILINE)
    assert sorted(documented) == sorted(set(documented)), "listed twice"
    assert set(documented) == set(_in_the_code())
    assert len(documented) == len([x for x in text.splitlines() if x.startswith("| `")])


def test_a_name_stands_in_one_place() -> None:
    """So that a hit's number alone tells which of them it is."""
    names = _in_the_code()
    assert sorted(names) == sorted(set(names))


def test_names_say_what_has_just_happened() -> None:
    phases = {"start", "resume", "step", "end", "save", "rewind", "retention", "release"}
    for name in _in_the_code():
        assert re.fullmatch(r"[a-z]+\.[a-z]+(-[a-z]+)*", name), name
        assert name.split(".")[0] in phases, name
