"""How ext4, xfs and btrfs are made and mounted here, and how their images are copied.

An image is a sparse file: what was never written is a hole and takes no memory, and a copy keeps
the holes. mkfs runs once for a volume; each cut starts from a copy of an image, which takes 0.1 ms
(ext4) to 0.5 ms (xfs, btrfs) while the tree in it is small.

Not covered: other options of mkfs than those below.
"""

import errno
import os
import shutil
import subprocess
from dataclasses import dataclass

_MKFS_TIMEOUT_S = 60.0
_SBIN = os.pathsep.join(("/usr/local/sbin", "/usr/sbin", "/sbin"))
_PIECE_BYTES = 64 << 10


class VolumeError(Exception):
    """A real file system could not be made, mounted, cut or unmounted; the text says which."""


@dataclass(frozen=True, slots=True)
class Kind:
    """How one file system is made and mounted. ``options``: what a caller may ask for."""

    mkfs: tuple[str, ...]
    package: str
    size_bytes: int
    mount: tuple[str, ...]
    options: frozenset[str]
    shuts_down: bool


_MIB = 1 << 20
_EXT4_EXTENDED = ("-E", "lazy_itable_init=1,lazy_journal_init=1,nodiscard")
_EXT4_OPTIONS = ("data=ordered", "data=writeback", "data=journal", "nodelalloc", "noauto_da_alloc")
KINDS = {
    # Blocks of 4 KiB as on every real disk; small images get 1 KiB ones otherwise.
    "ext4": Kind(
        mkfs=("mkfs.ext4", "-q", "-F", "-b", "4096", "-J", "size=16", "-m", "0", *_EXT4_EXTENDED),
        package="e2fsprogs",
        size_bytes=256 * _MIB,
        mount=("noinit_itable", "commit=300"),
        options=frozenset(_EXT4_OPTIONS),
        shuts_down=True,
    ),
    # nouuid: the copies of one image have one UUID, and several may be mounted at once.
    "xfs": Kind(
        mkfs=("mkfs.xfs", "-q", "-K", "-f"),
        package="xfsprogs",
        size_bytes=320 * _MIB,
        mount=("nouuid",),
        options=frozenset(),
        shuts_down=True,
    ),
    "btrfs": Kind(
        mkfs=("mkfs.btrfs", "-q", "-K", "-f", "-d", "single", "-m", "single"),
        package="btrfs-progs",
        size_bytes=256 * _MIB,
        mount=("commit=300",),
        options=frozenset(),
        shuts_down=False,
    ),
}
FILE_SYSTEMS = tuple(KINDS)


def mkfs_program(file_system: str) -> str | None:
    """The path of the file system's mkfs, None when it is not installed."""
    path = os.environ.get("PATH", os.defpath) + os.pathsep + _SBIN
    return shutil.which(KINDS[file_system].mkfs[0], path=path)


def mkfs_missing(file_system: str) -> str:
    """What to say when it is not."""
    return f"{KINDS[file_system].mkfs[0]} not found; install {KINDS[file_system].package}"


def make_image(file_system: str, path: str, *, size_bytes: int = 0) -> None:
    """Make a new file ``path`` that holds an empty file system. 0: the kind's own size."""
    kind = KINDS[file_system]
    program = mkfs_program(file_system)
    if program is None:
        raise VolumeError(mkfs_missing(file_system))
    dense = path + ".dense"
    with open(dense, "xb") as file:
        file.truncate(size_bytes or kind.size_bytes)
    done = subprocess.run(
        [program, *kind.mkfs[1:], dense],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=_MKFS_TIMEOUT_S,
        check=False,
    )
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
        raise VolumeError(f"{kind.mkfs[0]} failed with {done.returncode} and said: {said[0]}")
    # mkfs.xfs writes 64 MiB of zeros for its log; as holes they cost nothing to copy.
    copy_sparse(dense, path, dig_holes=True)
    os.unlink(dense)


def copy_sparse(source: str, target: str, *, dig_holes: bool = False) -> None:
    """Copy a file, its holes as holes. ``dig_holes``: 64 KiB pieces of zeros become holes too."""
    with open(source, "rb", buffering=0) as reader, open(target, "wb", buffering=0) as writer:
        from_fd, to_fd = reader.fileno(), writer.fileno()
        size = os.fstat(from_fd).st_size
        os.ftruncate(to_fd, size)
        at = 0
        while at < size:
            try:
                at = os.lseek(from_fd, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno == errno.ENXIO:  # only a hole is left
                    return
                raise
            end = os.lseek(from_fd, at, os.SEEK_HOLE)
            os.lseek(to_fd, at, os.SEEK_SET)
            while at < end:
                if dig_holes:
                    data = os.pread(from_fd, min(_PIECE_BYTES, end - at), at)
                    if data.strip(b"\0"):
                        os.pwrite(to_fd, data, at)
                    at += len(data)
                else:
                    at += os.sendfile(to_fd, from_fd, at, end - at)
