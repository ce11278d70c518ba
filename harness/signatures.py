"""Signatures: what groups cases that show one and the same fault.

Hundreds of cases may break one invariant for one reason. Without a needed order (the power layers
know it) the signature is the invariant and its message with everything that varies from case to
case taken out: numbers, hashes, attempt and step counts.
"""

import re

from harness.evidence import Finding

_VARIES = re.compile(r"0x[0-9a-f]+|\b[0-9a-f]{8,64}\b|[-+]?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?")


def signature_of(finding: Finding, *, needs: str = "", site: str = "") -> str:
    """``<invariant>: <order or message> [at <site>]``."""
    what = needs or _VARIES.sub("N", finding.message)
    return f"{finding.invariant}: {what}" + (f" at {site}" if site else "")
