"""Subjects: the programs under test, as a TOML file, a command line or a tinyllm train spec.

A subject says how a program starts and resumes, and where its losses, acknowledgements and final
artifacts are. The file is read strictly: an unknown key is an error that names it.

Not covered: how an attempt is run (``harness.runner``), what is expected of it
(``harness.oracle``).
"""

import os
import re
import shutil
import sys
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from fault_injection.attempt import Command
from harness.errors import UsageError
from harness.stored import read_regular
from harness.tinyllm_layout import CKPT, PROGRESS, RUN_ID

ROOT = "{root}"
FILE_LIMIT_BYTES = 16 << 20  # of a subject file or a train spec
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_SEPARATORS = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Pattern:
    """Lines of ``source`` ("stdout", "stderr" or a path relative to the root) matching ``regex``.

    ``regex`` has a group ``step`` and, for losses, a group ``loss``.
    """

    source: str
    regex: str

    def compiled(self) -> re.Pattern[str]:
        """The regular expression; digits are ASCII digits."""
        return re.compile(self.regex, re.ASCII)


@dataclass(frozen=True, slots=True)
class Subject:
    """A program under test. ``cwd`` is absolute; ``env`` is what the file adds.

    ``timeout_s`` bounds one attempt; None means ten times the uninterrupted one, at least 30 s.
    ``format`` is "tinyllm" when the harness may read the checkpoints themselves, else "".
    """

    name: str
    train: tuple[str, ...]
    resume: tuple[str, ...]
    cwd: str
    env: tuple[tuple[str, str], ...] = ()
    timeout_s: float | None = None
    preload: tuple[str, ...] = ()
    losses: Pattern | None = None
    acknowledged: Pattern | None = None
    final: tuple[str, ...] = ()
    compare: str = "bytes"
    format: str = ""
    keep_ckpts: int = 0

    def watched(self) -> tuple[str, ...]:
        """The files under the root whose written bytes are observed."""
        patterns = (self.losses, self.acknowledged)
        return tuple(sorted({p.source for p in patterns if p and not is_stream(p.source)}))

    def command(self, *, root: str, resuming: bool, rewind: str = "") -> Command:
        """The command of one attempt, with ``{root}`` replaced in arguments and environment.

        ``rewind`` is the name of the step directory that a resume goes back to, "" for none.
        Raises :class:`UsageError` when the program is none that can be told to.
        """
        words = self.resume if resuming else self.train
        if rewind and self.format != "tinyllm":
            raise UsageError(f"{self.name}: only tinyllm can be told to go back to {rewind}")
        if rewind:
            words = (*words, f"{ROOT}/{CKPT}/{rewind}")  # the argument of --resume
        argv = [word.replace(ROOT, root) for word in words]
        if argv[0] in ("python", "python3"):
            argv[0] = sys.executable
        env = {k: v for k, v in os.environ.items() if not k.startswith("FAULT_")}
        env.update((k, v.replace(ROOT, root)) for k, v in self.env)
        return Command(argv=tuple(argv), cwd=self.cwd, env=tuple(sorted(env.items())))


def is_stream(source: str) -> bool:
    """Whether a pattern's source is an output stream rather than a file."""
    return source in ("stdout", "stderr")


# --- the subject file ------------------------------------------------------------------------


_Words = Annotated[list[str], msgspec.Meta(min_length=1)]


class _PatternFile(msgspec.Struct, forbid_unknown_fields=True):
    from_: str = msgspec.field(name="from")
    pattern: str


class _FinalFile(msgspec.Struct, forbid_unknown_fields=True):
    files: _Words
    compare: Literal["bytes", "tensors"] = "bytes"


class _SubjectFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    train: _Words
    resume: _Words | None = None
    cwd: str = "."
    env: dict[str, str] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=86400)] | None = None
    preload: list[str] = []
    losses: _PatternFile | None = None
    acknowledged: _PatternFile | None = None
    final: _FinalFile | None = None


def load_subject(path: Path) -> Subject:
    """Read a subject file. Raises :class:`UsageError` naming the file, the key and the mend."""
    data = read_regular(path, limit_bytes=FILE_LIMIT_BYTES, follow=True)
    try:
        table = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: the subject file is not UTF-8: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: not TOML: {error}") from error
    try:
        parsed = msgspec.convert(table, _SubjectFile)
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{path}: {error}. The keys of a subject file are described in docs/your-own-trainer.md"
        ) from error
    subject = Subject(
        name=parsed.name,
        train=tuple(parsed.train),
        resume=tuple(parsed.resume or parsed.train),
        cwd=str((path.resolve().parent / parsed.cwd).resolve()),
        env=tuple(sorted(parsed.env.items())),
        timeout_s=parsed.timeout,
        preload=tuple(parsed.preload),
        losses=_pattern(parsed.losses),
        acknowledged=_pattern(parsed.acknowledged),
        final=tuple(parsed.final.files) if parsed.final else (),
        compare=parsed.final.compare if parsed.final else "bytes",
    )
    return checked(subject, where=str(path))


def _pattern(parsed: _PatternFile | None) -> Pattern | None:
    return Pattern(parsed.from_, parsed.pattern) if parsed else None


def subject_from_command(
    words: list[str],
    *,
    resume: list[str] | None = None,
    loss_regex: str | None = None,
    ack_regex: str | None = None,
    losses_from: str = "stdout",
    acks_from: str = "stdout",
    final: tuple[str, ...] = (),
    compare: str = "bytes",
    preload: tuple[str, ...] = (),
    timeout_s: float | None = None,
    name: str | None = None,
) -> Subject:
    """The command-line form: ``durability check [options] -- COMMAND {root}``.

    ``losses_from`` and ``acks_from``: "stdout", "stderr" or a file below the root.
    """
    script = next((w for w in words[1:] if not w.startswith("-") and ROOT not in w), words[0])
    subject = Subject(
        name=name or _SEPARATORS.sub("-", Path(script).stem).strip("-._") or "subject",
        train=tuple(words),
        resume=tuple(resume or words),
        cwd=os.getcwd(),
        timeout_s=timeout_s,
        preload=preload,
        losses=Pattern(losses_from, loss_regex) if loss_regex else None,
        acknowledged=Pattern(acks_from, ack_regex) if ack_regex else None,
        final=final,
        compare=compare,
    )
    return checked(subject, where="the command line")


def checked(subject: Subject, *, where: str) -> Subject:
    """The subject, or a :class:`UsageError` that says what to change and where."""
    if not _NAME.fullmatch(subject.name):
        raise UsageError(
            f"{where}: name {subject.name!r} must be 1 to 64 of A-Z a-z 0-9 . _ - "
            "and begin with a letter or digit"
        )
    if not os.path.isdir(subject.cwd):
        raise UsageError(f"{where}: cwd {subject.cwd!r} is not a directory")
    for words, key in ((subject.train, "train"), (subject.resume, "resume")):
        if not any(ROOT in word for word in (*words, *dict(subject.env).values())):
            command = "the command" if key == "train" else "the command that resumes"
            raise UsageError(
                f"{where}: no argument of {command} contains {ROOT}, so the program would not "
                f"work in the tree under test. Put {ROOT} where it takes its output directory"
            )
        _check_executable(words[0], cwd=subject.cwd, where=f"{where}: {key}")
    _check_pattern(subject.losses, groups=("step", "loss"), where=f"{where}: [losses]")
    _check_pattern(subject.acknowledged, groups=("step",), where=f"{where}: [acknowledged]")
    for glob in subject.final:
        if os.path.isabs(glob) or ".." in Path(glob).parts or not glob:
            raise UsageError(f"{where}: [final] files {glob!r} must be a glob below {ROOT}")
    for module in subject.preload:
        if not all(part.isidentifier() for part in module.split(".")):
            raise UsageError(f"{where}: preload {module!r} is not the name of a module")
    return subject


def _check_executable(word: str, *, cwd: str, where: str) -> None:
    if word in ("python", "python3") or ROOT in word:
        return
    path = os.path.join(cwd, word) if "/" in word else shutil.which(word)
    if path is None or not os.path.exists(path):
        raise UsageError(f"{where}: command {word!r} is not found; give its path, or install it")
    if not os.access(path, os.X_OK) or os.path.isdir(path):
        raise UsageError(f"{where}: {word!r} is not an executable file")


def _check_pattern(pattern: Pattern | None, *, groups: tuple[str, ...], where: str) -> None:
    if pattern is None:
        return
    try:
        compiled = pattern.compiled()
    except re.error as error:
        raise UsageError(
            f"{where}: pattern {pattern.regex!r} is no regular expression: {error}"
        ) from error
    for group in groups:
        if group not in compiled.groupindex:
            raise UsageError(
                f"{where}: pattern {pattern.regex!r} has no group (?P<{group}>...); add it around "
                f"the {group}"
            )
    source = pattern.source
    if not is_stream(source) and (
        os.path.isabs(source) or ".." in Path(source).parts or not source
    ):
        raise UsageError(
            f'{where}: from = {source!r} must be "stdout", "stderr" or a path below {ROOT}'
        )


# --- tinyllm ---------------------------------------------------------------------------------


class _SpecView(msgspec.Struct):
    """What the harness needs of a train spec; tinyllm itself reads it strictly."""

    steps: int
    keep_ckpts: int


def tinyllm_subject(
    spec: Path, *, program: tuple[str, ...] = ("python", "-m", "tinyllm")
) -> Subject:
    """The built-in subject for a tinyllm train spec. ``program`` replaces ``python -m tinyllm``."""
    data = read_regular(spec, limit_bytes=FILE_LIMIT_BYTES, follow=True)
    try:
        view = msgspec.json.decode(data, type=_SpecView)
    except msgspec.DecodeError as error:
        raise UsageError(f"{spec}: not a tinyllm train spec: {error}") from error
    import tinyllm

    train = (
        *program,
        "train",
        str(spec.resolve()),
        "--artifacts",
        ROOT,
        "--run-id",
        RUN_ID,
    )
    subject = Subject(
        name=_SEPARATORS.sub("-", spec.stem),
        train=train,
        resume=(*train, "--resume"),
        cwd=str(spec.resolve().parent),
        env=(
            # This tinyllm and none that is installed elsewhere, whatever the directory is.
            ("PYTHONPATH", _with_first(str(Path(tinyllm.__file__).resolve().parents[1]))),
            # The checkout may move on while a campaign runs; that must not look like a violation.
            ("TINYLLM_GIT_SHA", "0" * 40),
        ),
        preload=tuple(tinyllm.PRELOAD),
        losses=Pattern(
            PROGRESS, r'"kind":"step",.*"step":(?P<step>\d+),.*"loss_bits":"(?P<loss>[0-9a-f]{8})"'
        ),
        acknowledged=Pattern(PROGRESS, r'"kind":"ckpt",.*"step":(?P<step>\d+)'),
        final=(f"{CKPT}/step-{view.steps:06d}/*", f"{CKPT}/LATEST"),
        format="tinyllm",
        keep_ckpts=view.keep_ckpts,
    )
    return checked(subject, where=str(spec))


def _with_first(directory: str) -> str:
    """PYTHONPATH with ``directory`` before what it has."""
    return os.pathsep.join(filter(None, (directory, os.environ.get("PYTHONPATH"))))


def discover(paths: list[Path]) -> list[Subject]:
    """Subjects for files and directories: ``.json`` is a train spec, ``.toml`` a subject file."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            found += sorted(path.glob("*.json"))
        else:
            found.append(path)
    subjects = []
    for path in found:
        if path.suffix == ".toml":
            subjects.append(load_subject(path))
        elif path.suffix == ".json":
            if path.name.startswith("tokenizer"):
                continue
            subjects.append(tinyllm_subject(path))
        else:
            raise UsageError(f"{path}: neither a train spec (.json) nor a subject file (.toml)")
    names = [s.name for s in subjects]
    for name in sorted({n for n in names if names.count(n) > 1}):
        raise UsageError(f"two subjects are named {name!r}; their case ids would be the same")
    return subjects


def with_timeout(subject: Subject, *, baseline_seconds: float) -> Subject:
    """The subject with its time limit decided."""
    if subject.timeout_s is not None:
        return subject
    return replace(subject, timeout_s=max(30.0, 10.0 * baseline_seconds))


def as_json(subject: Subject) -> dict[str, Any]:
    """The subject as JSON values, for bundles."""
    return dict(msgspec.to_builtins(subject))


def from_json(value: object) -> Subject:
    """The inverse of :func:`as_json`. Raises ``msgspec.ValidationError``."""
    return msgspec.convert(value, Subject)
