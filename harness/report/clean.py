"""Text from anywhere made fit to be shown.

A subject's output, file names of any byte and messages of other programs end up in terminals, XML,
Markdown and HTML. Control characters (which drive terminals and are not allowed in XML), lone
surrogates (bytes that were no UTF-8) and characters that reorder what is read are replaced by
visible escapes; what is longer than its bound is cut, and says so.

Not covered: the quoting that each format needs besides; that is the format's own module's.
"""

import re

LIMIT_CHARACTERS = 4000

_UNFIT = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
    "\ud800-\udfff\ufeff\ufffe\uffff]"
)


_SURROGATE = re.compile("[\ud800-\udfff]")


def _escape(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # a byte that Python's file-system decoding carried along
        return f"\\x{code - 0xDC00:02x}"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def printable(text: str, *, limit: int = LIMIT_CHARACTERS) -> str:
    """``text`` with newlines and tabs as they are, everything unfit escaped, cut at ``limit``."""
    cut = len(text) - limit
    clean = _UNFIT.sub(_escape, text[:limit])
    return f"{clean} … ({cut} more characters)" if cut > 0 else clean


def one_line(text: str, *, limit: int = 400) -> str:
    """The same on one line: newlines and tabs are escaped too."""
    return printable(text, limit=limit).replace("\n", "\\n").replace("\t", "\\t")


def encodable(text: str) -> str:
    """``text`` with lone surrogates alone escaped, so that it can be written as UTF-8."""
    return _SURROGATE.sub(_escape, text)
