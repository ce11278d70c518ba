"""Doing one damage of :mod:`fault_injection.corruption` to a tree, and making sure that it is done.

A damage that changes nothing is an error: a fault that did not happen must never pass for one that
a program survived.

Not covered: undoing; damage a copy.
"""

import os
import shutil
from collections.abc import Callable

from fault_injection.corruption import FLIPPED_BIT, PAGE_BYTES, Damage
from fault_injection.fingerprint import fingerprint, what_it_is
from fault_injection.rubbish import Content, json_rubbish, pointer_nonsense

_EXTRA_BYTES = b"not part of it\n"


class DamageError(Exception):
    """A damage does not fit the tree that it was applied to; the text says why."""


def apply(damage: Damage, root: str, *, outside: str = "") -> None:
    """Do ``damage`` to the tree at ``root``, in place.

    ``outside``: an existing directory that is not in the tree, for what a link then leads to.
    Raises DamageError when the tree lacks what is to be hurt, or when nothing changed.
    """
    path = os.path.join(root, damage.path)
    size_before, before = _size_and_mode(path), _look(path)
    try:
        _ACTIONS[damage.kind](damage, root, path, outside)
    except OSError as error:
        raise DamageError(f"{damage.describe()}: {error}") from error
    # A new size says enough; a pointer that has become 1 GiB large need not be read to see it.
    if _size_and_mode(path) == size_before and _look(path) == before:
        raise DamageError(f"{damage.describe()}: it changed nothing")


def _size_and_mode(path: str) -> tuple[int, int] | None:
    if not os.path.lexists(path):
        return None
    status = os.lstat(path)
    return status.st_size, status.st_mode


def _look(path: str) -> object:
    if not os.path.lexists(path):
        return None
    if os.path.isdir(path) and not os.path.islink(path):
        return fingerprint(path)
    return what_it_is(path)


def _put(path: str, content: Content) -> None:
    with open(path, "wb") as file:
        file.write(content.data)
        file.truncate(max(len(content.data), content.size_bytes))


def _flip(damage: Damage, _root: str, path: str, _outside: str) -> None:
    with open(path, "r+b") as file:
        file.seek(damage.offset)
        byte = file.read(1)
        if not byte:
            raise DamageError(f"{damage.describe()}: the file has no byte {damage.offset}")
        file.seek(damage.offset)
        file.write(bytes([byte[0] ^ FLIPPED_BIT]))


def _cut(damage: Damage, _root: str, path: str, _outside: str) -> None:
    os.truncate(path, min(damage.offset, os.path.getsize(path)))


def _zero_page(damage: Damage, _root: str, path: str, _outside: str) -> None:
    size = min(PAGE_BYTES, os.path.getsize(path) - damage.offset)
    with open(path, "r+b") as file:
        file.seek(damage.offset)
        file.write(bytes(max(0, size)))


def _remove(_damage: Damage, _root: str, path: str, _outside: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        os.unlink(path)


def _extra(_damage: Damage, _root: str, path: str, _outside: str) -> None:
    with open(path, "xb") as file:
        file.write(_EXTRA_BYTES)


def _swap(damage: Damage, root: str, path: str, _outside: str) -> None:
    other = os.path.join(root, damage.other)
    aside = path + ".swapping"
    os.rename(path, aside)
    os.rename(other, path)
    os.rename(aside, other)


def _foreign(damage: Damage, root: str, path: str, _outside: str) -> None:
    shutil.copyfile(os.path.join(root, damage.other), path)


def _of_each_file(damage: Damage, _root: str, path: str, _outside: str) -> None:
    for name in sorted(os.listdir(path)):
        full = os.path.join(path, name)
        if os.path.isfile(full) and not os.path.islink(full):
            if damage.kind == "empty-files":
                os.truncate(full, 0)
            else:
                os.unlink(full)


def _replace(damage: Damage, root: str, path: str, outside: str) -> None:
    if damage.label == "unreadable":
        os.chmod(path, 0)
        return
    if damage.label == "symlink-outside":
        if not os.path.isdir(outside) or _is_within(outside, root):
            raise DamageError(f"{damage.describe()}: needs a directory outside of the tree")
        moved = os.path.join(outside, os.path.basename(path))
        if os.path.lexists(moved):
            raise DamageError(f"{damage.describe()}: {moved} exists already")
        shutil.move(path, moved)
        os.symlink(moved, path)
        return
    _remove(damage, root, path, outside)
    if damage.label == "directory":
        os.mkdir(path)
    elif damage.label == "file":
        _extra(damage, root, path, outside)
    elif damage.label == "fifo":
        os.mkfifo(path)
    elif damage.label == "symlink-to-itself":
        os.symlink(os.path.basename(path), path)
    else:
        assert damage.label == "symlink-dangling", damage.label
        os.symlink("there-is-no-such-name", path)


def _is_within(path: str, root: str) -> bool:
    return os.path.commonpath([os.path.realpath(path), os.path.realpath(root)]) == os.path.realpath(
        root
    )


def _json(damage: Damage, _root: str, path: str, _outside: str) -> None:
    with open(path, "rb") as file:
        _put(path, _labelled(damage, json_rubbish(file.read())))


def _pointer(damage: Damage, _root: str, path: str, _outside: str) -> None:
    directory = os.fsencode(os.path.realpath(os.path.dirname(path)))
    with open(path, "rb") as file:
        _put(path, _labelled(damage, pointer_nonsense(file.read(), directory=directory)))


def _write(damage: Damage, _root: str, path: str, _outside: str) -> None:
    assert damage.content is not None, "a write damage carries its content"
    _put(path, damage.content)


def _labelled(damage: Damage, contents: tuple[Content, ...]) -> Content:
    for content in contents:
        if content.label == damage.label:
            return content
    raise DamageError(f"{damage.describe()}: the file's text has changed since it was looked at")


_ACTIONS: dict[str, Callable[[Damage, str, str, str], None]] = {
    "flip": _flip,
    "cut": _cut,
    "zero-page": _zero_page,
    "remove": _remove,
    "extra": _extra,
    "swap": _swap,
    "foreign": _foreign,
    "empty-files": _of_each_file,
    "remove-files": _of_each_file,
    "replace": _replace,
    "json": _json,
    "pointer": _pointer,
    "write": _write,
}
