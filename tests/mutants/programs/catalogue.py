"""The programs of this directory and what is true of each, read from ``expected.toml``."""

import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
KINDS = ("broken", "correct", "untraceable", "nondeterministic", "leaves-children")
MODELS = ("posix", "ext4", "xfs", "btrfs")
FILE_SYSTEMS = ("ext4", "xfs", "btrfs")
LAYERS = (
    *("kill", "double", "signal"),
    *(f"power/{model}" for model in MODELS),
    *(f"realfs/{file_system}" for file_system in FILE_SYSTEMS),
)
_KEYS = {"kind", "what", "train", "losses", "acknowledged", "final", "preload", "timeout", "call"}


@dataclass(frozen=True, slots=True)
class Program:
    """One program. ``expect`` maps a layer to the invariants of which one must be reported.

    An empty tuple: none may be. A layer that is missing is not claimed.
    """

    name: str
    kind: str
    what: str
    train: tuple[str, ...]
    losses: Mapping[str, str]
    acknowledged: Mapping[str, str] | None
    final: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    timeout_s: float | None = None
    call: str = ""
    expect: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def source(self) -> Path:
        """The program's source file."""
        word = next(w for w in self.train if w != "{root}" and w not in ("python", "sh"))
        if word.startswith("{build}/"):
            return HERE / f"{word.removeprefix('{build}/')}.c"
        return HERE / word

    def command(self, *, root: Path, build: Path) -> list[str]:
        """The command with its places filled in; ``python`` is left for the caller."""
        places = {"{root}": str(root), "{build}": str(build)}
        return [_filled(word, places) for word in self.train]


def _filled(word: str, places: Mapping[str, str]) -> str:
    for place, value in places.items():
        word = word.replace(place, value)
    return word


def load() -> dict[str, Program]:
    """All the programs by name. Raises ValueError for a key, kind or layer that does not exist."""
    table = tomllib.loads((HERE / "expected.toml").read_text(encoding="utf-8"))
    defaults = table.pop("defaults")
    return {name: _program(name, entry, defaults) for name, entry in sorted(table.items())}


def _program(name: str, entry: Mapping[str, Any], defaults: Mapping[str, Any]) -> Program:
    unknown = entry.keys() - _KEYS - {"expect"}
    if unknown or entry["kind"] not in KINDS:
        raise ValueError(f"{name}: unknown keys {sorted(unknown)} or kind {entry['kind']!r}")
    return Program(
        name=name,
        kind=entry["kind"],
        what=entry["what"],
        train=tuple(entry["train"]),
        losses=entry.get("losses", defaults["losses"]),
        acknowledged=entry.get("acknowledged", defaults["acknowledged"]) or None,
        final=tuple(entry.get("final", ())),
        preload=tuple(entry.get("preload", ())),
        timeout_s=entry.get("timeout"),
        call=entry.get("call", ""),
        expect=_expectations(name, entry),
    )


def _expectations(name: str, entry: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    if entry["kind"] == "correct":
        return dict.fromkeys(LAYERS, ())
    claims: dict[str, Sequence[str]] = dict(entry.get("expect", {}))
    for group, members in (("power", MODELS), ("realfs", FILE_SYSTEMS)):
        if group in claims:
            everywhere = claims.pop(group)
            claims = {f"{group}/{member}": everywhere for member in members} | claims
    unknown = claims.keys() - set(LAYERS)
    if unknown:
        raise ValueError(f"{name}: no layer is called {sorted(unknown)}")
    return {layer: tuple(claims[layer]) for layer in LAYERS if layer in claims}


def compiler() -> str | None:
    """The C compiler, or None where there is none."""
    return shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")


def build(directory: Path) -> None:
    """Compile the C programs into ``directory``. Raises CalledProcessError with its messages."""
    cc = compiler()
    if cc is None:
        raise FileNotFoundError("no C compiler (cc, gcc or clang) is on the PATH")
    for source in sorted(HERE.glob("*.c")):
        target = directory / source.stem
        flags = ["-std=gnu11", "-O1", "-Wall", "-ffp-contract=off"]
        subprocess.run([cc, *flags, "-o", str(target), str(source)], check=True)


def subject_file(program: Program, *, build: Path) -> str:
    """The program as the text of a subject file that may lie anywhere."""
    lines = [
        f'name = "{program.name}"',
        f"train = {_words(w.replace('{build}', str(build)) for w in program.train)}",
        f"cwd = {_quoted(str(HERE))}",
        'env = { PYTHONDONTWRITEBYTECODE = "1", OMP_NUM_THREADS = "1" }',
    ]
    if program.preload:
        lines.append(f"preload = {_words(program.preload)}")
    if program.timeout_s is not None:
        lines.append(f"timeout = {program.timeout_s}")
    for key, pattern in (("losses", program.losses), ("acknowledged", program.acknowledged)):
        if pattern is not None:
            lines += ["", f"[{key}]", f'from = "{pattern["from"]}"']
            lines.append(f"pattern = '{pattern['pattern']}'")
    if program.final:
        lines += ["", "[final]", f"files = {_words(program.final)}"]
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _words(words: Iterable[str]) -> str:
    return "[" + ", ".join(_quoted(word) for word in words) + "]"
