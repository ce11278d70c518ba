"""Whether this call, or this point, is where a fault strikes. Pure; one :class:`Aim` an attempt."""

from dataclasses import dataclass

from fault_injection import points
from fault_injection.faults import ActionKind, Fault, TriggerKind

_ANSWERS = (ActionKind.ERRNO, ActionKind.SHORT_WRITE)


@dataclass(slots=True)
class Aim:
    """A fault, and how often it has struck. Without a fault nothing ever matches."""

    fault: Fault | None
    strikes: int = 0
    label: str = ""
    first: int = 0

    def __post_init__(self) -> None:
        if self.fault is not None and self.fault.trigger is TriggerKind.CALL:
            label, _, number = self.fault.place.rpartition("#")
            if not label or not number.isdecimal() or int(number) < 1:
                raise ValueError(f"{self.fault.place!r} is not <call>-<name>#<occurrence>")
            self.label, self.first = label, int(number)

    def hits_call(self, place: str) -> bool:
        """Whether to strike at the call of ``place``; the caller counts ``strikes``.

        A kill, a signal and a pause strike at exactly the place. Answers begin there and go on at
        the later occurrences of the same label until there were ``times`` of them (0: for ever).
        """
        fault = self.fault
        if fault is None or fault.trigger is not TriggerKind.CALL:
            return False
        if fault.action not in _ANSWERS:
            return place == fault.place and self.strikes == 0
        label, _, number = place.rpartition("#")
        return (
            label == self.label
            and int(number) >= self.first
            and (fault.times == 0 or self.strikes < fault.times)
        )

    def watches_end(self) -> bool:
        """Whether it matters that the main process is about to end by itself."""
        return self.fault is not None and self.fault.trigger is TriggerKind.AFTER_LAST_CALL

    def hits_end(self) -> bool:
        """Whether to strike now that the main process is about to end by itself."""
        return self.watches_end() and self.strikes == 0

    def chosen_point(self) -> str | None:
        """The failpoint to arm, ``name#hit``, or None."""
        fault = self.fault
        return fault.place if fault is not None and fault.trigger is TriggerKind.POINT else None

    def hits_point(self, place: str) -> bool:
        """Whether to strike at a program that says it waits at ``place`` (``name#hit``)."""
        chosen = self.chosen_point()
        return (
            chosen is not None
            and self.strikes == 0
            and points.parse_place(place) == points.parse_place(chosen)
        )

    def time_s(self) -> float | None:
        """Seconds after the start at which to strike, or None."""
        fault = self.fault
        if fault is None or fault.trigger is not TriggerKind.TIME:
            return None
        seconds = float(fault.place)
        if not 0 <= seconds < 1e9:
            raise ValueError(f"{fault.place!r} is no number of seconds to wait")
        return seconds
