"""The learning rate of each step."""

import pytest

from tinyllm.schedule import factor
from tinyllm.spec import Schedule


def _factors(schedule: Schedule, steps: int) -> list[float]:
    return [factor(schedule, step=step, steps=steps) for step in range(1, steps + 1)]


def test_constant_after_a_warm_up() -> None:
    assert _factors(Schedule(name="constant", warmup_steps=4), 6) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_linear_reaches_its_end_with_the_last_step() -> None:
    schedule = Schedule(name="linear", warmup_steps=1, final_factor=0.5)
    assert _factors(schedule, 5) == [1.0, 0.875, 0.75, 0.625, 0.5]


def test_cosine_is_half_way_in_the_middle() -> None:
    factors = _factors(Schedule(name="cosine", warmup_steps=2, final_factor=0.0), 6)
    assert factors[:2] == [0.5, 1.0]
    assert factors[2:] == pytest.approx([0.8535533905932737, 0.5, 0.14644660940672627, 0.0])
    assert factors[-1] == 0.0


@pytest.mark.parametrize("name", ["constant", "linear", "cosine"])
def test_a_warm_up_over_the_whole_run(name: str) -> None:
    schedule = Schedule(name=name, warmup_steps=2, final_factor=0.25)  # type: ignore[arg-type]
    assert _factors(schedule, 2) == [0.5, 1.0]
    assert factor(Schedule(name=name), step=1, steps=1) == (1.0 if name == "constant" else 0.0)  # type: ignore[arg-type]


def test_a_step_past_the_end_keeps_the_final_factor() -> None:
    """A run whose spec was shortened may resume past its end."""
    schedule = Schedule(name="cosine", warmup_steps=0, final_factor=0.1)
    assert factor(schedule, step=9, steps=5) == 0.1
