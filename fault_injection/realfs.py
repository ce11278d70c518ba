"""A program on a real file system whose power goes while the program is held at a chosen place.

The program is started with its root on a :class:`~fault_injection.volumes.Volume` and stopped by
its fault: right before a call, at a failpoint, or when it ends. While it is held there the volume
is cut; then the program is killed, the volume mounted again, and what survived lies under the same
path, ready for a resume.

Not covered: cutting at a time rather than at a place (the program is not held then), and programs
that write outside of their root.
"""

from dataclasses import dataclass, replace

from fault_injection.attempt import Attempt, Command, Settings, run_attempt
from fault_injection.faults import ActionKind, TriggerKind
from fault_injection.volumes import Image, Volume

_HELD_AT = (TriggerKind.POINT, TriggerKind.CALL, TriggerKind.AFTER_LAST_CALL)


@dataclass(frozen=True, slots=True)
class RealCut:
    """What came of it. ``cut``: power was lost, the program was seen to die, all at the place.

    When it is false the place was never reached and the volume holds what the program wrote.
    """

    attempt: Attempt
    cut: bool
    evidence: str


def run_on_real(
    command: Command, settings: Settings, *, on: Volume, committed: bool = False
) -> RealCut:
    """Run ``command`` on the volume as it is, cut it at ``settings.fault``, mount it again.

    ``settings.root`` must be ``on.path``. ``committed``: the file system commits by itself before
    power goes (see :meth:`Volume.cut`). Raises ValueError for a fault that holds nobody,
    VolumeError when the file system fails us, and what ``run_attempt`` raises.
    """
    fault = settings.fault
    if fault is None or fault.action is not ActionKind.KILL or fault.trigger not in _HELD_AT:
        said = "no fault" if fault is None else fault.describe()
        raise ValueError(f"power is cut where a kill holds the program, not with {said}")
    if settings.root != on.path:
        raise ValueError(f"the root {settings.root} is not the volume's {on.path}")
    cuts = []

    def cut() -> None:
        on.cut(committed=committed)
        cuts.append(True)

    try:
        attempt = run_attempt(command, replace(settings, at_fault=cut))
    finally:
        on.remount()
    how = "after a commit" if committed else "without a commit"
    happened = bool(cuts) and attempt.fault_seen
    evidence = f"{on.file_system} lost power {how}, then {attempt.evidence}" if happened else ""
    return RealCut(attempt, happened, evidence)


def prepare(command: Command, settings: Settings, *, on: Volume) -> tuple[Attempt, Image]:
    """Run ``command`` undisturbed (a run that saves once, say) and keep what it left as an image.

    Every cut then starts from the image, :meth:`Volume.reset`, rather than from the beginning.
    """
    attempt = run_attempt(command, replace(settings, fault=None, at_fault=None))
    return attempt, on.keep()
