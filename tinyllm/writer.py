"""Saving a checkpoint so that a crash at any instant leaves the previous one or the new one.

The protocol, one function a step:

1. every file into ``step-<nnnnnn>.tmp/``, each fsynced;
2. ``MANIFEST.json`` last, fsynced, then the directory;
3. rename to ``step-<nnnnnn>``, and fsync ``ckpt/``: a file system may reorder two renames, and
   LATEST must never name a directory that is not there;
4. ``LATEST.tmp``, fsynced, renamed to ``LATEST``, and fsync ``ckpt/``;
5. announce: only now is it a promise;
6. retention (see ``retention``).

Bytes are hashed beside their writing, in one pass, and tensors are written from their own memory.
An error anywhere ends the save: what was begun is removed where that works, and no earlier
checkpoint is touched.
"""

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from fault_injection.points import point
from tinyllm.durable import (
    Bytes,
    Directory,
    created_file,
    make_directory,
    open_directory,
    rename,
    sync_directory,
    sync_file,
    write_all,
)
from tinyllm.errors import StorageFailed
from tinyllm.hashing import INLINE_BYTES, HashAhead, HashBeside, Hashing
from tinyllm.manifest import (
    CONFIG_FILE,
    GENERATION_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    TOKENIZER_FILE,
    FileEntry,
    checkpoint_manifest,
    encode_manifest,
)
from tinyllm.pastcache import write_stream
from tinyllm.paths import LATEST, LATEST_TMP, MANIFEST, aside_name, step_name
from tinyllm.reader import list_directory
from tinyllm.retention import Line, remove_tree, retire
from tinyllm.state import TrainerState, encode_state
from tinyllm.tensor_files import FORMAT_NAME
from tinyllm.tensors import PIECE_BYTES, Layout, lay_out, pieces

if TYPE_CHECKING:
    from torch import Tensor

# Copies of tensors that are not contiguous may wait for their hash in this many batches.
_LAG_BATCHES = 2
_MAX_PIECES = 1024


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What a checkpoint holds: the state after ``step`` optimizer steps.

    ``parameters`` and ``optimizer`` are (name, F32 tensor) pairs; they are read while the save
    runs and must not change meanwhile. ``config``, ``tokenizer`` and ``generation_config`` are the
    files' bytes.
    """

    step: int
    parameters: Sequence[tuple[str, "Tensor"]]
    optimizer: Sequence[tuple[str, "Tensor"]]
    optimizer_name: str
    config: bytes
    tokenizer: bytes | None
    generation_config: bytes | None
    state: TrainerState


@dataclass(slots=True)
class Save:
    """One save under way: the open ``ckpt`` directory, the step directory's ``name``, the names
    that are in ``ckpt`` (kept up to date, so that it is listed once), and the process's ``line``.

    ``aside`` is where an earlier directory of that name was moved to, "" when there was none.
    """

    ckpt: Directory
    name: str
    names: set[str]
    line: Line
    aside: str = ""

    @property
    def staging(self) -> str:
        """The name under which the files are written."""
        return f"{self.name}.tmp"


def save_checkpoint(
    ckpt_dir: Path,
    snapshot: Snapshot,
    *,
    keep_ckpts: int | None,
    announce: Callable[[int], None],
    line: Line,
) -> None:
    """Save ``snapshot`` durably below the existing ``ckpt_dir``, announce it, then clean up.

    ``announce(step)`` is called once, when the checkpoint would survive. ``keep_ckpts`` (at least
    1; None keeps all) is how many that verify remain. ``line`` carries what this process knows
    from one save to the next. StorageFailed names the file that could not be written.
    """
    if snapshot.state.step != snapshot.step:
        raise ValueError(f"state of step {snapshot.state.step} in the snapshot of {snapshot.step}")
    if keep_ckpts is not None and keep_ckpts < 1:
        raise ValueError(f"keep_ckpts is {keep_ckpts}; at least one checkpoint must remain")
    with open_directory(str(ckpt_dir)) as ckpt:
        names = set(list_directory(ckpt).names)
        save = Save(ckpt=ckpt, name=step_name(snapshot.step), names=names, line=line)
        try:
            prepare_staging(save)
            fill_staging(save, snapshot)
            make_way(save)
            publish_step(save)
        except BaseException:
            abandon(save)
            raise
        sync_step_name(save)
        publish_pointer(save, save.name)
        announce(snapshot.step)
        point("save.announced")
        line.saved(snapshot.step)
        retire(ckpt, names, newest=snapshot.step, keep=keep_ckpts, line=line)


def prepare_staging(save: Save) -> None:
    """Before step 1: an empty staging directory. One left by a crash is moved out of its name."""
    if save.staging in save.names:
        move_aside(save, save.staging)
        point("save.stale-staging-moved-aside")
    make_directory(save.ckpt, save.staging)
    save.names.add(save.staging)
    point("save.staging-made")


def fill_staging(save: Save, snapshot: Snapshot) -> None:
    """Steps 1 and 2."""
    with open_directory(save.staging, parent=save.ckpt) as stage:
        files = write_files(stage, snapshot)
        write_manifest(stage, snapshot.step, files)
        sync_staging(stage, save.line)


def write_files(stage: Directory, snapshot: Snapshot) -> dict[str, FileEntry]:
    """Step 1: every file, each fsynced. Returns their manifest entries."""
    metadata = {
        "format": FORMAT_NAME,
        "optimizer": snapshot.optimizer_name,
        "step": str(snapshot.step),
    }
    layouts = {
        MODEL_FILE: laid_out(stage, MODEL_FILE, snapshot.parameters, metadata={"format": "pt"}),
        OPTIMIZER_FILE: laid_out(stage, OPTIMIZER_FILE, snapshot.optimizer, metadata=metadata),
    }
    files = write_tensors(stage, layouts)
    small = {
        CONFIG_FILE: snapshot.config,
        TOKENIZER_FILE: snapshot.tokenizer,
        GENERATION_FILE: snapshot.generation_config,
        STATE_FILE: encode_state(snapshot.state),
    }
    for file, data in small.items():
        if data is not None:
            with HashBeside(size_bytes=len(data)) as hashing:
                write_file(stage, file, [data], size_bytes=len(data), hashing=hashing)
                files[file] = FileEntry(sha256=hashing.hexdigest(), size=len(data))
    return files


def laid_out(
    stage: Directory,
    file: str,
    tensors: Sequence[tuple[str, "Tensor"]],
    *,
    metadata: dict[str, str],
) -> Layout:
    """What ``file`` will hold."""
    try:
        return lay_out(tensors, metadata=metadata)
    except ValueError as error:
        raise StorageFailed(stage.at(file), f"cannot be written: {error}") from error


def write_tensors(stage: Directory, layouts: dict[str, Layout]) -> dict[str, FileEntry]:
    """The safetensors files, one after the other, streamed from the tensors' own memory.

    Their hashes all begin with the first file: later, they would be what the save waits for.
    """
    with ExitStack() as stack:
        # Entered before the hashes, so that it is left after they have given up.
        pool = stack.enter_context(ThreadPoolExecutor(max_workers=len(layouts)))
        hashings = {
            file: stack.enter_context(hashing_of(layout, pool=pool))
            for file, layout in layouts.items()
        }
        for file, layout in layouts.items():
            write_file(
                stage,
                file,
                pieces(layout),
                size_bytes=layout.size_bytes,
                hashing=hashings[file],
            )
        return {
            file: FileEntry(sha256=hashings[file].hexdigest(), size=layout.size_bytes)
            for file, layout in layouts.items()
        }


def hashing_of(layout: Layout, *, pool: ThreadPoolExecutor) -> AbstractContextManager[Hashing]:
    """Ahead of the writing where that needs no second copy of a tensor and is worth a thread."""
    if layout.copies:
        return HashBeside(size_bytes=layout.size_bytes, lag=_LAG_BATCHES)
    if layout.size_bytes <= INLINE_BYTES:
        return HashBeside(size_bytes=layout.size_bytes)
    return HashAhead(pieces(layout), pool=pool)


def write_file(
    stage: Directory, file: str, content: Iterable[Bytes], *, size_bytes: int, hashing: Hashing
) -> None:
    """Write and fsync one file of ``size_bytes``, telling ``hashing`` of its bytes."""
    path = stage.at(file)
    with created_file(stage, file) as fd:
        write_stream(fd, _told(_batches(content), hashing), size_bytes=size_bytes, path=path)
        point("save.file-written")
        sync_file(fd, path=path)
        point("save.file-synced")


def write_manifest(stage: Directory, step: int, files: dict[str, FileEntry]) -> None:
    """Step 2: the manifest, after everything it vouches for is on the disk."""
    data = encode_manifest(checkpoint_manifest(step=step, files=files))
    with created_file(stage, MANIFEST) as fd:
        write_all(fd, [data], path=stage.at(MANIFEST))
        point("save.manifest-written")
        sync_file(fd, path=stage.at(MANIFEST))
        point("save.manifest-synced")


def sync_staging(stage: Directory, line: Line) -> None:
    """Step 2, its end: the names in the staging directory."""
    sync_directory(stage, unsupported=line.report)
    point("save.staging-synced")


def make_way(save: Save) -> None:
    """Before step 3: an earlier directory of this name leaves it.

    It failed to verify, or was never announced, or belongs to a line that was rewound. In the last
    case LATEST may name it, and is first pointed at the checkpoint that this process went on from.
    """
    if save.name not in save.names:
        return
    if save.line.pointer == save.name and save.line.base:
        publish_pointer(save, save.line.base)
        point("rewind.pointer-moved-back")
    save.aside = move_aside(save, save.name)
    point("save.old-moved-aside")


def move_aside(save: Save, name: str) -> str:
    """Give ``name`` a temporary name, for step 6 to remove. Returns it."""
    aside = aside_name(name, save.names)
    rename(save.ckpt, name, aside)
    save.names.discard(name)
    save.names.add(aside)
    return aside


def publish_step(save: Save) -> None:
    """Step 3: the directory gets its name."""
    rename(save.ckpt, save.staging, save.name)
    save.names.discard(save.staging)
    save.names.add(save.name)
    point("save.step-renamed")


def sync_step_name(save: Save) -> None:
    """Step 3, its end: that name is durable before LATEST may speak of it."""
    sync_directory(save.ckpt, unsupported=save.line.report)
    point("save.step-durable")


def publish_pointer(save: Save, name: str) -> None:
    """Step 4: LATEST names ``name``, durably."""
    write_pointer(save, name)
    replace_pointer(save)
    sync_pointer(save)
    save.line.pointer = name


def write_pointer(save: Save, name: str) -> None:
    """Step 4: ``LATEST.tmp``, synced. One left by a crash is removed: it was never true."""
    if LATEST_TMP in save.names:
        remove_tree(save.ckpt, LATEST_TMP)
        save.names.discard(LATEST_TMP)
        point("save.stale-pointer-removed")
    path = save.ckpt.at(LATEST_TMP)
    with created_file(save.ckpt, LATEST_TMP) as fd:
        save.names.add(LATEST_TMP)
        write_all(fd, [f"{name}\n".encode()], path=path)
        point("save.pointer-written")
        sync_file(fd, path=path)
        point("save.pointer-synced")


def replace_pointer(save: Save) -> None:
    """Step 4: the rename. A directory that sits in LATEST's place is moved out of it, and stays."""
    try:
        rename(save.ckpt, LATEST_TMP, LATEST)
    except StorageFailed as error:
        if error.errno not in (errno.EISDIR, errno.ENOTEMPTY, errno.EEXIST):
            raise
        number = 1
        while (other := f"{LATEST}.not-a-file-{number}") in save.names:
            number += 1
        rename(save.ckpt, LATEST, other)
        save.names.add(other)
        save.line.report(LATEST, f"was not a file: moved to {other}")
        rename(save.ckpt, LATEST_TMP, LATEST)
    save.names.discard(LATEST_TMP)
    save.names.add(LATEST)
    point("save.pointer-renamed")


def sync_pointer(save: Save) -> None:
    """Step 4, its end: from here on the new checkpoint is the one that is found."""
    sync_directory(save.ckpt, unsupported=save.line.report)
    point("save.pointer-durable")


def abandon(save: Save) -> None:
    """After an error before step 3: as it was before, as far as the disk still obeys."""
    with suppress(StorageFailed):
        if save.aside and save.name not in save.names:
            rename(save.ckpt, save.aside, save.name)
    with suppress(StorageFailed):
        if save.staging in save.names:
            remove_tree(save.ckpt, save.staging)


def _told(batches: Iterable[list[Bytes]], hashing: Hashing) -> Iterator[list[Bytes]]:
    """The batches, each told to ``hashing`` before it is written."""
    for batch in batches:
        hashing.update(batch)
        yield batch


def _batches(content: Iterable[Bytes]) -> Iterator[list[Bytes]]:
    """Pieces put together until a batch is worth a system call; a small file is one batch."""
    batch: list[Bytes] = []
    size = 0
    for piece in content:
        batch.append(piece)
        size += len(piece)
        if size >= PIECE_BYTES or len(batch) >= _MAX_PIECES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch
