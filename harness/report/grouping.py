"""Violations grouped by signature: people are shown signatures, with one case each.

A violation that carries no signature gets one from its invariant, the order it needed or, failing
that, its message with the numbers taken out.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from harness.report.words import INVARIANT_SENTENCES, layer_key
from harness.results import Violation

_DIGITS = re.compile(r"[0-9]+")
_DIGEST = re.compile(r"-([0-9a-f]{8})$")


@dataclass(frozen=True, slots=True)
class Group:
    """All violations of one signature. ``example`` is the one that is shown.

    ``cases`` are the distinct (configuration, case id) pairs, sorted; ``layers`` in table order.
    """

    signature: str
    invariant: str
    example: Violation
    cases: tuple[tuple[str, str], ...]
    layers: tuple[str, ...]


def signature_of(violation: Violation) -> str:
    """The violation's own signature, or one made of what it says."""
    if violation.signature:
        return violation.signature
    what = violation.needs or _DIGITS.sub("N", violation.message)
    return f"{violation.invariant}: {what}"


def group(violations: Sequence[Violation]) -> tuple[Group, ...]:
    """Groups in the order of the invariants, the most frequent first within one invariant.

    The example is the one that is easiest to look at: with a bundle, of the simplest layer, with
    the least that was lost, with the shortest id.
    """
    found: dict[tuple[str, str], list[Violation]] = {}
    for violation in violations:
        found.setdefault((violation.invariant, signature_of(violation)), []).append(violation)
    groups = [
        Group(
            signature=signature,
            invariant=invariant,
            example=min(members, key=_simplest_first),
            cases=tuple(sorted({(v.config, v.case) for v in members})),
            layers=tuple(sorted({v.layer for v in members}, key=layer_key)),
        )
        for (invariant, signature), members in found.items()
    ]
    return tuple(sorted(groups, key=_group_key))


def _simplest_first(violation: Violation) -> tuple[bool, tuple[int, int, str], int, int, str, str]:
    layer = layer_key(violation.layer)
    name = (len(violation.case), violation.case, violation.config)
    return (not violation.bundle, layer, len(violation.lost), *name)


def _group_key(one: Group) -> tuple[int, str, int, int, str]:
    known = list(INVARIANT_SENTENCES)
    place = known.index(one.invariant) if one.invariant in known else len(known)
    return (place, one.invariant, -len(one.cases), len(one.example.lost), one.signature)


def reproduce_command(violation: Violation) -> str:
    """The one command that shows it again."""
    if violation.reproduce:
        return violation.reproduce
    digest = _DIGEST.search(violation.case)
    return f"durability reproduce {digest[1] if digest else violation.case}"


def config_tag(config: str, case: str) -> str:
    """The configuration, unless the case's id begins with it anyway."""
    return "" if case.startswith(f"{config}/") else config
