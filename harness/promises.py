"""What acknowledgements promise, learned from an uninterrupted run.

A step that was told to be saved is never lost again: a resume begins after it. Which loss comes
next is known from the uninterrupted run, whatever steps, epochs or tokens are counted in.
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.observation import Event, losses_of


@dataclass(frozen=True, slots=True)
class Promise:
    """What an acknowledgement promised: after it the next loss printed was ``losses[next_loss]``.

    ``next_loss`` is ``len(losses)`` when none followed. An acknowledgement may come late (a
    background writer): where acknowledgements and losses are numbered alike, it promises no more
    than its own step, so that ``next_loss`` is at most the first loss of a later step.
    """

    step: int
    next_loss: int
    operation: int


def promises_of(events: Sequence[Event]) -> tuple[Promise, ...]:
    """What each acknowledgement promised, learned from an uninterrupted run."""
    losses = losses_of(events)
    alike = numbered_alike(events)
    promises = []
    printed = 0
    for event in events:
        if event.kind == "loss":
            printed += 1
            continue
        following = next_loss_after(event.step, printed, losses) if alike else printed
        promises.append(Promise(event.step, following, event.operation))
    return tuple(promises)


def next_loss_after(step: int, printed: int, losses: Sequence[Event]) -> int:
    """The position in ``losses``, ``printed`` of which are out, that an acknowledgement of ``step``
    promises to go on from, where acknowledgements count the losses' steps."""
    later = (i for i, loss in enumerate(losses) if loss.step > step)
    return min(printed, next(later, len(losses)))


def numbered_alike(events: Sequence[Event]) -> bool:
    """Whether acknowledgements count in the losses' steps, and not in epochs or tokens.

    Then the last one's number is about that of the last loss, or the numbers of both advance alike
    from one acknowledgement to the next, while losses advance at all: a background writer's last
    words come together at the end. A single one that came late shows no advance: it counts steps
    when it names one that was printed, other than the first, with which every count may begin.
    """
    steps = [event.step for event in events if event.kind == "loss"]
    acks: list[tuple[int, int]] = []
    last_step = 0
    for event in events:
        if event.kind == "loss":
            last_step = event.step
        else:
            acks.append((event.step, last_step))
    if not steps or not acks:
        return False
    before = steps[0] - 1
    if _about_one(acks[-1][0] - before, steps[-1] - before):
        return True
    if len(acks) == 1:
        [(ack, last)] = acks
        return steps[0] < ack <= last
    advances = [
        (ack - earlier_ack, loss - earlier_loss)
        for (earlier_ack, earlier_loss), (ack, loss) in itertools.pairwise(acks)
        if loss > earlier_loss
    ]
    return _about_one(sum(a for a, _ in advances), sum(b for _, b in advances))


def _about_one(one: int, other: int) -> bool:
    return other > 0 and 0.5 < one / other < 2
