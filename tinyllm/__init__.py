"""tinyllm: a small language-model trainer whose checkpoints survive a crash at any instant.

``python -m tinyllm train SPEC --artifacts DIR --run-id ID`` trains; ``--resume`` goes on.
"""

#: What a server that forks attempts should import first: with these loaded a fork starts
#: training at once. ``torch._dynamo`` is here because torch's optimizers import it when the first
#: one is made, which takes longer than a whole small run.
PRELOAD = ("msgspec", "numpy", "torch", "torch._dynamo", "tokenizers", "tinyllm.trainer")
