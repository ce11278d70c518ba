"""Random small traces for property tests: a few names, two directories, every kind of operation."""

from hypothesis import strategies as st

from tests.fault_injection.traces import Build

NAMES = ("a", "b", "d/a", "d/b", "e/a")
_CONTENT = (b"x", b"y" * 700, b"z" * 5000, b"w" * 9000)


def _files(build: Build) -> list[str]:
    return [name for name in NAMES if _exists(build, name)]


def _exists(build: Build, name: str) -> bool:
    try:
        build.inode(name)
    except KeyError:
        return False
    return True


def _can_hold(build: Build, name: str) -> bool:
    return "/" not in name or _exists(build, name.partition("/")[0])


def start_build() -> Build:
    """Two durable files, one of them in a directory."""
    return Build({"a": b"old a", "d": None, "d/a": b"o" * 4500})


@st.composite
def builds(draw: st.DrawFn, most_operations: int = 8) -> Build:
    """A build of up to ``most_operations`` operations on the start tree."""
    build = start_build()
    for _ in range(draw(st.integers(1, most_operations))):
        _one(draw, build)
    return build


def _one(draw: st.DrawFn, build: Build) -> None:
    files = _files(build)
    free = [n for n in NAMES if not _exists(build, n) and _can_hold(build, n)]
    kinds = ["fsync-root", "fsync-d", "sync", "output"]
    if free:
        kinds += ["create", "create"]
    if files:
        kinds += ["write", "overwrite", "truncate", "fsync", "fdatasync", "rename", "unlink"]
        kinds += ["o_sync"]
    if files and free:
        kinds += ["link"]
    if len(files) > 1:
        kinds += ["exchange"]
    if not _exists(build, "e"):
        kinds += ["mkdir", "rename-d"] if _exists(build, "d") else ["mkdir"]
    kind = draw(st.sampled_from(kinds))
    file = draw(st.sampled_from(files)) if files else ""
    data = draw(st.sampled_from(_CONTENT))
    match kind:
        case "create":
            build.create(draw(st.sampled_from(free)), draw(st.sampled_from((None, *_CONTENT))))
        case "write":
            build.write(file, data)
        case "o_sync":
            build.write(file, data, synced=draw(st.sampled_from(("data", "all"))))
        case "overwrite":
            build.write(file, data, offset=draw(st.sampled_from((0, 512, 1000))))
        case "truncate":
            build.truncate(file, draw(st.sampled_from((0, 3, 6000))))
        case "fsync":
            build.fsync(file)
        case "fdatasync":
            build.fdatasync(file)
        case "fsync-root":
            build.fsync()
        case "fsync-d":
            build.fsync("d" if _exists(build, "d") else "")
        case "sync":
            build.sync()
        case "output":
            build.output("ack")
        case "unlink":
            build.unlink(file)
        case "mkdir":
            build.mkdir("e")
        case "rename-d":
            build.rename("d", "e")
        case "link":
            build.link(file, draw(st.sampled_from(free)))
        case "exchange":
            other = draw(st.sampled_from([f for f in files if f != file]))
            if build.inode(other) != build.inode(file):
                build.exchange(file, other)
        case "rename":
            target = draw(st.sampled_from([n for n in NAMES if n != file and _can_hold(build, n)]))
            if not _exists(build, target) or build.inode(target) != build.inode(file):
                build.rename(file, target)
