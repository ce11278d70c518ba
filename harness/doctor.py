"""``durability doctor``: what can run here, what each missing layer needs, and what was left over.

Every answer is found by trying: a child is supervised, a file system is mounted and cut, a file is
made in memory. :func:`reasons` is what every other command uses to skip a layer by name, so that
what the doctor says and what a run does are the same.

``--clean`` ends the processes and removes the directories of runs that were killed, and only those
(:mod:`fault_injection.leftovers` says how they are told apart).

Not covered: whether a subject itself can run.
"""

import argparse
import importlib.util
import json
import os
import platform
import shutil
import sys
from collections.abc import Collection
from dataclasses import asdict, dataclass
from importlib import metadata
from typing import Any

from fault_injection import filesystems, leftovers, loopdev, seccomp, volumes

FORMAT = "durability-doctor/1"
MODELS = ("posix", "ext4", "xfs", "btrfs")
_OLDEST_PYTHON = (3, 11)
_COMPILERS = ("cc", "gcc", "clang")
_LEFT_OVER = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that was looked at. ``missing`` says what to do, and is empty when it is there."""

    name: str
    found: str
    missing: str = ""


def layers(wanted: Collection[str] | None = None) -> dict[str, str | None]:
    """Each fault layer, with the reason why it cannot run here, or None when it can.

    ``wanted``: only these; the others are not tried, which saves the time of the trial.
    """
    known: dict[str, str | None] = {}
    supervised = ("kill", "double", "power", *(f"power/{model}" for model in MODELS), "error")
    for layer in ("point", *supervised, "corrupt", "signal"):
        if wanted is None or layer in wanted:
            known[layer] = seccomp.unavailable() if layer in supervised else None
    for file_system in filesystems.FILE_SYSTEMS:
        layer = f"realfs/{file_system}"
        if wanted is None or layer in wanted or "realfs" in wanted:
            known[layer] = volumes.unavailable(file_system)
    real = {name: reason for name, reason in known.items() if name.startswith("realfs/")}
    if wanted is None or "realfs" in wanted:
        said = dict.fromkeys(reason for reason in real.values() if reason is not None)
        known["realfs"] = None if None in real.values() else "; ".join(said)
    return {name: reason for name, reason in known.items() if wanted is None or name in wanted}


def reasons(wanted: Collection[str] | None = None) -> dict[str, str]:
    """The layers that cannot run here, each with its reason."""
    return {name: reason for name, reason in layers(wanted).items() if reason is not None}


def checks() -> tuple[Check, ...]:
    """What the layers and the tests need, one by one."""
    uid = os.geteuid()
    return (
        Check("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        _python(),
        _library("torch", "only tinyllm needs it: pip install torch"),
        Check("seccomp", *_found_or("supervises a child", seccomp.unavailable())),
        Check("user", f"uid {uid}", "" if uid == 0 else "realfs needs root"),
        Check("loop devices", *_found_or("can be attached", loopdev.unavailable())),
        *(_mkfs(file_system) for file_system in filesystems.FILE_SYSTEMS),
        _memory(),
        _compiler(),
    )


def _found_or(found: str, reason: str | None) -> tuple[str, str]:
    return (found, "") if reason is None else ("", reason)


def _python() -> Check:
    oldest = ".".join(map(str, _OLDEST_PYTHON))
    missing = "" if sys.version_info >= _OLDEST_PYTHON else f"install Python {oldest} or newer"
    return Check("python", f"{platform.python_version()} at {sys.executable}", missing)


def _library(name: str, missing: str) -> Check:
    """Without importing it: torch alone takes a second or two."""
    if importlib.util.find_spec(name) is None:
        return Check(name, "", missing)
    try:
        return Check(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return Check(name, "of an unknown version")


def _mkfs(file_system: str) -> Check:
    path = filesystems.mkfs_program(file_system)
    name = filesystems.KINDS[file_system].mkfs[0]
    return Check(name, path or "", "" if path else filesystems.mkfs_missing(file_system))


def _memory() -> Check:
    place = "/dev/shm"
    if not os.path.isdir(place) or not os.access(place, os.W_OK):
        return Check("tmpfs", "", f"no {place}: crash states are laid out on the disk, slower")
    free = os.statvfs(place)
    return Check("tmpfs", f"{place}, {free.f_bavail * free.f_frsize >> 20} MiB free")


def _compiler() -> Check:
    for name in _COMPILERS:
        if (path := shutil.which(name)) is not None:
            return Check("C compiler", path)
    return Check("C compiler", "", "only the tests with C programs need it: install gcc")


def add_parser(subparsers: Any) -> None:
    """Add ``doctor``."""
    parser = subparsers.add_parser(
        "doctor",
        help="what can run here, and what each missing layer needs",
        description="Say what can run here, what each missing layer needs, and what killed runs "
        "left behind. Exit 0; 3 when --clean could not remove something.",
    )
    parser.add_argument("--clean", action="store_true", help="remove what killed runs left behind")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print what was found; the exit code."""
    problems: tuple[str, ...] = ()
    found: tuple[leftovers.Leftover, ...] = ()
    try:
        found = leftovers.find()
        if arguments.clean:
            problems = leftovers.clean(found)
    except leftovers.LeftoverError as error:
        problems = (str(error),)
    if arguments.json:
        print(_as_json(found, cleaned=arguments.clean, problems=problems))
    else:
        print("\n".join(_as_text(found, cleaned=arguments.clean, problems=problems)))
    return _LEFT_OVER if arguments.clean and problems else 0


def _as_json(
    found: tuple[leftovers.Leftover, ...], *, cleaned: bool, problems: tuple[str, ...]
) -> str:
    said = {
        "format": FORMAT,
        "checks": [asdict(check) for check in checks()],
        "layers": layers(),
        "leftovers": [asdict(leftover) for leftover in found],
        "cleaned": cleaned,
        "problems": list(problems),
    }
    return json.dumps(said, indent=1)


def _as_text(
    found: tuple[leftovers.Leftover, ...], *, cleaned: bool, problems: tuple[str, ...]
) -> list[str]:
    lines = ["This machine"]
    for check in checks():
        note = f"MISSING  {check.missing}" if not check.found else check.found
        if check.found and check.missing:
            note += f"  ({check.missing})"
        lines.append(f"  {check.name:<14}{note}")
    lines += ["", "Fault layers"]
    for layer, reason in layers().items():
        lines.append(f"  {layer:<14}" + ("can run" if reason is None else f"SKIPPED  {reason}"))
    lines += ["", "Left behind by killed runs"]
    lines += [f"  {leftover.describe()}" for leftover in found] or ["  nothing"]
    if found and not cleaned:
        lines.append("  remove it with: durability doctor --clean")
    if cleaned and found and not problems:
        lines.append(f"  removed: all {len(found)}")
    return lines + [f"  PROBLEM  {problem}" for problem in problems]
