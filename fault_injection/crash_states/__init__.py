"""Crash states: what a power loss may leave, computed from a recorded trace."""

from fault_injection.crash_states.enumeration import (
    DEFAULT_BOUND,
    PlaceCount,
    enumerate_states,
)
from fault_injection.crash_states.models import MODELS
from fault_injection.crash_states.state import State, rebuild
from fault_injection.crash_states.tree import Entry, VisibleTree

__all__ = [
    "DEFAULT_BOUND",
    "MODELS",
    "Entry",
    "PlaceCount",
    "State",
    "VisibleTree",
    "enumerate_states",
    "rebuild",
]
