"""Training data: sources become windows, and windows come in a shuffled order that can resume.

A window is ``seq_length`` inputs with their targets, the same tokens one place on, so it covers
``seq_length + 1`` tokens; the next begins ``seq_length`` further. No window spans two sources.

Each epoch visits every window once, in a Fisher-Yates permutation drawn from one PCG32 stream that
continues from epoch to epoch. A :class:`Position` says what was *consumed*: the epoch, the next
window within its permutation, and the generator as it was when that permutation was drawn, so the
same permutation can be drawn again. A position is kept in one normal form: after the last window
of an epoch it is (next epoch, window 0). A batch may take windows of two epochs.

Not covered: data larger than memory. The whole of it is read and its sha256 taken at start.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tinyllm import pcg32
from tinyllm.errors import SpecError
from tinyllm.inputs import read_input
from tinyllm.pcg32 import Pcg32
from tinyllm.spec import LoadedSpec, Source
from tinyllm.tokenizer import encode

DATA_LIMIT_BYTES = 16 << 30
SHUFFLE_SEQUENCE = 1  # the PCG32 stream of the data order

Ids = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Dataset:
    """All tokens in one array, where each window starts in it, and what it was made from.

    ``sources`` are (name, sha256 of the file) in the order of the spec.
    """

    tokens: Ids
    starts: npt.NDArray[np.int64]
    seq_length: int
    sources: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Position:
    """What was consumed so far. ``generator`` is the one that this epoch's order is drawn from."""

    epoch: int
    next_window: int
    generator: Pcg32


@dataclass(frozen=True, slots=True)
class Order:
    """A position with its epoch's permutation drawn, and the generator after that."""

    position: Position
    permutation: list[int]
    after: Pcg32


def load(loaded: LoadedSpec, *, tokenizer: bytes | None) -> Dataset:
    """Read every source; SpecError when one is unreadable, too short, or has ids out of range."""
    data = loaded.spec.data
    parts, starts, sources, offset = [], [], [], 0
    for source in data.sources:
        ids, sha256 = _read_source(loaded, source, tokenizer=tokenizer)
        windows = (len(ids) - 1) // data.seq_length
        if windows < 1:
            raise SpecError(
                f"source {source.name}: {len(ids)} tokens are too few for one window of "
                f"{data.seq_length} and its target"
            )
        starts.append(offset + data.seq_length * np.arange(windows, dtype=np.int64))
        parts.append(ids)
        sources.append((source.name, sha256))
        offset += len(ids)
    all_starts = np.concatenate(starts)[: data.max_windows]
    if len(all_starts) > pcg32.MASK_32:
        raise SpecError(f"{len(all_starts)} windows; at most {pcg32.MASK_32} can be shuffled")
    return Dataset(
        tokens=np.concatenate(parts),
        starts=all_starts,
        seq_length=data.seq_length,
        sources=tuple(sources),
    )


def _read_source(loaded: LoadedSpec, source: Source, *, tokenizer: bytes | None) -> tuple[Ids, str]:
    """The ids of one source and the sha256 of its file."""
    path = loaded.resolve(source.path)
    content = read_input(path, what=f"source {source.name}", limit_bytes=DATA_LIMIT_BYTES)
    sha256 = hashlib.sha256(content).hexdigest()
    where = f"source {source.name} ({path})"
    vocab_size = loaded.model.vocab_size
    if source.kind == "text":
        return encode(content, tokenizer=tokenizer, vocab_size=vocab_size, where=where), sha256
    if len(content) % 2:
        raise SpecError(f"{where}: {len(content)} bytes are not a whole number of 16-bit tokens")
    ids = np.frombuffer(content, dtype="<u2").astype(np.int32)
    if len(ids) and int(ids.max()) >= vocab_size:
        raise SpecError(
            f"{where}: token {int(ids.max())} at {int(ids.argmax())} is outside the model's "
            f"vocab_size {vocab_size}"
        )
    return ids, sha256


def first_position(seed: int) -> Position:
    """The position before the first window of a run."""
    return Position(epoch=0, next_window=0, generator=pcg32.seeded(seed, sequence=SHUFFLE_SEQUENCE))


def open_order(position: Position, *, windows: int) -> Order:
    """Draw the permutation of the position's epoch (again)."""
    permutation, after = pcg32.shuffled(position.generator, windows)
    return Order(position=position, permutation=permutation, after=after)


def take(order: Order, *, count: int) -> tuple[list[int], Order]:
    """The next ``count`` windows, and the order after them, in normal form."""
    taken: list[int] = []
    windows = len(order.permutation)
    while len(taken) < count:
        position = order.position
        chosen = order.permutation[position.next_window :][: count - len(taken)]
        taken += chosen
        next_window = position.next_window + len(chosen)
        if next_window < windows:
            moved = Position(position.epoch, next_window, position.generator)
            order = Order(moved, order.permutation, order.after)
        else:
            order = open_order(Position(position.epoch + 1, 0, order.after), windows=windows)
    return taken, order


def batch(dataset: Dataset, windows: list[int]) -> npt.NDArray[np.int64]:
    """The tokens of ``windows``: shape (windows, seq_length + 1), inputs and targets in one."""
    places = dataset.starts[windows][:, None] + np.arange(dataset.seq_length + 1)
    tokens: npt.NDArray[np.int64] = dataset.tokens[places].astype(np.int64)
    return tokens


def implausible(position: Position, *, seed: int, windows: int, consumed: int) -> str:
    """Why a stored position cannot be that of a run with this seed; empty when it can.

    ``consumed`` is how many windows the run has used up. The generator is checked too: it must lie
    on the seed's stream, as many draws on as the epochs before took. The bounded draw repeats
    itself rarely, so the number of draws is known up to a few more.
    """
    if position.epoch * windows + position.next_window != consumed:
        return (
            f"the data cursor (epoch {position.epoch}, window {position.next_window}) is not "
            f"where {consumed} windows in epochs of {windows} lead"
        )
    draws = pcg32.distance(first_position(seed).generator, position.generator)
    least = position.epoch * (windows - 1)
    if draws is None or not least <= draws <= 2 * least + 64:
        return f"the generator state is not that of seed {seed} in epoch {position.epoch}"
    return ""
