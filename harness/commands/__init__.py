"""The sub-commands of ``durability``, a module each, with ``add_parser(subparsers)``."""

from types import ModuleType


def in_order() -> tuple[ModuleType, ...]:
    """The command modules in the order in which the help shows them."""
    from harness import doctor
    from harness.commands import check, explain, gate, matrix, report, reproduce

    return (doctor, gate, check, reproduce, explain, matrix, report)
