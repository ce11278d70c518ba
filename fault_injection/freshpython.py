"""What a newly started Python looks like, and whether a fork of this process can pass for one.

A *look* is what a program can see of how its interpreter was started: flags, module search path,
encodings of the standard streams, hash seed, warning options. A fresh interpreter with the
command's options and environment is started once and asked; its look is then compared with this
process's own. What a fork can be given (path, streams) is given; what it cannot (flags, hash
seed, variables that libraries read when they are loaded) must be equal, or the command is started
as a process.

Not covered: what a preloaded library read of the environment under a name that is not listed in
``_READ_WHEN_LOADED``.
"""

import contextlib
import functools
import importlib.machinery
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

# Run in the fresh interpreter, and in this process to compare.
_LOOK = """
import sys
def stream(name):
    s = getattr(sys, name)
    return [s.encoding, s.errors, bool(s.line_buffering), bool(s.write_through)] if s else None
look = {
    "path": sys.path[1:],
    "flags": list(sys.flags),
    "hash": hash("the seed of this process"),
    "fixed_hash": FIXED_HASH,
    "warnings": list(sys.warnoptions),
    "xoptions": sorted(map(repr, sys._xoptions.items())),
    "prefix": [sys.prefix, sys.exec_prefix, sys.pycache_prefix],
    "modules": sorted(m.partition(".")[0] for m in sys.modules),
    "streams": {n: stream(n) for n in ("__stdin__", "__stdout__", "__stderr__")},
}
"""
_SEEN_BY_THE_LOOK = ("PYTHON", "LC_", "LANG")
_READ_WHEN_LOADED = (
    "ATEN_", "BLIS_", "CUBLAS_", "CUDA_", "GLIBC_", "GOMP_", "GOTO_", "KMP_", "LD_", "MALLOC_",
    "MKL_", "NCCL_", "NPY_", "NUMEXPR_", "OMP_", "OPENBLAS_", "PYTORCH_", "TORCH_", "VECLIB_",
)  # fmt: skip
_FLAGS_ALONE = frozenset("bBdEIOPqRsSuv")
_FLAGS_WITH_VALUE = frozenset("WX")
_START_TIMEOUT_S = 60.0

Stream = tuple[str, str, bool, bool]  # encoding, errors, line buffering, write through


@dataclass(frozen=True, slots=True)
class PythonCommand:
    """A Python command line, taken apart: ``options``, then a script or a module, then its words.

    ``words`` are the arguments of the program, without its own name.
    """

    executable: str
    options: tuple[str, ...]
    script: str
    module: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Look:
    """How a fresh interpreter looks. ``path`` is the search path without its first entry."""

    path: tuple[str, ...]
    stdin: Stream
    stdout: Stream
    stderr: Stream
    comparable: Mapping[str, object]
    modules: frozenset[str]


def parse(argv: Sequence[str]) -> PythonCommand | str:
    """The parts of ``argv`` (whose first word is a Python), or why it cannot be taken apart."""
    options: list[str] = []
    words = list(argv[1:])
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            return PythonCommand(argv[0], tuple(options), word, "", tuple(words))
        if word == "-" or word.startswith("--"):
            return f"{word!r} is not a script or a module"
        for at, letter in enumerate(word[1:], start=1):
            if letter in _FLAGS_ALONE:
                options.append(f"-{letter}")
                continue
            value = word[at + 1 :] or (words.pop(0) if words else "")
            if letter in _FLAGS_WITH_VALUE and value:
                options.append(f"-{letter}{value}")
                break
            if letter == "m" and value:
                return PythonCommand(argv[0], tuple(options), "", value, tuple(words))
            return f"option -{letter} of Python needs a process of its own"
    return "no script and no module is named"


def is_this_python(executable: str, env: Mapping[str, str], cwd: str) -> bool:
    """Whether ``executable`` starts the interpreter that runs this process, venv included."""
    return _is_this_python(executable, env.get("PATH", os.defpath), cwd)


@functools.lru_cache(maxsize=64)
def _is_this_python(executable: str, path: str, cwd: str) -> bool:
    if os.sep not in executable:
        executable = shutil.which(executable, path=path) or executable
    theirs = os.path.join(cwd, executable)
    # Both are links to one binary in many environments: the directory makes the environment.
    return os.path.dirname(theirs) == os.path.dirname(sys.executable) and os.path.realpath(
        theirs
    ) == os.path.realpath(sys.executable)


def look_of(command: PythonCommand, env: Mapping[str, str], cwd: str) -> Look | str:
    """How an interpreter started for ``command`` looks, or why none starts.

    Costs the start of one, once for each set of options and of environment that matters.
    """
    relative = any(not os.path.isabs(p) for p in env.get("PYTHONPATH", "/").split(os.pathsep))
    relevant = {k: v for k, v in env.items() if k.startswith(_SEEN_BY_THE_LOOK)}
    return _fresh_look(
        sys.executable, command.options, tuple(sorted(relevant.items())), cwd if relative else "/"
    )


@functools.lru_cache(maxsize=64)
def _fresh_look(
    executable: str, options: tuple[str, ...], env: tuple[tuple[str, str], ...], cwd: str
) -> Look | str:
    environment = {k: v for k, v in os.environ.items() if not k.startswith(_SEEN_BY_THE_LOOK)}
    environment.update(env)
    code = _LOOK.replace("FIXED_HASH", repr(_hash_is_fixed(dict(env)))) + (
        "import json, os\nos.write(1, json.dumps(look).encode())"
    )
    try:
        done = subprocess.run(
            [executable, *options, "-c", code],
            cwd=cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_START_TIMEOUT_S,
        )
        if done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip().splitlines()
            return f"a fresh interpreter ended with {done.returncode}: {words[-1:]}"
        return _to_look(json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return f"a fresh interpreter could not be asked how it looks: {error}"


def _to_look(found: dict[str, object]) -> Look:
    streams = found.pop("streams")
    modules = found.pop("modules")
    path = found.pop("path")
    assert isinstance(streams, dict)
    assert isinstance(modules, list)
    assert isinstance(path, list)
    if None in streams.values():
        raise ValueError("it has no standard streams")
    if not found["fixed_hash"]:
        del found["hash"]  # each process draws its own
    return Look(
        path=tuple(path),
        stdin=tuple(streams["__stdin__"]),
        stdout=tuple(streams["__stdout__"]),
        stderr=tuple(streams["__stderr__"]),
        comparable=found,
        modules=frozenset(modules),
    )


def _hash_is_fixed(env: Mapping[str, str]) -> bool:
    return env.get("PYTHONHASHSEED", "random").isdigit()


def differs_from(look: Look, env: Mapping[str, str]) -> str | None:
    """Why a fork of this process cannot look like ``look``; None when it can."""
    ours = _own_look(_hash_is_fixed(os.environ))
    for name, wanted in look.comparable.items():
        if ours[name] != wanted:
            return f"this process was started differently: {name} is {ours[name]}, not {wanted}"
    for these, those in ((env, os.environ), (os.environ, env)):
        for name in these:
            if name.startswith(_READ_WHEN_LOADED) and these[name] != those.get(name):
                return f"{name} is read when libraries are loaded, and has another value here"
    return None


@functools.cache
def _own_look(fixed_hash: bool) -> Mapping[str, object]:
    """The same of this process; what is compared of it never changes."""
    scope: dict[str, object] = {}
    exec(_LOOK.replace("FIXED_HASH", repr(fixed_hash)), scope)
    ours = scope["look"]
    assert isinstance(ours, dict)
    return ours


def shadowed(directory: str, look: Look, *, but: Collection[str] = ()) -> str | None:
    """A module file in ``directory`` that this process has already imported from elsewhere.

    A fresh interpreter would find the program's own file first; a fork would not. ``but`` are
    modules that are not looked at.
    """
    suffixes = importlib.machinery.all_suffixes()
    try:
        names = sorted(os.listdir(directory))
    except OSError:
        return None
    for name in names:
        stem = next((name[: -len(s)] for s in suffixes if name.endswith(s)), name)
        module = sys.modules.get(stem)
        if module is None or stem in look.modules or stem in but:
            continue
        if stem == name and not _is_package(os.path.join(directory, name), suffixes):
            continue
        file = getattr(module, "__file__", None) or ""
        if os.path.realpath(file).startswith(os.path.realpath(directory) + os.sep):
            continue
        return f"{os.path.join(directory, name)} has the name of a module that is loaded already"
    return None


def moved(look: Look, *, but: Collection[str] = ()) -> str | None:
    """A module that is loaded here, of which a fresh interpreter would find another file.

    ``but`` are modules that are not looked at.
    """
    if _agreed.get(look.path) == loaded():
        return None
    for name, module in list(sys.modules.items()):
        if "." in name or name in look.modules or name == "__main__" or name in but:
            continue
        ours = getattr(getattr(module, "__spec__", None), "origin", None)
        if ours is None or not os.path.isabs(ours):
            continue
        found = importlib.machinery.PathFinder.find_spec(name, list(look.path))
        theirs = None if found is None else found.origin
        if theirs is not None and os.path.realpath(theirs) != os.path.realpath(ours):
            return f"{name} is loaded from {ours}; a fresh interpreter would take {theirs}"
    if not but:
        _agreed[look.path] = loaded()
    return None


_agreed: dict[tuple[str, ...], tuple[int, str]] = {}  # ``loaded`` when all were found alike


def loaded() -> tuple[int, str]:
    """What changes when a module is loaded: how many there are, and which is the last.

    Asked before every fork. Comparing the names themselves would write to every one of them (its
    count of references), and each page that is written to between two forks is copied.
    """
    return len(sys.modules), next(reversed(sys.modules))


def _is_package(path: str, suffixes: Sequence[str]) -> bool:
    return any(os.path.isfile(os.path.join(path, f"__init__{suffix}")) for suffix in suffixes)


def open_stream(fd: int, name: str, stream: Stream) -> io.TextIOWrapper:
    """A text stream on ``fd`` as the interpreter opens it for ``sys.stdin`` and its like."""
    encoding, errors, line_buffering, write_through = stream
    reads = name == "<stdin>"
    raw = io.FileIO(fd, "rb" if reads else "wb", closefd=False)
    # The interpreter sets the name that people see in repr(sys.stdout).
    with contextlib.suppress(AttributeError):
        raw.name = name
    binary: Any = raw
    if not write_through:
        binary = io.BufferedReader(raw) if reads else io.BufferedWriter(raw)
    text = io.TextIOWrapper(
        binary,
        encoding=encoding,
        errors=errors,
        newline="\n",
        line_buffering=line_buffering,
        write_through=write_through,
    )
    text.mode = "r" if reads else "w"  # type: ignore[misc]
    return text
