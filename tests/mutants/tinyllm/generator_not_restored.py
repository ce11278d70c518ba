"""A resumed run shuffles the epochs after the current one anew."""

from dataclasses import replace
from typing import Any

from tinyllm import pcg32, trainer
from tinyllm.cli import main
from tinyllm.training import Training

BREAKS = "same-losses"
LAYERS = ("point", "kill")


real = trainer.restore


def with_a_fresh_generator(*arguments: Any, **more: Any) -> Training:
    training = real(*arguments, **more)
    training.order = replace(training.order, after=pcg32.seeded(0, sequence=1))
    return training


if __name__ == "__main__":
    trainer.restore = with_a_fresh_generator
    raise SystemExit(main())
