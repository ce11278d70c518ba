"""The crash-consistency harness: decides what to hurt, runs it, judges it, shows it.

``explore`` is its door from Python; it is imported when it is first asked for.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.explore_api import Exploration, explore

__all__ = ["Exploration", "explore"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from harness import explore_api

        return getattr(explore_api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
