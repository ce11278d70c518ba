"""The sub-commands of ``durability``, a module each, with ``add_parser(subparsers)``."""

from types import ModuleType


def in_order() -> tuple[ModuleType, ...]:
    """The command modules in the order in which the help shows them."""
    from harness import doctor
    from harness.commands import (
        bench,
        check,
        explain,
        gate,
        matrix,
        nightly,
        recheck,
        report,
        reproduce,
    )

    return (doctor, gate, check, nightly, reproduce, recheck, explain, matrix, report, bench)
