"""The memory of this process, as the kernel counts it."""

from pathlib import Path


def resident_bytes() -> int:
    """What is resident now."""
    return _field("VmRSS")


def peak_bytes() -> int:
    """The most that was resident since the start, or since :func:`forget_peak`."""
    return _field("VmHWM")


def forget_peak() -> None:
    """Begin a new peak."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _field(name: str) -> int:
    for line in (
        Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines()
    ):
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) << 10
    raise OSError(f"/proc/self/status has no {name}")
