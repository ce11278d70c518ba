"""Cases and their ids.

A case is a subject, a layer and one or more faults in order, one an attempt. Its id says the place
in words and ends in eight hex digits of the sha256 of the canonical JSON of what defines it: no
seed, time or path, so that the same case has the same id in every run and on every machine.
"""

import hashlib
import json
import re
from dataclasses import dataclass

from fault_injection.faults import ActionKind, Fault, TriggerKind

LAYERS = ("point", "kill", "double", "power", "realfs", "error", "corrupt", "signal")
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._+#=,~@-]+")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to try.

    ``layer`` is a layer's name, with ``/<model>`` or ``/<fs>`` for power and realfs. ``faults``
    holds one fault an attempt. ``state`` describes the crash state in a power case, or the damage
    in a corrupt case (JSON values only), and is empty otherwise.
    """

    subject: str
    layer: str
    faults: tuple[Fault, ...] = ()
    place: str = ""
    state: tuple[tuple[str, str], ...] = ()

    @property
    def digest(self) -> str:
        """Eight hex digits that name the case."""
        definition = {
            "subject": self.subject,
            "layer": self.layer,
            "place": self.place,
            "faults": [
                [str(f.trigger), f.place, str(f.action), f.detail, f.times] for f in self.faults
            ],
            "state": [list(pair) for pair in self.state],
        }
        text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """``<subject>/<layer>@<place>-<8 hex>``; a layer's slash is written as a dash."""
        return f"{self.subject}/{self.layer.replace('/', '-')}@{self._words()}-{self.digest}"

    def _words(self) -> str:
        words = self.place or "+".join(f.place or str(f.trigger) for f in self.faults)
        return _NOT_IN_AN_ID.sub("_", words)[:80] or "none"

    def describe(self) -> str:
        """What is done, in words."""
        if self.faults:
            return ", then ".join(fault.describe() for fault in self.faults)
        return self.place


def kill_case(subject: str, layer: str, trigger: TriggerKind, *places: str) -> Case:
    """A case of kills only: one a place, each in the attempt after the one before."""
    return Case(
        subject=subject,
        layer=layer,
        faults=tuple(Fault(trigger, place, ActionKind.KILL) for place in places),
    )


def time_case(subject: str, seconds: str) -> Case:
    """A kill ``seconds`` (decimal text) after the start: it strikes where it happens to."""
    fault = Fault(TriggerKind.TIME, seconds, ActionKind.KILL)
    return Case(subject=subject, layer="kill", faults=(fault,), place=f"time-{seconds}")
