"""Damage to what lies on disk: a deterministic list of it for a tree, and doing it.

:func:`damages` looks at a tree and names everything that can be done to it: bits flipped, files cut
short, pages zeroed, files missing, added, swapped, taken from another directory, replaced by things
that are no files, and nonsense in pointers and JSON (:mod:`fault_injection.rubbish`). The same tree
gives the same list in the same order, and each damage has a place, which names it in a case id. A
damage that would change nothing is not in the list. :mod:`fault_injection.damaging` does them.

Not covered: damage that keeps a format's own checksums right; whoever knows the format passes such
contents to :func:`damages` as data, or mends the checksums once the damage is done.
"""

import itertools
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fault_injection.fingerprint import sha256_of
from fault_injection.rubbish import Content, json_rubbish, pointer_nonsense

PAGE_BYTES = 4096
FLIPPED_BIT = 0x01
_READ_LIMIT_BYTES = 1 << 20  # JSON and pointers that are larger are not looked into
_PLAIN = re.compile(r"[^A-Za-z0-9._+/-]")
_EXTRA_NAME = "extra.bin"


@dataclass(frozen=True, slots=True)
class Damage:
    """One thing to do to a tree. Paths are relative to its root.

    ``path`` is the file or directory that is hurt, ``other`` the second one of a swap or the donor
    of foreign content (which is only read). ``offset`` is that of a flip or a page, or the length
    that is left by a cut.
    """

    kind: str
    path: str
    label: str = ""
    offset: int = 0
    other: str = ""
    content: Content | None = None

    @property
    def place(self) -> str:
        """The name of this damage within its tree, printable ASCII: ``flip-first,a/b.bin``."""
        what = f"{self.kind}-{self.label}" if self.label else self.kind
        return f"{_quoted(what)},{_quoted(self.path)}"

    @property
    def hurts(self) -> tuple[str, ...]:
        """The paths whose content or name is no longer what it was."""
        return (self.path, self.other) if self.kind == "swap" else (self.path,)

    def describe(self) -> str:
        """In words, for people."""
        what = f"{self.kind} {self.label}".strip()
        return f"{what}: {_quoted(self.path)}" + (f" ({_quoted(self.other)})" * bool(self.other))


def _quoted(text: str) -> str:
    return _PLAIN.sub(lambda m: "".join(f"%{b:02x}" for b in os.fsencode(m[0])), text)


def damages(
    root: str,
    *,
    pointers: Sequence[str] = (),
    contents: Mapping[str, Sequence[Content]] | None = None,
    unreadable: bool | None = None,
) -> tuple[Damage, ...]:
    """Everything that can be done to the tree at ``root``, in a fixed order; nothing is changed.

    ``pointers``: the files that name another one. ``contents``: for a path, what the caller wants
    to see in it instead. ``unreadable``: whether taking away all permissions counts (default: not
    for root, whom they do not bind).
    """
    if unreadable is None:
        unreadable = os.geteuid() != 0
    files, directories = _listing(root)
    found: list[Damage] = []
    for path in files:
        found += _flips(root, path)
        found += _cuts(root, path)
        found += _zeroed(root, path)
        found += _replaced(path, unreadable=unreadable)
        found += _foreign(root, path, files)
        found += _nonsense(root, path, path in pointers)
        found += [
            Damage("write", path, content.label, content=content)
            for content in (contents or {}).get(path, ())
        ]
    for one, other in itertools.pairwise(sorted(files, key=_directory_first)):
        if os.path.dirname(one) == os.path.dirname(other) and not _same(root, one, other):
            found.append(Damage("swap", one, os.path.basename(other), other=other))
    for directory in ("", *directories):
        found += _to_directory(directory, files)
    places = [damage.place for damage in found]
    assert len(set(places)) == len(places), "two damages of one name"
    return tuple(found)


def find(among: Sequence[Damage], place: str) -> Damage:
    """The damage of that place; ValueError when the tree does not have it."""
    for damage in among:
        if damage.place == place:
            return damage
    raise ValueError(f"no damage {place!r} among the {len(among)} of this tree")


def _listing(root: str) -> tuple[list[str], list[str]]:
    """The regular files and the directories below ``root``, sorted."""
    files, directories = [], []
    for directory, names, entries in os.walk(root):
        for name in names:
            path = os.path.join(directory, name)
            if not os.path.islink(path):
                directories.append(os.path.relpath(path, root))
        for name in entries:
            path = os.path.join(directory, name)
            if stat.S_ISREG(os.lstat(path).st_mode):
                files.append(os.path.relpath(path, root))
    return sorted(files, key=os.fsencode), sorted(directories, key=os.fsencode)


def _directory_first(path: str) -> tuple[bytes, bytes]:
    return os.fsencode(os.path.dirname(path)), os.fsencode(path)


def _flips(root: str, path: str) -> Iterator[Damage]:
    size = os.path.getsize(os.path.join(root, path))
    # 0 and 8: a length and what follows it in safetensors and many others; 7: its highest byte.
    places = {"first": 0, "7": 7, "8": 8, "middle": size // 2, "last": size - 1}
    seen = set()
    for label, offset in places.items():
        if 0 <= offset < size and offset not in seen:
            seen.add(offset)
            yield Damage("flip", path, label, offset)


def _cuts(root: str, path: str) -> Iterator[Damage]:
    size = os.path.getsize(os.path.join(root, path))
    seen = {size}
    for label, length in (("0", 0), ("half", size // 2), ("last-byte", size - 1)):
        if length >= 0 and length not in seen:
            seen.add(length)
            yield Damage("cut", path, label, length)


def _zeroed(root: str, path: str) -> Iterator[Damage]:
    size = os.path.getsize(os.path.join(root, path))
    pages = -(-size // PAGE_BYTES)
    for label, page in (("first", 0), ("middle", pages // 2), ("last", pages - 1)):
        offset = page * PAGE_BYTES
        is_new = label == "first" or (page > 0 and (label == "middle" or page != pages // 2))
        if 0 <= offset < size and is_new and _piece(root, path, offset).strip(b"\0"):
            yield Damage("zero-page", path, label, offset)


def _piece(root: str, path: str, offset: int) -> bytes:
    with open(os.path.join(root, path), "rb") as file:
        file.seek(offset)
        return file.read(PAGE_BYTES)


def _replaced(path: str, *, unreadable: bool) -> Iterator[Damage]:
    yield Damage("remove", path)
    for label in ("directory", "fifo", "symlink-to-itself", "symlink-dangling", "symlink-outside"):
        yield Damage("replace", path, label)
    if unreadable:
        yield Damage("replace", path, "unreadable")


def _foreign(root: str, path: str, files: Sequence[str]) -> Iterator[Damage]:
    """The file of the same name from the directory before (or else after) this one."""
    name = os.path.basename(path)
    donors = [other for other in files if os.path.basename(other) == name and other != path]
    donors = [other for other in donors if not _same(root, path, other)]
    if donors:
        before = [other for other in donors if os.fsencode(other) < os.fsencode(path)]
        donor = before[-1] if before else donors[0]
        yield Damage("foreign", path, os.path.dirname(donor) or ".", other=donor)


def _nonsense(root: str, path: str, is_pointer: bool) -> Iterator[Damage]:
    is_json = path.endswith(".json")
    full = os.path.join(root, path)
    if not (is_json or is_pointer) or os.path.getsize(full) > _READ_LIMIT_BYTES:
        return
    with open(full, "rb") as file:
        text = file.read()
    # What the label stands for is made again when the damage is done: it depends on the text, and
    # for a pointer on where the tree lies.
    if is_json:
        for content in json_rubbish(text):
            if content.data != text:
                yield Damage("json", path, content.label)
    if is_pointer:
        for content in pointer_nonsense(text, directory=b"/"):
            if content.data != text or content.size_bytes > len(text):
                yield Damage("pointer", path, content.label)


def _same(root: str, one: str, other: str) -> bool:
    first, second = os.path.join(root, one), os.path.join(root, other)
    return os.path.getsize(first) == os.path.getsize(second) and sha256_of(first) == sha256_of(
        second
    )


def _to_directory(directory: str, files: Sequence[str]) -> Iterator[Damage]:
    yield Damage("extra", os.path.join(directory, _EXTRA_NAME))
    if not directory:
        return
    inside = [path for path in files if os.path.dirname(path) == directory]
    if inside:
        yield Damage("empty-files", directory)
        yield Damage("remove-files", directory)
    yield Damage("remove", directory)
    for label in ("file", "symlink-to-itself", "symlink-outside"):
        yield Damage("replace", directory, label)
