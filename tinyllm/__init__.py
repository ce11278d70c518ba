"""tinyllm: a small language-model trainer whose checkpoints survive a crash at any instant.

``python -m tinyllm train SPEC --artifacts DIR --run-id ID`` trains; ``--resume`` goes on;
``release`` makes a model of a checkpoint. ``tinyllm.load(DIR)`` loads either.
"""

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tinyllm.loading import Model

#: What a server that forks attempts should import first: with these loaded a fork starts
#: training at once. ``torch._dynamo`` is here because torch's optimizers import it when the first
#: one is made, which takes longer than a whole small run.
PRELOAD = (
    "msgspec",
    "numpy",
    "torch",
    "torch._dynamo",
    "tokenizers",
    "tinyllm.trainer",
    "tinyllm.cli",
)


def load(directory: str | os.PathLike[str], *, verify: bool = True) -> "Model":
    """Load a release (F32, BF16 or int4), a checkpoint, or another model directory.

    Everything is checked against the manifest; ``verify=False`` is for a model directory that has
    none. ModelUnusable says what is wrong.
    """
    from tinyllm.loading import load_model

    return load_model(os.fspath(directory), verify=verify)
