"""A resumed run reads the data from the beginning of the first epoch."""

from tinyllm import data, resume
from tinyllm.cli import main
from tinyllm.data import Position
from tinyllm.reader import Checkpoint
from tinyllm.training import Inputs

BREAKS = "same-losses"
LAYERS = ("point", "kill")


def from_the_beginning(checkpoint: Checkpoint, inputs: Inputs, *, strictly: bool) -> Position:
    return data.first_position(inputs.loaded.spec.seed)


if __name__ == "__main__":
    resume._position = from_the_beginning
    raise SystemExit(main())
