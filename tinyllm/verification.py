"""Does a directory hold exactly what its manifest says, and does it make sense?

Everything on the disk is taken for hostile until proved otherwise (see ``guarded``): no name is
used before it was checked, nothing outside the directory is opened, and nothing is ever changed.
Every problem is reported, one a file.

Hashes prove that the bytes are those that were saved. That they belong together is checked too:
the step in the name, in the manifest, in the trainer state and in the optimizer's metadata is one.

Not covered: whether the tensors fit a model (the trainer knows that).
"""

import errno
import hashlib
import os
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import msgspec

from tinyllm.durable import Directory
from tinyllm.guarded import (
    OPEN_DIRECTORY,
    Unreadable,
    open_regular,
    read_bounded,
    read_exactly,
    unreadable,
)
from tinyllm.hashing import hash_descriptor, side_by_side
from tinyllm.manifest import (
    CONFIG_FILE,
    GENERATION_FILE,
    MAX_MANIFEST_BYTES,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    TOKENIZER_FILE,
    CheckpointManifest,
    FileEntry,
    Manifest,
    ReleaseManifest,
    decode_manifest,
)
from tinyllm.paths import MANIFEST, parse_step_name
from tinyllm.state import decode_state
from tinyllm.tensor_files import FORMAT_NAME, read_metadata

# Files whose content is kept while they are hashed; longer ones are hashed only. A tokenizer is the
# largest of them, and a trainer takes one of 256 MiB.
SMALL_FILES = frozenset(
    {CONFIG_FILE, GENERATION_FILE, STATE_FILE, TOKENIZER_FILE, "tokenizer_config.json"}
)
MAX_SMALL_BYTES = 256 << 20

_SUBDIRECTORIES = ("evals", "heads")


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with one ``file`` ("" for the directory). ``errno`` when a call failed."""

    file: str
    reason: str
    errno: int = 0

    def __str__(self) -> str:
        return f"{self.file}: {self.reason}" if self.file else self.reason


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found. A directory verifies when there is no problem.

    ``contents`` are the small files' bytes; ``descriptors`` the files that were asked to be kept
    open, which the caller closes. Descriptors are there only when the directory verifies.
    """

    path: str
    manifest: Manifest | None
    problems: tuple[Problem, ...]
    contents: Mapping[str, bytes] = field(default_factory=dict)
    descriptors: Mapping[str, int] = field(default_factory=dict)

    @property
    def verifies(self) -> bool:
        """No problem was found."""
        return not self.problems

    @property
    def size_bytes(self) -> int:
        """What the manifest's files take."""
        return sum(e.size for e in self.manifest.files.values()) if self.manifest else 0

    def why(self) -> str:
        """The problems in one line, the first three of them."""
        shown = "; ".join(str(problem) for problem in self.problems[:3])
        more = len(self.problems) - 3
        return f"{shown}; and {more} more" if more > 0 else shown


@dataclass(frozen=True, slots=True)
class _Checked:
    problem: Problem | None = None
    content: bytes | None = None
    fd: int = -1


def verify_directory(
    path: str,
    *,
    parent: Directory | None = None,
    keep_open: Collection[str] = (),
    unhashed: Collection[str] = (),
) -> Verdict:
    """Verify the directory ``path`` (a name in ``parent`` where one is given).

    ``unhashed`` are files whose sha256 the caller compares himself, while he copies them.
    """
    full = path if parent is None else parent.at(path)
    flags = OPEN_DIRECTORY if parent is not None else OPEN_DIRECTORY & ~os.O_NOFOLLOW
    try:
        fd = os.open(path, flags, dir_fd=None if parent is None else parent.fd)
    except OSError as error:
        return Verdict(full, None, (_not_a_directory(full, error),))
    try:
        verdict = _verify_open(Directory(fd, full), keep_open, unhashed)
        if any(p.errno == errno.ENOENT for p in verdict.problems) and _is_gone(full, fd):
            gone = Problem("", "was removed while it was being read", errno.ENOENT)
            return Verdict(full, verdict.manifest, (gone,))
        return verdict
    finally:
        os.close(fd)


def _not_a_directory(path: str, error: OSError) -> Problem:
    found = unreadable(error)
    if error.errno == errno.ENOTDIR and os.path.islink(path):
        # With O_DIRECTORY Linux says ENOTDIR for a symbolic link that it may not follow.
        return Problem("", "is a symbolic link, which is not followed", errno.ELOOP)
    return Problem("", found.reason, found.errno)


def _is_gone(path: str, fd: int) -> bool:
    """Whether ``path`` is no longer the open directory: retention took it away under our eyes."""
    try:
        return not os.path.samestat(os.lstat(path), os.fstat(fd))
    except OSError:
        return True


def _verify_open(
    directory: Directory, keep_open: Collection[str], unhashed: Collection[str]
) -> Verdict:
    manifest, problem = _read_manifest(directory)
    if manifest is None or problem is not None:
        return Verdict(directory.path, None, (problem,) if problem else ())
    problems = _wrong_place(directory, manifest) + _unlisted(directory, manifest)
    hold = set(keep_open) | {MODEL_FILE, OPTIMIZER_FILE}
    jobs = [
        partial(
            _check_file,
            directory,
            name,
            manifest.files[name],
            hold=name in hold,
            hashed=name not in unhashed,
        )
        for name in sorted(manifest.files)
    ]
    size_bytes = sum(e.size for name, e in manifest.files.items() if name not in unhashed)
    checked = dict(
        zip(sorted(manifest.files), side_by_side(jobs, size_bytes=size_bytes), strict=True)
    )
    problems += [c.problem for c in checked.values() if c.problem is not None]
    contents = {name: c.content for name, c in checked.items() if c.content is not None}
    held = {name: c.fd for name, c in checked.items() if c.fd >= 0}
    if not problems:
        problems = _check_sense(manifest, contents, held)
    kept = {} if problems else {name: fd for name, fd in held.items() if name in keep_open}
    for name in held.keys() - kept.keys():
        os.close(held[name])
    return Verdict(directory.path, manifest, tuple(problems), contents, kept)


def _read_manifest(directory: Directory) -> tuple[Manifest | None, Problem | None]:
    try:
        data = read_bounded(directory, MANIFEST, limit_bytes=MAX_MANIFEST_BYTES)
    except Unreadable as error:
        return None, Problem(MANIFEST, error.reason, error.errno)
    try:
        return decode_manifest(data), None
    except ValueError as error:
        return None, Problem(MANIFEST, str(error) if data else "is empty")


def _wrong_place(directory: Directory, manifest: Manifest) -> list[Problem]:
    """A step directory is of its step; what stands in ``models/<id>/<version>`` is that release."""
    model, version = directory.path.split(os.sep)[-2:] if os.sep in directory.path else ("", "")
    above = os.path.basename(os.path.dirname(os.path.dirname(directory.path)))
    if isinstance(manifest, ReleaseManifest) and above == "models":
        is_of = (manifest.model_id, manifest.version)
        # A name with a dot first is one that a release has while it is made.
        if is_of == (model, version) or version.startswith("."):
            return []
        reason = f"is of {'/'.join(is_of)}, in the directory of {model}/{version}"
        return [Problem(MANIFEST, reason)]
    step = parse_step_name(os.path.basename(directory.path))
    if step is None or (isinstance(manifest, CheckpointManifest) and manifest.step == step):
        return []
    what = f"step {manifest.step}" if isinstance(manifest, CheckpointManifest) else "a release"
    return [Problem(MANIFEST, f"is of {what}, in the directory of step {step}")]


def _unlisted(directory: Directory, manifest: Manifest) -> list[Problem]:
    """Files and directories that the manifest does not know."""
    listed = set(manifest.files) | {MANIFEST}
    inside = {name.split("/")[0] for name in manifest.files if "/" in name}
    found: list[str] = []
    try:
        names = os.listdir(directory.fd)
    except OSError as error:
        return [Problem("", unreadable(error).reason, error.errno or 0)]
    for name in names:
        if name not in inside:
            found.append(name)
            continue
        with suppress(OSError):  # the files that should be in it will say what is wrong
            fd = os.open(name, OPEN_DIRECTORY, dir_fd=directory.fd)
            try:
                found += [f"{name}/{below}" for below in os.listdir(fd)]
            finally:
                os.close(fd)
    return [Problem(ascii(n)[1:-1], "is not in the manifest") for n in sorted(set(found) - listed)]


def _check_file(
    directory: Directory, name: str, entry: FileEntry, *, hold: bool, hashed: bool
) -> _Checked:
    """Compare one file's type, size and sha256 with its entry."""
    try:
        fd, size = open_regular(directory, name)
    except Unreadable as error:
        return _Checked(Problem(name, error.reason, error.errno))
    checked = _Checked()
    try:
        checked = _compare(fd, size, name, entry, hold=hold, hashed=hashed)
    except Unreadable as error:
        checked = _Checked(Problem(name, error.reason, error.errno))
    except OSError as error:
        found = unreadable(error)
        checked = _Checked(Problem(name, found.reason, found.errno))
    finally:
        if checked.fd < 0:
            os.close(fd)
    return checked


def _compare(
    fd: int, size: int, name: str, entry: FileEntry, *, hold: bool, hashed: bool
) -> _Checked:
    if size != entry.size:
        return _Checked(Problem(name, f"is {size} bytes long, the manifest says {entry.size}"))
    content = None
    if not hashed:
        return _Checked(None, None, fd if hold else -1)
    if (name in SMALL_FILES or name.startswith("heads/")) and size <= MAX_SMALL_BYTES:
        content = read_exactly(fd, size)
        digest = hashlib.sha256(content).hexdigest()
    else:
        digest = hash_descriptor(fd, size_bytes=size)
    if digest != entry.sha256:
        return _Checked(Problem(name, f"sha256 is {digest}, the manifest says {entry.sha256}"))
    return _Checked(None, content, fd if hold else -1)


def _check_sense(
    manifest: Manifest, contents: Mapping[str, bytes], held: Mapping[str, int]
) -> list[Problem]:
    """What no hash can tell: that the files of a directory belong together."""
    problems = _check_tokenizer(manifest, contents)
    try:
        read_metadata(held[MODEL_FILE])
    except ValueError as error:
        problems.append(Problem(MODEL_FILE, str(error)))
    if not isinstance(manifest, CheckpointManifest):
        return problems
    try:
        state = decode_state(contents.get(STATE_FILE, b""))
        if state.step != manifest.step:
            problems.append(
                Problem(STATE_FILE, f"is of step {state.step}, the manifest of {manifest.step}")
            )
    except ValueError as error:
        problems.append(Problem(STATE_FILE, str(error)))
    try:
        metadata = read_metadata(held[OPTIMIZER_FILE])
        if metadata.get("format") != FORMAT_NAME or not metadata.get("optimizer"):
            problems.append(Problem(OPTIMIZER_FILE, "its metadata does not name an optimizer"))
        elif metadata.get("step") != str(manifest.step):
            reason = f"is of step {metadata.get('step')}, the manifest of {manifest.step}"
            problems.append(Problem(OPTIMIZER_FILE, reason))
    except ValueError as error:
        problems.append(Problem(OPTIMIZER_FILE, str(error)))
    return problems


def _check_tokenizer(manifest: Manifest, contents: Mapping[str, bytes]) -> list[Problem]:
    try:
        config = msgspec.json.decode(contents.get(CONFIG_FILE, b""), type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        return [Problem(CONFIG_FILE, f"is not a JSON object: {error}")]
    by_file = config.get("tl_tokenizer") == msgspec.Raw(b'"file"')
    if by_file and TOKENIZER_FILE not in manifest.files:
        return [Problem(TOKENIZER_FILE, f"is not there, but {CONFIG_FILE} says that it is needed")]
    return []
