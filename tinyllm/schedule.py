"""The learning rate of each step: a warm-up, then constant, linear or cosine.

A pure function of the step, so that nothing of it needs saving: the step count drives the
schedule. Steps count from 1, the first update.
"""

import math

from tinyllm.spec import Schedule


def factor(schedule: Schedule, *, step: int, steps: int) -> float:
    """What the base learning rate is multiplied by at ``step`` of ``steps``, in 0..1.

    During the ``warmup_steps`` it grows in equal parts and reaches 1 with the last of them. After
    that ``linear`` and ``cosine`` fall to ``final_factor``, which the last step has exactly.
    """
    if step <= schedule.warmup_steps:
        return step / schedule.warmup_steps
    if schedule.name == "constant":
        return 1.0
    if step >= steps:
        return schedule.final_factor
    done = (step - schedule.warmup_steps) / (steps - schedule.warmup_steps)
    left = 1.0 - done if schedule.name == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return schedule.final_factor + (1.0 - schedule.final_factor) * left
