"""The pytest plugin: the fixture ``crash_explorer``, which is ``explore`` that raises.

Installed with the package; there is nothing to configure. It adds no marker and no option, and
imports what explores when the fixture is first used.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from harness.explore_api import Exploration


@pytest.fixture(scope="session")
def crash_explorer() -> "Callable[..., Exploration]":
    """``harness.explore`` with the same arguments, and an AssertionError when a state fails.

    Returns the exploration otherwise. Skips where programs cannot be supervised, with the reason.
    """
    from harness.doctor import reasons
    from harness.explore_api import explore

    why_not = reasons({"power"}).get("power")
    if why_not is not None:
        pytest.skip(f"crash states cannot be explored here: {why_not}")

    def crash_explorer(**arguments: Any) -> "Exploration":
        __tracebackhide__ = True
        exploration = explore(**arguments)
        exploration.raise_for_violations()
        return exploration

    return crash_explorer
