"""Mutants: deliberately broken programs that must be caught, and correct ones that must not.

Two kinds: the programs of ``tests/mutants/programs`` with the table ``expected.toml``, and tinyllm
with one thing patched, ``tests/mutants/tinyllm/<name>.py``, each saying in constants what it breaks
(``BREAKS``), under which layers that must be found (``LAYERS``) and where nothing may (``SILENT``).
What is patched is the training of a spec, with ``CONFIG`` of another one beside it; or with
``SUBJECT`` the example of that name in ``smoke_configs/subjects``, which runs from there.
"""

import ast
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec

from harness.errors import UsageError
from harness.stored import read_regular
from harness.subjects import (
    FILE_LIMIT_BYTES,
    Pattern,
    Subject,
    checked,
    load_subject,
    tinyllm_subject,
)

POWER = ("power/posix", "power/ext4", "power/xfs", "power/btrfs")
REAL = ("realfs/ext4", "realfs/xfs", "realfs/btrfs")
LAYERS = ("point", "kill", "double", "signal", *POWER, *REAL)
_GROUPS = {"power": POWER, "realfs": REAL}
COMPILE_TIMEOUT_S = 60

Kind = Literal["broken", "correct", "untraceable", "nondeterministic", "leaves-children"]


@dataclass(frozen=True, slots=True)
class Mutant:
    """A program and the truth about it.

    ``expect`` has for each layer that is claimed the invariants of which at least one must be
    reported there; none means that nothing may be. ``missing`` says why it cannot run here.
    """

    name: str
    kind: Kind
    what: str
    subject: Subject
    expect: Mapping[str, tuple[str, ...]]
    call: str = ""
    missing: str = ""


class _PatternFile(msgspec.Struct, forbid_unknown_fields=True):
    from_: str = msgspec.field(name="from")
    pattern: str


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    kind: Kind
    what: str
    train: list[str]
    resume: list[str] | None = None
    losses: _PatternFile | Literal[False] | None = None
    acknowledged: _PatternFile | Literal[False] | None = None
    final: list[str] = []
    compare: str = "bytes"
    env: dict[str, str] = {}
    preload: list[str] = []
    timeout: float | None = None
    call: str = ""
    expect: dict[str, list[str]] = {}


def directory() -> Path:
    """``tests/mutants`` of the checkout. Raises :class:`UsageError` outside one."""
    for base in (Path.cwd(), Path(__file__).resolve().parent.parent):
        if (base / "tests" / "mutants").is_dir():
            return base / "tests" / "mutants"
    raise UsageError("there is no tests/mutants here; the matrix needs a checkout")


def programs(mutants: Path, *, build: Path) -> list[Mutant]:
    """The programs of ``expected.toml``, C ones compiled into ``build``."""
    table_path = mutants / "programs" / "expected.toml"
    table: dict[str, Any] = tomllib.loads(
        read_regular(table_path, limit_bytes=FILE_LIMIT_BYTES, follow=True).decode("utf-8")
    )
    defaults = table.pop("defaults")
    losses = msgspec.convert(defaults["losses"], _PatternFile)
    acknowledged = msgspec.convert(defaults["acknowledged"], _PatternFile)
    missing = _compile(mutants / "programs", build)
    found = []
    for name, raw in table.items():
        try:
            entry = msgspec.convert(raw, _Entry)
        except msgspec.ValidationError as error:
            raise UsageError(f"{table_path}: [{name}]: {error}") from error
        compiled = any("{build}" in word for word in entry.train)
        subject = Subject(
            name=name.replace("_", "-"),
            train=_words(entry.train, build),
            resume=_words(entry.resume or entry.train, build),
            cwd=str(mutants / "programs"),
            env=tuple(sorted(entry.env.items())),
            timeout_s=entry.timeout,
            preload=tuple(entry.preload),
            losses=_pattern(entry.losses, losses),
            acknowledged=_pattern(entry.acknowledged, acknowledged),
            final=tuple(entry.final),
            compare=entry.compare,
        )
        if not (compiled and missing):
            subject = checked(subject, where=f"{table_path}: [{name}]")
        found.append(
            Mutant(
                name=name,
                kind=entry.kind,
                what=entry.what,
                subject=subject,
                expect=_expectations(entry),
                call=entry.call,
                missing=missing if compiled else "",
            )
        )
    return found


def _words(words: list[str], build: Path) -> tuple[str, ...]:
    return tuple(word.replace("{build}", str(build)) for word in words)


def _pattern(given: _PatternFile | Literal[False] | None, default: _PatternFile) -> Pattern | None:
    if given is False:
        return None
    chosen = given or default
    return Pattern(chosen.from_, chosen.pattern)


def _expectations(entry: _Entry) -> dict[str, tuple[str, ...]]:
    """The claims by layer, groups written out; a correct program is silent everywhere.

    One layer by its own name overrides its group.
    """
    if entry.kind == "correct":
        return {layer: () for layer in LAYERS if layer != "point"}
    found: dict[str, tuple[str, ...]] = {}
    for layer, invariants in sorted(entry.expect.items(), key=lambda item: item[0] not in _GROUPS):
        found.update(dict.fromkeys(_GROUPS.get(layer, (layer,)), tuple(invariants)))
    return {layer: found[layer] for layer in LAYERS if layer in found}


def _compile(source: Path, build: Path) -> str:
    """Compile the C programs; why that cannot be done here, or ""."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return "no C compiler was found"
    build.mkdir(parents=True, exist_ok=True)
    for path in sorted(source.glob("*.c")):
        subprocess.run(
            [compiler, "-O1", "-o", str(build / path.stem), str(path), "-lm", "-pthread"],
            check=True,
            timeout=COMPILE_TIMEOUT_S,
        )
    return ""


def tinyllm_mutants(mutants: Path, *, spec: Path) -> list[Mutant]:
    """tinyllm with one thing patched, trained by ``spec`` or doing what an example does."""
    found = []
    for path in sorted((mutants / "tinyllm").glob("[a-z]*.py")):
        tree = ast.parse(read_regular(path, limit_bytes=FILE_LIMIT_BYTES, follow=True))
        constants = _constants(tree)
        if "BREAKS" not in constants:
            continue
        breaks = constants["BREAKS"]
        layers = constants.get("LAYERS", ())
        silent = constants.get("SILENT", ())
        wanted = (breaks,) if isinstance(breaks, str) else tuple(breaks)
        expect = dict.fromkeys(_written_out(layers), wanted)
        expect.update(dict.fromkeys(_written_out(silent), ()))
        config = spec.with_stem(constants.get("CONFIG", spec.stem))
        subject = _patched(path, config, example=constants.get("SUBJECT", ""))
        found.append(
            Mutant(
                name=f"tinyllm-{path.stem.replace('_', '-')}",
                kind="broken" if wanted else "correct",
                what=(ast.get_docstring(tree) or "").splitlines()[0],
                subject=replace(subject, name=f"tinyllm-{path.stem.replace('_', '-')}"),
                expect={layer: expect[layer] for layer in LAYERS if layer in expect},
            )
        )
    return found


def _patched(path: Path, spec: Path, *, example: str) -> Subject:
    """The program at ``path`` in the place of ``python -m tinyllm``, or of an example's script."""
    if not example:
        return tinyllm_subject(spec, program=("python", str(path)))
    subject = load_subject(spec.parent / "subjects" / example / "subject.toml")
    words = ("python", str(path))
    return replace(
        subject, train=(*words, *subject.train[2:]), resume=(*words, *subject.resume[2:])
    )


def _constants(tree: ast.Module) -> dict[str, Any]:
    found = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                found[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
    return found


def _written_out(layers: tuple[str, ...] | str) -> list[str]:
    names = (layers,) if isinstance(layers, str) else layers
    return [one for name in names for one in _GROUPS.get(name, (name,))]
