"""The writer and the verifier of tinyllm against the least that they could do."""

from harness.benchmarks.children import measured
from harness.benchmarks.figures import MIB, Figure, Pair, ratio_figure
from harness.benchmarks.sizes import Setting

SAVE_TARGET, VERIFY_TARGET, MEMORY_TARGET_MIB = 1.15, 1.1, 64.0


def checkpoint(setting: Setting) -> list[Figure]:
    """A durable save against a write loop, its memory, and verification against hashing."""
    sizes = setting.sizes
    found = measured("checkpoint", setting.scratch, sizes.checkpoint_bytes, sizes.rounds)
    size = f"{found['size_bytes'] / 1e9:.2f} GB"
    saves = Pair(tuple(found["save_s"]), tuple(found["plain_s"]))
    verifications = Pair(tuple(found["verify_s"]), tuple(found["hash_s"]))
    return [
        ratio_figure(
            "save",
            f"a durable save of {size} / one write loop and fsync of the same bytes",
            saves,
            target=SAVE_TARGET,
        ),
        Figure(
            name="save-memory",
            what=f"memory that a save of {size} takes beside the tensors",
            value=found["extra_bytes"] / MIB,
            unit="MiB",
            target=MEMORY_TARGET_MIB,
        ),
        ratio_figure(
            "verify",
            f"verifying {size} / hashing the same files, a file a core",
            verifications,
            target=VERIFY_TARGET,
        ),
    ]
