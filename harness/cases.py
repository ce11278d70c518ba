"""Cases and their ids.

A case is a subject, a layer and one or more faults in order, one an attempt. Its id says the place
in words and ends in eight hex digits of the sha256 of the canonical JSON of what defines it: no
seed, time or path, so that the same case has the same id in every run and on every machine.
"""

import hashlib
import json
import re
from dataclasses import dataclass, replace

from fault_injection.faults import ActionKind, Fault, TriggerKind

LAYERS = ("point", "kill", "double", "power", "realfs", "error", "corrupt", "signal")
STATE, RECORDING = "state", "recording"  # keys of ``Case.state``
REWIND = "rewind-"  # in the words of an id, before the name of the step directory
_NOT_IN_AN_ID = re.compile(r"[^A-Za-z0-9._+#=,~@-]+")
_STEP_DIRECTORY = re.compile(r"step-[0-9]{6}")


@dataclass(frozen=True, slots=True)
class Case:
    """One thing to try.

    ``layer`` is a layer's name, with ``/<model>`` or ``/<fs>`` for power and realfs. ``faults``
    holds one fault an attempt. ``state`` describes the crash state in a power case, or the damage
    in a corrupt case (JSON values only), and is empty otherwise.

    ``rewind`` (tinyllm only) names the step directory that the second attempt goes back to, "" when
    it resumes like any other. The first fault then ends a run that was made to its end.
    """

    subject: str
    layer: str
    faults: tuple[Fault, ...] = ()
    place: str = ""
    state: tuple[tuple[str, str], ...] = ()
    rewind: str = ""

    def __post_init__(self) -> None:
        if self.rewind and not _STEP_DIRECTORY.fullmatch(self.rewind):
            raise ValueError(f"rewind {self.rewind!r} is not the name of a step directory")
        if self.rewind and not self.faults:
            raise ValueError("a rewind comes after a first attempt, which has a fault")

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
        if self.rewind:
            definition["rewind"] = self.rewind
        text = json.dumps(definition, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    @property
    def id(self) -> str:
        """``<subject>/<layer>@<place>-<8 hex>``; a layer's slash is written as a dash."""
        return f"{self.subject}/{self.layer.replace('/', '-')}@{self._words()}-{self.digest}"

    def _words(self) -> str:
        places = [f.place or str(f.trigger) for f in self.faults]
        if self.rewind:  # in the place of the first fault, which is the same in all of them
            places[0] = f"{REWIND}{self.rewind}"
        words = self.place or "+".join(places)
        return _NOT_IN_AN_ID.sub("_", words)[:80] or "none"

    def describe(self) -> str:
        """What is done, in words."""
        if not self.faults:
            return self.place
        done = [fault.describe() for fault in self.faults]
        if self.rewind:
            done[1:2] = [f"a rewind to {self.rewind}{''.join(f' with {d}' for d in done[1:2])}"]
        return ", then ".join(done)


def at_state(case: Case, descriptor: str) -> Case:
    """The case of a crash state, from another one of its place and recording."""
    others = tuple(pair for pair in case.state if pair[0] != STATE)
    return replace(case, state=((STATE, descriptor), *others))


def in_recording(case: Case, number: int) -> Case:
    """The case with the recorded run that its crash place is of; the first one goes without."""
    return replace(case, state=(*case.state, (RECORDING, str(number)))) if number else case


def recording_of(case: Case) -> int:
    """The number of the recorded run that a crash state is of."""
    return int(dict(case.state).get(RECORDING, "0"))


def kill_case(subject: str, layer: str, trigger: TriggerKind, *places: str) -> Case:
    """A case of kills only: one a place, each in the attempt after the one before."""
    return Case(
        subject=subject,
        layer=layer,
        faults=tuple(Fault(trigger, place, ActionKind.KILL) for place in places),
    )


def rewind_case(subject: str, layer: str, trigger: TriggerKind, back_to: str, *places: str) -> Case:
    """A run to its end, a rewind to the step directory ``back_to``, and kills: the first in the
    rewinding attempt, each other one in the attempt after the one before."""
    case = kill_case(subject, layer, trigger, *places)
    end = Fault(TriggerKind.AFTER_LAST_CALL, "end", ActionKind.KILL)
    return replace(case, faults=(end, *case.faults), rewind=back_to)


def time_case(subject: str, seconds: str) -> Case:
    """A kill ``seconds`` (decimal text) after the start: it strikes where it happens to."""
    fault = Fault(TriggerKind.TIME, seconds, ActionKind.KILL)
    return Case(subject=subject, layer="kill", faults=(fault,), place=f"time-{seconds}")
