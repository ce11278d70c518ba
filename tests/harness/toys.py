"""Small programs without libraries that tests hurt: written to a file, described as a subject."""

from pathlib import Path

from harness.subjects import Pattern, Subject, checked

CORRECT = """
import json, os, sys
path = os.path.join(sys.argv[1], "state.json")
state = {"step": 0, "weight": 1.0}
if os.path.exists(path):
    with open(path) as file:
        state = json.load(file)
while state["step"] < 3:
    state = {"step": state["step"] + 1, "weight": state["weight"] * 0.75 + 0.125}
    print(f"step={state['step']} loss={state['weight']!r}", flush=True)
    with open(path + ".tmp", "w") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".tmp", path)
    directory = os.open(sys.argv[1], os.O_RDONLY)
    os.fsync(directory)
    os.close(directory)
    print(f"saved step={state['step']}", flush=True)
"""

_FRESH = 'state = {"step": 0,'

# The correct program, but that it stumbles over what a killed save leaves.
STUMBLES = CORRECT.replace(
    _FRESH,
    'if os.path.exists(path + ".tmp"):\n    sys.exit("what is state.json.tmp?")\n' + _FRESH,
    1,
)

# The correct program, but that no start on a directory with anything in it succeeds.
NEVER_RESUMES = CORRECT.replace(
    _FRESH,
    'if os.listdir(sys.argv[1]):\n    sys.exit("not empty")\n' + _FRESH,
    1,
)


def toy(directory: Path, text: str, *, name: str = "toy") -> Subject:
    """A subject that runs ``text``, which is written to ``directory``."""
    script = directory / f"{name}.py"
    script.write_text(text, encoding="utf-8")
    words = ("python", str(script), "{root}")
    subject = Subject(
        name=name,
        train=words,
        resume=words,
        cwd=str(directory),
        losses=Pattern("stdout", r"^step=(?P<step>\d+) loss=(?P<loss>\S+)"),
        acknowledged=Pattern("stdout", r"^saved step=(?P<step>\d+)"),
        final=("state.json",),
    )
    return checked(subject, where=name)
