"""What a file may hold that its reader does not expect: nonsense as data, each with a stable label.

Three collections: what a pointer file (one that names another file or directory) may say instead,
what may stand where JSON was, and names that a list of files must not trust. They are what real
crashes, editors, other systems and hostile senders have left in such files.

Not covered: content that is valid and wrong (another step's numbers); those need the format.
"""

import json
from dataclasses import dataclass

GIB = 1 << 30
_NESTING = 100_000
_DIGITS = 5_000  # more than Python's int() reads by default
_LONG_NAME = 300  # more than any Linux file system allows


@dataclass(frozen=True, slots=True)
class Content:
    """What to put into a file: ``data``, then a hole up to ``size_bytes`` when that is more."""

    label: str
    data: bytes
    size_bytes: int = 0


def pointer_nonsense(text: bytes, *, directory: bytes) -> tuple[Content, ...]:
    """What a pointer that says ``text`` (with or without a newline) may say instead.

    ``directory`` is the absolute path of the directory that the pointer lies in.
    """
    name = text.strip()
    return (
        Content("empty", b""),
        Content("newline", b"\n"),
        Content("no-newline", name),
        Content("crlf", name + b"\r\n"),
        Content("bom", b"\xef\xbb\xbf" + name + b"\n"),
        Content("utf16", b"\xff\xfe" + name.decode("latin-1").encode("utf-16-le") + b"\n\0"),
        Content("4096-nuls", bytes(4096)),
        Content("name-then-nuls", name + bytes(4096 - len(name) % 4096)),
        Content("parent", b"../other/" + name + b"\n"),
        Content("parent-and-back", b"../" + directory.rpartition(b"/")[2] + b"/" + name + b"\n"),
        Content("absolute", directory + b"/" + name + b"\n"),
        Content("slash-after", name + b"/\n"),
        Content("dot-before", b"./" + name + b"\n"),
        Content("dot", b".\n"),
        Content("dot-dot", b"..\n"),
        Content("space-around", b"  " + name + b"  \n"),
        Content("two-lines", name + b"\n" + name + b"\n"),
        Content("missing-target", name + b"9\n"),
        Content("half-a-name", name[: len(name) // 2] + b"\n"),
        Content("not-utf8", b"\xff\xfe\x80" + name + b"\n"),
        Content("nul-inside", name + b"\0x\n"),
        Content("other-digits", "step-\u0663\u0660\n".encode()),
        Content("long-name", b"x" * _LONG_NAME + b"\n"),
        Content("1-gib", name + b"\n", GIB),
        Content("1-gib-of-nuls", b"", GIB),
    )


def json_rubbish(text: bytes) -> tuple[Content, ...]:
    """What may stand in place of the JSON document ``text``.

    Always the same documents; and when ``text`` is an object, it without each of its keys in turn
    and with null for each of their values.
    """
    fixed = (
        Content("nothing", b""),
        Content("space", b" \n"),
        Content("object", b"{}\n"),
        Content("array", b"[]\n"),
        Content("null", b"null\n"),
        Content("number", b"7\n"),
        Content("string", b'"x"\n'),
        Content("nan", b"NaN\n"),
        Content("infinity", b'{"step": Infinity}\n'),
        Content("huge-float", b'{"step": 1e999}\n'),
        Content("huge-int", b'{"step": ' + b"9" * _DIGITS + b"}\n"),
        Content("deep", b"[" * _NESTING + b"]" * _NESTING),
        Content("deep-open", b'{"a":' * _NESTING),
        Content("lone-surrogate", b'{"\\ud800": 1}\n'),
        Content("not-utf8", b'{"\xff\xfe": 1}\n'),
        Content("nuls", bytes(max(1, len(text)))),
    )
    around = (
        Content("bom", b"\xef\xbb\xbf" + text),
        Content("twice", text + text),
        Content("garbage-after", text + b"x"),
        Content("half", text[: len(text) // 2]),
    )
    return fixed + around + _without_keys(text)


def _without_keys(text: bytes) -> tuple[Content, ...]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(document, dict):
        return ()
    found = []
    for key in sorted(document):
        rest = {k: v for k, v in document.items() if k != key}
        for label, changed in (("without", rest), ("null", document | {key: None})):
            data = json.dumps(changed, indent=1).encode() + b"\n"
            if changed != document:
                found.append(Content(f"{label}-{key}", data))
    return tuple(found)


def hostile_names(good: str) -> tuple[tuple[str, str], ...]:
    """(label, name): names that a list of files must refuse; ``good`` is one that it accepts."""
    return (
        ("empty", ""),
        ("dot", "."),
        ("dot-dot", ".."),
        ("parent", f"../{good}"),
        ("parent-inside", f"x/../../{good}"),
        ("parent-and-back", f"x/../{good}"),
        ("absolute", "/etc/hostname"),
        ("dot-before", f"./{good}"),
        ("slash-after", f"{good}/"),
        ("double-slash", f"x//{good}"),
        ("below-a-file", f"{good}/x"),
        ("backslash", f"..\\{good}"),
        ("drive", f"C:{good}"),
        ("nul", f"{good}\0"),
        ("newline", f"{good}\n"),
        ("space-after", f"{good} "),
        ("lone-surrogate", f"{good}\ud800"),
        ("long", "x" * _LONG_NAME),
        ("device", "/dev/zero"),
        ("proc", "/proc/self/environ"),
        ("home", f"~/{good}"),
        ("variable", f"$HOME/{good}"),
    )
