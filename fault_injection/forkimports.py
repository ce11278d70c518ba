"""Modules of the standard library that a forked program imports: loaded before the next fork.

A program that came to its end tells, through memory that it shares with the process that forked it,
which modules it had to load. Those of the standard library the parent then loads itself, so that no
later attempt pays for them again: ``argparse`` with what it needs takes several times as long as
all else that happens to a small program before its first line.

Only modules that a program cannot tell from its own are taken: from the file that the program took,
loaded without a warning (which each attempt must be able to print), and none of those that do
something to their process.

Not covered: modules of other packages; what is slow there is named to be preloaded by hand. A later
program that has a module of the same name beside it is started as a process.
"""

import contextlib
import gc
import importlib
import importlib.util
import json
import mmap
import os
import sys
import warnings
from collections.abc import Iterable

_SIZE_BYTES = 1 << 16
_DIRECTORY = os.path.join(os.path.dirname(os.path.realpath(os.__file__)), "")
_NOT_OURS = (os.path.join(_DIRECTORY, "site-packages"), os.path.join(_DIRECTORY, "dist-packages"))
# They print, open a window, set up the terminal, or are the tests of all the others.
_HAVE_EFFECTS = frozenset(
    ("antigravity", "idlelib", "readline", "rlcompleter", "test", "this", "tkinter", "turtle")
)

_shared: mmap.mmap | None = None
_refused: set[str] = set()
_loaded: set[str] = set()


def share() -> None:
    """In the parent, before a fork: make the memory that children tell through."""
    global _shared
    if _shared is None:
        _shared = mmap.mmap(-1, _SIZE_BYTES)


def tell(names: Iterable[str]) -> None:
    """In a forked child: ``names`` are the modules that the program loaded, in order."""
    if _shared is None:
        return
    found = []
    for name in names:
        origin = _origin(name)
        if origin:
            found.append((name, origin))
        elif name in sys.stdlib_module_names and name not in _HAVE_EFFECTS:
            return  # one of its own, which those of the library would import from elsewhere here
    if not found:
        return
    told = json.dumps(found).encode()
    if len(told) < _SIZE_BYTES:
        _shared[: len(told) + 1] = told + b"\0"


def load_told() -> bool:
    """In the parent, between attempts: load what the last child told of. Whether it was anything.

    Modules that are refused once are not tried again.
    """
    if _shared is None or not _shared[0]:
        return False
    told = _shared[: _shared.find(b"\0")]
    _shared[0] = 0
    before = frozenset(sys.modules)
    # A program can write anywhere in its memory: what is no such list is passed over.
    with contextlib.suppress(ValueError, TypeError):
        for name, origin in json.loads(told):
            if name not in sys.modules and name not in _refused and not _load(name, origin):
                _refused.add(name)
    new = sys.modules.keys() - before
    if not new:
        return False
    _loaded.update(new)
    # A fork must neither walk through what is loaded here nor copy its pages when it ends.
    gc.collect()
    gc.freeze()
    return True


def loaded() -> frozenset[str]:
    """The modules that were loaded here although nobody had named them."""
    return frozenset(_loaded)


def _origin(name: str) -> str:
    """The file of a loaded module of the standard library, or "built-in"; empty for others."""
    top = name.partition(".")[0]
    if top not in sys.stdlib_module_names or top in _HAVE_EFFECTS:
        return ""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str):
        return ""
    if origin in ("built-in", "frozen"):
        return origin
    real = os.path.realpath(origin)
    return origin if real.startswith(_DIRECTORY) and not real.startswith(_NOT_OURS) else ""


def _load(name: str, origin: str) -> bool:
    """Import a module here, if here too it is found at ``origin``."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            spec = importlib.util.find_spec(name)
            if spec is None or spec.origin != origin:
                return False
            importlib.import_module(name)
        except Exception:
            # Whatever it raises, a warning too, is the program's to see when it loads it itself.
            return False
    return _origin(name) == origin
