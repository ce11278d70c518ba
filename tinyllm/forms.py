"""The forms in which weights are released, by the names that the command line has for them.

``f32`` is the checkpoint's own bytes; ``bf16`` and ``int4`` are made as ``quantize`` says.
"""

DTYPES = ("f32", "bf16", "int4")

# How many weights of a row share a scale in int4. The smallest is the most exact, and fits the most
# matrices.
GROUP_SIZES = (32, 64, 128)
DEFAULT_GROUP_SIZE = 32
