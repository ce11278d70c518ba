"""Text to token ids: bytes, or a ``tokenizer.json`` through the ``tokenizers`` library.

The library is imported only when a model uses such a file. The file's bytes go into each
checkpoint as they are.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tinyllm.errors import SpecError
from tinyllm.inputs import read_input

TOKENIZER_LIMIT_BYTES = 256 << 20

Ids = npt.NDArray[np.int32]


def read_tokenizer(path: Path) -> bytes:
    """The file's bytes; SpecError when it cannot be read."""
    return read_input(path, what="tokenizer", limit_bytes=TOKENIZER_LIMIT_BYTES)


def encode(text: bytes, *, tokenizer: bytes | None, vocab_size: int, where: str) -> Ids:
    """The ids of ``text``: its bytes without a tokenizer, else the tokenizer's, none added.

    SpecError (beginning with ``where``) when the tokenizer is damaged or too large for the model,
    or when the text is not UTF-8, which a tokenizer needs.
    """
    if tokenizer is None:
        return np.frombuffer(text, dtype=np.uint8).astype(np.int32)
    from tokenizers import Tokenizer

    try:
        library = Tokenizer.from_str(tokenizer.decode())
    except Exception as error:  # the library raises a plain Exception for whatever is wrong
        raise SpecError(f"{where}: the tokenizer is not a tokenizer.json: {error}") from None
    size = library.get_vocab_size(with_added_tokens=True)
    if size > vocab_size:
        raise SpecError(
            f"{where}: the tokenizer has {size} tokens, more than the model's vocab_size "
            f"{vocab_size}"
        )
    try:
        words = text.decode()
    except UnicodeDecodeError as error:
        raise SpecError(f"{where}: not UTF-8 at byte {error.start}") from None
    return np.array(library.encode(words, add_special_tokens=False).ids, dtype=np.int32)
