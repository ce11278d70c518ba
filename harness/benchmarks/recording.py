"""What being recorded costs a program, and what it costs the recorder."""

from harness.benchmarks.children import measured
from harness.benchmarks.figures import MIB, Figure, Pair, ratio_figure
from harness.benchmarks.sizes import Setting

TIME_TARGET, MEMORY_TARGET_MIB, BUSY_TARGET = 2.0, 256.0, 1.05


def recording(setting: Setting) -> list[Figure]:
    """A program that saves a lot against itself alone; one that makes no calls under its root."""
    sizes = setting.sizes
    found = measured(
        "recording", setting.scratch, sizes.checkpoint_bytes, sizes.rounds, sizes.busy_s
    )
    size = f"{sizes.checkpoint_bytes / 1e9:.2f} GB"
    return [
        ratio_figure(
            "recording",
            f"a program that saves {size}, recorded / alone",
            Pair(tuple(found["recorded_s"]), tuple(found["alone_s"])),
            target=TIME_TARGET,
        ),
        Figure(
            name="recording-memory",
            what=f"peak memory of the recorder of {size}",
            value=found["peak_bytes"] / MIB,
            unit="MiB",
            target=MEMORY_TARGET_MIB,
        ),
        ratio_figure(
            "recording-idle",
            "a program that makes no calls under its root, recorded / alone",
            Pair(tuple(found["busy_recorded_s"]), tuple(found["busy_alone_s"])),
            target=BUSY_TARGET,
        ),
    ]
