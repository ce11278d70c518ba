"""Turning a checkpoint into ``models/<model_id>/<version>``, so that it is there whole or not.

The protocol is that of a save (see ``writer``), in one directory ``models/<model_id>``:

1. the gate (see ``gate``), then the directories above, durably, and a lock on them;
2. every file into ``.<version>.tmp/``, made read-only and fsynced; the weights are hashed and
   looked at while they are copied, and must be what the checkpoint's manifest says;
3. ``MANIFEST.json`` last, fsynced; the directories are made read-only and fsynced;
4. rename to ``<version>``, fsync of ``models/<model_id>``: only now is it released.

The staging name begins with a dot, which no version may, so a try that was killed never blocks the
next, which removes what it left. Whatever goes wrong before the end is undone. The run is only
read: the files are held open, so that a trainer's retention cannot take them away in between.
"""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field

from fault_injection.points import point
from tinyllm.card import CARD_FILE, TensorError, with_quantisation
from tinyllm.conversion import Conversion, pieces, plan
from tinyllm.durable import (
    Bytes,
    Directory,
    created_file,
    doing,
    make_directory,
    make_durable_directories,
    open_directory,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from tinyllm.errors import LockHeld, ReleaseRefused, StorageFailed
from tinyllm.gate import Examined, Request, examine, existing
from tinyllm.hashing import INLINE_BYTES, HashBeside, hash_descriptor
from tinyllm.manifest import (
    FORMAT,
    MODEL_FILE,
    OPTIMIZER_FILE,
    FileEntry,
    ReleaseManifest,
    encode_manifest,
)
from tinyllm.pastcache import write_stream
from tinyllm.paths import MANIFEST, model_dir
from tinyllm.retention import remove_tree
from tinyllm.tensor_files import read_table
from tinyllm.tensors import PIECE_BYTES
from tinyllm.weights import WeightsReader, WeightsUnusable, nonfinite_problems

_READ_ONLY_FILE = 0o444
_READ_ONLY_DIRECTORY = 0o555
_SUBDIRECTORIES = ("evals", "heads")
_STAGING = re.compile(r"\.[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.tmp(\.[0-9]{1,6})?")

Tell = Callable[[str, str], None]


@dataclass(frozen=True, slots=True)
class Released:
    """What was released: the directory, its manifest, and what int4 did to each tensor."""

    path: str
    step: int
    manifest: ReleaseManifest
    errors: tuple[TensorError, ...]


@dataclass(slots=True)
class Attempt:
    """One release under way. ``models`` is the open ``models/<model_id>``.

    ``identity`` is the staging directory's device and inode, under whichever name it is.
    """

    request: Request
    found: Examined
    models: Directory
    staging: str
    tell: Tell
    identity: tuple[int, int] | None = None
    entries: dict[str, FileEntry] = field(default_factory=dict)
    errors: tuple[TensorError, ...] = ()


def release(request: Request, *, tell: Tell) -> Released:
    """Release durably. ReleaseRefused lists everything that the gate found wrong; nothing is left.

    ``tell(path, reason)`` hears of what is no error. StorageFailed names the file; LockHeld when
    another release of the same model is under way.
    """
    with ExitStack() as stack:
        found = examine(request, stack, thorough=False)
        if found.problems:
            raise refusal(request, found.problems)
        point("release.gate-passed")
        try:
            return _release(request, found, tell)
        except WeightsUnusable as error:
            raise refusal(request, [str(error)]) from error


def refusal(request: Request, known: list[str]) -> ReleaseRefused:
    """The refusal with everything that is wrong, the values of the weights included."""
    with ExitStack() as stack:
        problems = examine(request, stack, thorough=True).problems or known
    lines = "".join(f"\n  - {problem}" for problem in problems)
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    names = (request.model_id, request.version)  # which may be anything
    name = " ".join(text if text.isprintable() else ascii(text) for text in names)
    return ReleaseRefused(f"{name} is not released, {count}:{lines}\nnothing was written")


def _release(request: Request, found: Examined, tell: Tell) -> Released:
    target = model_dir(request.artifacts, request.model_id, request.version)
    missing = [path for path in (target.parent, target.parent.parent) if not path.exists()]
    released = False
    try:
        make_durable_directories(str(target.parent), unsupported=tell)
        point("release.directories-made")
        with open_directory(str(target.parent)) as models, _locked(models):
            point("release.locked")
            if there := existing(target):
                raise refusal(request, there)
            staging = _free_staging(models, request.version, tell)
            attempt = Attempt(request, found, models, staging, tell)
            _write(attempt)
            released = True
    finally:
        if not released:
            for path in missing:
                with suppress(OSError):  # somebody else's release may be in it by now
                    os.rmdir(path)
    assert found.step is not None
    return Released(str(target), found.step, _manifest(attempt), attempt.errors)


@contextmanager
def _locked(models: Directory) -> Iterator[None]:
    """One release of a model at a time. The lock is on the directory, and dies with its holder."""
    try:
        fcntl.flock(models.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise StorageFailed(models.path, f"cannot be locked: {error.strerror}") from error
        raise LockHeld(
            f"{models.path}: another release of this model is under way; wait for it to end"
        ) from error
    yield


def _free_staging(models: Directory, version: str, tell: Tell) -> str:
    """A staging name that is free. What killed tries left is removed: we have the lock."""
    with doing("list", models.path):
        names = set(os.listdir(models.fd))
    for name in sorted(names):
        if not _STAGING.fullmatch(name):
            continue
        try:
            _remove(models, name)
        except StorageFailed as error:
            tell(models.at(name), f"was left by an earlier try and cannot be removed: {error}")
            continue
        names.discard(name)
        point("release.leftover-removed")
    staging, number = f".{version}.tmp", 1
    while staging in names:
        staging, number = f".{version}.tmp.{number}", number + 1
    return staging


def _write(attempt: Attempt) -> None:
    """Steps 2 to 4."""
    models, version = attempt.models, attempt.request.version
    try:
        make_directory(models, attempt.staging)
        point("release.staging-made")
        with open_directory(attempt.staging, parent=models) as stage:
            attempt.identity = _identity(os.fstat(stage.fd))
            _fill(attempt, stage)
        _publish(attempt, version)
        sync_directory(models, unsupported=attempt.tell)
        point("release.durable")
    except BaseException:
        _abandon(attempt, version)
        raise


def _fill(attempt: Attempt, stage: Directory) -> None:
    """Steps 2 and 3."""
    files = dict(attempt.found.files)
    with _hashing_optimizer(attempt.found) as optimizer:
        _write_weights(attempt, stage)
        if optimizer() != attempt.found.entries[OPTIMIZER_FILE].sha256:
            raise WeightsUnusable(f"{OPTIMIZER_FILE} of the checkpoint does not verify")
    if attempt.errors:
        group = attempt.request.group_size
        files[CARD_FILE] = with_quantisation(files[CARD_FILE], attempt.errors, group_size=group)
    for name in sorted(files):
        if "/" not in name:
            attempt.entries[name] = _write_small(stage, name, files[name])
    for directory in _SUBDIRECTORIES:
        inside = {
            name.removeprefix(f"{directory}/"): data
            for name, data in sorted(files.items())
            if name.startswith(f"{directory}/")
        }
        if inside:
            _write_subdirectory(attempt, stage, directory, inside)
    _write_manifest(attempt, stage)
    _make_read_only(stage)
    sync_directory(stage, unsupported=attempt.tell)
    point("release.staging-synced")


@contextmanager
def _hashing_optimizer(found: Examined) -> Iterator[Callable[[], str]]:
    """The sha256 of the optimizer's file, which is not released but must verify, found beside."""
    size = found.entries[OPTIMIZER_FILE].size
    if size <= INLINE_BYTES:
        yield lambda: hash_descriptor(found.optimizer, size_bytes=size)
        return
    pool = ThreadPoolExecutor(max_workers=1)
    try:
        future: Future[str] = pool.submit(hash_descriptor, found.optimizer, size_bytes=size)
        yield future.result
    finally:
        pool.shutdown(cancel_futures=True)


def _write_weights(attempt: Attempt, stage: Directory) -> None:
    """The weights, from bytes that are hashed as they are read."""
    found, request = attempt.found, attempt.request
    assert found.layout is not None
    source = os.path.join(found.step_dir, MODEL_FILE)
    conversion = plan(found.layout, dtype=request.dtype, group_size=request.group_size)
    with WeightsReader(found.weights, found.layout, path=source) as reader:
        content = pieces(conversion, reader)
        if request.dtype == "f32":
            batches = _gathered(content)
            entry = _stream(stage, batches, conversion.size_bytes, digest=reader.hexdigest)
        else:
            entry = _stream_hashed(stage, content, conversion.size_bytes)
        digest = reader.hexdigest()
    if reader.nonfinite:
        raise WeightsUnusable("; ".join(nonfinite_problems(reader)))
    if digest != found.entries[MODEL_FILE].sha256:
        raise WeightsUnusable(
            f"{source}: sha256 of what was copied is {digest}, the manifest says "
            f"{found.entries[MODEL_FILE].sha256}"
        )
    _check_table(stage, conversion)
    attempt.entries[MODEL_FILE] = entry
    attempt.errors = tuple(conversion.errors)


def _stream_hashed(stage: Directory, content: Iterable[Bytes], size_bytes: int) -> FileEntry:
    with HashBeside(size_bytes=size_bytes, lag=4) as beside:

        def hashed() -> Iterator[Bytes]:
            for batch in _gathered(content):
                beside.update([batch])
                yield batch

        return _stream(stage, hashed(), size_bytes, digest=beside.hexdigest)


def _stream(
    stage: Directory, batches: Iterable[Bytes], size_bytes: int, *, digest: Callable[[], str]
) -> FileEntry:
    """Write the weights, a call a batch."""
    path = stage.at(MODEL_FILE)
    with created_file(stage, MODEL_FILE) as fd:
        calls = ([batch] for batch in batches)
        done = write_stream(fd, calls, size_bytes=size_bytes, path=path)
        assert done == size_bytes, f"{done} bytes were written of {size_bytes}"
        point("release.weights-written")
        _finish(fd, path)
        point("release.weights-synced")
        return FileEntry(sha256=digest(), size=size_bytes)


def _gathered(content: Iterable[Bytes]) -> Iterator[Bytes]:
    """Small pieces copied together until they are worth a call; large ones as they are."""
    gathered = bytearray()
    for piece in content:
        if not gathered and len(piece) >= PIECE_BYTES // 4:
            yield piece
            continue
        gathered += piece
        if len(gathered) >= PIECE_BYTES:
            yield memoryview(gathered)
            gathered = bytearray()
    if gathered:
        yield memoryview(gathered)


def _check_table(stage: Directory, conversion: Conversion) -> None:
    """Before anything is published: the format's own library reads what was written."""
    path = stage.at(MODEL_FILE)
    with doing("open", path):
        fd = os.open(MODEL_FILE, os.O_RDONLY | os.O_CLOEXEC, dir_fd=stage.fd)
    try:
        table = read_table(fd)
    except ValueError as error:
        raise StorageFailed(path, f"does not read back: {error}") from error
    finally:
        os.close(fd)
    wrote = {name: (dtype, shape) for name, dtype, shape in conversion.tensors}
    if {name: (info.dtype, info.shape) for name, info in table.items()} != wrote:
        raise StorageFailed(path, "does not read back as the tensors that were written")


def _write_small(directory: Directory, name: str, data: bytes) -> FileEntry:
    path = directory.at(name)
    with HashBeside(size_bytes=len(data)) as beside, created_file(directory, name) as fd:
        beside.update([data])
        write_all(fd, [data], path=path)
        point("release.file-written")
        _finish(fd, path)
        point("release.file-synced")
        return FileEntry(sha256=beside.hexdigest(), size=len(data))


def _finish(fd: int, path: str) -> None:
    """Read-only and durable; in this order, so that the mode is durable too."""
    with doing("make it read-only", path):
        os.fchmod(fd, _READ_ONLY_FILE)
    sync_file(fd, path=path)


def _write_subdirectory(
    attempt: Attempt, stage: Directory, name: str, files: dict[str, bytes]
) -> None:
    make_directory(stage, name)
    with open_directory(name, parent=stage) as directory:
        for file, data in files.items():
            attempt.entries[f"{name}/{file}"] = _write_small(directory, file, data)
        _make_read_only(directory)
        sync_directory(directory, unsupported=attempt.tell)
        point("release.subdirectory-synced")


def _manifest(attempt: Attempt) -> ReleaseManifest:
    return ReleaseManifest(
        format=FORMAT,
        model_id=attempt.request.model_id,
        version=attempt.request.version,
        files=dict(attempt.entries),
    )


def _write_manifest(attempt: Attempt, stage: Directory) -> None:
    """Step 3: after everything that it vouches for is on the disk."""
    data = encode_manifest(_manifest(attempt))
    with created_file(stage, MANIFEST) as fd:
        write_all(fd, [data], path=stage.at(MANIFEST))
        point("release.manifest-written")
        _finish(fd, stage.at(MANIFEST))
        point("release.manifest-synced")


def _make_read_only(directory: Directory) -> None:
    with doing("make it read-only", directory.path):
        os.fchmod(directory.fd, _READ_ONLY_DIRECTORY)


def _publish(attempt: Attempt, version: str) -> None:
    """Step 4. An empty directory under the name would be replaced without a word: look again."""
    target = attempt.models.at(version)
    if os.path.lexists(target):
        raise StorageFailed(target, "appeared while the release was written", errno=errno.EEXIST)
    rename(attempt.models, attempt.staging, version)
    point("release.renamed")


def _abandon(attempt: Attempt, version: str) -> None:
    """After an error: as it was before, as far as the disk still obeys.

    A directory that has its name already but may not be durable is taken back, or it would block
    the next try. The disk is asked whether it has: a signal may come right after the rename.
    """
    with suppress(StorageFailed, OSError):
        if _identity(os.lstat(attempt.models.at(version))) == attempt.identity:
            rename(attempt.models, version, attempt.staging)
    with suppress(StorageFailed):
        _remove(attempt.models, attempt.staging)


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _remove(models: Directory, name: str) -> None:
    """Remove a staging directory, whose directories may have been made read-only already."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    with suppress(OSError):
        fd = os.open(name, flags, dir_fd=models.fd)
        try:
            os.fchmod(fd, 0o755)
            for below in _SUBDIRECTORIES:
                with suppress(FileNotFoundError, NotADirectoryError):
                    inside = os.open(below, flags, dir_fd=fd)
                    try:
                        os.fchmod(inside, 0o755)
                    finally:
                        os.close(inside)
        finally:
            os.close(fd)
    remove_tree(models, name)
