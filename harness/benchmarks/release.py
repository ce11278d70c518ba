"""Releasing a model against a plain durable copy of its weights."""

from harness.benchmarks.children import measured
from harness.benchmarks.figures import MIB, Figure, Pair, ratio_figure
from harness.benchmarks.sizes import Setting

TIME_TARGET = 1.3

# What int4 makes of F32: half a byte for four, and four bytes more for each group of 32.
INT4_SHARE = 1 / 8 + 1 / 32


def release(setting: Setting) -> list[Figure]:
    """F32 against a copy; the memory that int4 takes, beside the largest tensor."""
    sizes = setting.sizes
    found = measured(
        "release", setting.scratch, sizes.checkpoint_bytes, sizes.rounds, setting.configs
    )
    largest = found["largest_bytes"] / MIB
    size = f"{found['size_bytes'] / 1e9:.2f} GB"
    return [
        ratio_figure(
            "release",
            f"releasing {size} as F32 / a plain durable copy of it",
            Pair(tuple(found["release_s"]), tuple(found["copy_s"])),
            target=TIME_TARGET,
        ),
        Figure(
            name="release-memory",
            what=f"memory that an int4 release of {size} takes",
            value=found["int4_extra_bytes"] / MIB,
            unit="MiB",
            target=largest * (1 + INT4_SHARE),
            detail=f"the largest tensor has {largest:.1f} MiB, its int4 form the rest",
        ),
    ]
