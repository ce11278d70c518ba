"""A crash state as the steps of a timeline: each operation with what became of it."""

from fault_injection.crash_states import State, Status, timeline
from harness.report.timeline import AFTER, DURABLE, LOST, PARTIAL, SEEN, Step

_STATUS = {
    Status.DURABLE: DURABLE,
    Status.LOST: LOST,
    Status.PARTLY: PARTIAL,
    Status.SEEN: SEEN,
    Status.SYNC: DURABLE,
    Status.AFTER: AFTER,
    Status.NO_EFFECT: DURABLE,
}


def steps_of(state: State) -> tuple[Step, ...]:
    """Every operation of the recorded run, before and after the crash."""
    return tuple(
        Step(
            index=line.index,
            text=line.words,
            status=_STATUS[line.status],
            note=line.detail,
            site=line.site,
        )
        for line in timeline(state)
    )
