"""A resumed run warms up again: the schedule counts this attempt's steps."""

from typing import Any

from tinyllm import trainer, training
from tinyllm.cli import main
from tinyllm.training import Training

BREAKS = "same-losses"
LAYERS = ("point", "kill")


real_factor, real_restore = training.factor, trainer.restore


def restored(*arguments: Any, **more: Any) -> Training:
    found = real_restore(*arguments, **more)

    def counted_anew(schedule: Any, *, step: int, steps: int) -> float:
        return real_factor(schedule, step=step - found_step, steps=steps)

    found_step = found.step
    training.factor = counted_anew
    return found


if __name__ == "__main__":
    trainer.restore = restored
    raise SystemExit(main())
