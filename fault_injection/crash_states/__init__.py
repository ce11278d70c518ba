"""Crash states: what a power loss may leave, computed from a recorded trace.

:func:`enumerate_states` gives the distinct states under a persistence model; a :class:`State` has a
tree that :func:`materialize` lays out as files, a descriptor to :func:`rebuild` it from, and words
(:func:`describe`, :func:`timeline`). :func:`contains` asks whether a real outcome
(:func:`snapshot`) is one that the model allows. :func:`cause_of`, :func:`mend` and
:func:`unneeded_syncs` explain.
"""

from fault_injection.crash_states.cause import Cause, cause_of
from fault_injection.crash_states.containment import contains
from fault_injection.crash_states.describe import Line, Status, describe, timeline
from fault_injection.crash_states.edits import with_fsync, without
from fault_injection.crash_states.enumeration import (
    DEFAULT_BOUND,
    PlaceCount,
    enumerate_states,
)
from fault_injection.crash_states.explain import (
    Addition,
    Mend,
    Unneeded,
    mend,
    unneeded_syncs,
)
from fault_injection.crash_states.materialize import LayoutError, erase, materialize
from fault_injection.crash_states.models import MODELS
from fault_injection.crash_states.snapshot import snapshot
from fault_injection.crash_states.state import State, rebuild
from fault_injection.crash_states.tree import Entry, VisibleTree, differences

__all__ = [
    "DEFAULT_BOUND",
    "MODELS",
    "Addition",
    "Cause",
    "Entry",
    "LayoutError",
    "Line",
    "Mend",
    "PlaceCount",
    "State",
    "Status",
    "Unneeded",
    "VisibleTree",
    "cause_of",
    "contains",
    "describe",
    "differences",
    "enumerate_states",
    "erase",
    "materialize",
    "mend",
    "rebuild",
    "snapshot",
    "timeline",
    "unneeded_syncs",
    "with_fsync",
    "without",
]
