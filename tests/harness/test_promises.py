"""What an acknowledgement promises is learned from the uninterrupted run."""

from harness.observation import Event
from harness.promises import promises_of
from tests.harness.histories import ack, loss, uninterrupted


def learned(*events: Event) -> list[tuple[int, int]]:
    return [(p.step, p.next_loss) for p in promises_of(events)]


def test_the_next_loss_after_the_words() -> None:
    assert learned(*uninterrupted()) == [(3, 3), (6, 6), (9, 9)]


def test_a_background_writer_promises_its_own_step_only() -> None:
    late = (*(loss(s) for s in range(1, 9)), ack(4), *(loss(s) for s in range(9, 13)), ack(8))
    assert learned(*late) == [(4, 4), (8, 8)]


def test_epochs_are_not_steps() -> None:
    epochs = (*(loss(s) for s in range(1, 5)), ack(1), *(loss(s) for s in range(5, 9)), ack(2))
    assert learned(*epochs) == [(1, 4), (2, 8)]


def test_saved_before_its_loss_is_printed() -> None:
    early = (loss(1), ack(2), loss(2), loss(3), ack(4), loss(4))
    assert learned(*early) == [(2, 1), (4, 3)]


def test_losses_printed_every_tenth_step() -> None:
    tenth = (loss(10), loss(20), ack(20), loss(30), loss(40), ack(40), loss(50))
    assert learned(*tenth) == [(20, 2), (40, 4)]


def test_one_acknowledgement_alone() -> None:
    assert learned(loss(1), loss(2), ack(2), loss(3)) == [(2, 2)]
    assert learned(*(loss(s) for s in range(1, 9)), ack(1), loss(9)) == [(1, 8)]


def test_a_single_one_that_came_late() -> None:
    """Joined at the next save, and acknowledged then; the last save was never spoken of."""
    late = (*(loss(s) for s in range(1, 9)), ack(4), *(loss(s) for s in range(9, 11)))
    assert learned(*late) == [(4, 4)]


def test_a_background_writer_is_waited_for_at_the_end() -> None:
    late = (*(loss(s) for s in range(1, 9)), ack(4), *(loss(s) for s in range(9, 13)), ack(8))
    assert learned(*late, ack(12)) == [(4, 4), (8, 8), (12, 12)]


def test_a_slow_background_writer() -> None:
    slow = (*(loss(s) for s in range(1, 12)), ack(4), loss(12), ack(8), ack(12), ack(16))
    assert learned(*slow)[:2] == [(4, 4), (8, 8)]


def test_epochs_of_two_steps() -> None:
    events = [e for n in range(1, 5) for e in (loss(2 * n - 1), loss(2 * n), ack(n))]
    assert learned(*events) == [(1, 2), (2, 4), (3, 6), (4, 8)]
