"""The oracle's evidence from a crash state as data, without laying it out.

A tinyllm step directory is complete when its manifest verifies, which hashes decide. So the step
directories that stand complete in the uninterrupted run are verified once, for real; a directory
of a crash state is complete exactly when it equals one of them, entry for entry.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from fault_injection.crash_states import Entry, VisibleTree
from fault_injection.trace import FileType
from harness.tinyllm_layout import CKPT
from harness.tinyllm_state import RunState
from tinyllm.paths import LATEST, classify, step_name

_CKPT = CKPT.encode()
_STEP = re.compile(rb"step-[0-9]{6}")
_POINTER = re.compile(rb"step-([0-9]{6})\n")

StepKey = tuple[tuple[bytes, str, str], ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What stands below ``ckpt/`` in a tree: each step directory by the key of its entries."""

    steps: dict[int, StepKey]
    temporary: tuple[str, ...]
    latest: Entry | None


def layout_of(tree: VisibleTree) -> Layout:
    """Read the layout of a run from a tree."""
    inside: dict[bytes, list[tuple[bytes, str, str]]] = {}
    names: dict[bytes, Entry] = {}
    prefix = _CKPT + b"/"
    for path, entry in tree.entries.items():
        if not path.startswith(prefix):
            continue
        name, _, rest = path[len(prefix) :].partition(b"/")
        if rest:
            inside.setdefault(name, []).append((rest, str(entry.type), entry.digest))
        else:
            names[name] = entry
    listing = classify(n.decode("utf-8", "surrogateescape") for n in names)
    return Layout(
        steps={
            s: tuple(sorted(inside.get(step_name(s).encode(), ())))
            for s in listing.steps
            if names[step_name(s).encode()].type is FileType.DIRECTORY
        },
        temporary=listing.temporary,
        latest=names.get(LATEST.encode()),
    )


def is_evidence(path: bytes) -> tuple[bool, bool]:
    """Whether what :func:`run_state` says depends on there being a file, and on its bytes."""
    if not path.startswith(_CKPT + b"/"):
        return False, False
    name, _, rest = path[len(_CKPT) + 1 :].partition(b"/")
    looked_into = name == LATEST.encode() or _STEP.fullmatch(name) is not None
    return not rest or looked_into, looked_into


def run_state(tree: VisibleTree, *, complete_keys: Iterable[tuple[int, StepKey]]) -> RunState:
    """The run as a crash left it. ``complete_keys`` are the step directories that verify."""
    known = set(complete_keys)
    layout = layout_of(tree)
    complete = tuple(s for s, key in sorted(layout.steps.items()) if (s, key) in known)
    latest, problem = _pointer(tree, layout, complete)
    return RunState(
        latest=latest,
        pointer_problem=problem,
        complete=complete,
        broken=tuple(
            (step_name(s), "does not verify") for s in sorted(layout.steps) if s not in complete
        ),
        files={
            s: {name.decode("utf-8", "replace"): digest for name, _, digest in key}
            for s, key in layout.steps.items()
        },
        temporary=layout.temporary,
    )


def _pointer(
    tree: VisibleTree, layout: Layout, complete: tuple[int, ...]
) -> tuple[int | None, str]:
    entry = layout.latest
    if entry is None:
        return None, ""
    if entry.content is None:
        return None, f"is no file but a {entry.type}"
    if entry.content.size != len(b"step-000000\n"):
        return None, f"is no pointer: it has {entry.content.size} bytes"
    match = _POINTER.fullmatch(tree.read(_CKPT + b"/" + LATEST.encode()))
    if match is None:
        return None, "is no pointer: it does not name a step directory"
    step = int(match[1])
    if step not in layout.steps:
        return step, f"names {step_name(step)}, which is not there"
    if step not in complete:
        return step, f"names {step_name(step)}, which does not verify"
    return step, ""
