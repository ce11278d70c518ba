"""A trace as a directory: ``trace.json`` beside the blobs of its spool.

Names are bytes in a trace and text in JSON: UTF-8, with the bytes that are not as lone surrogates,
which JSON can carry and :func:`os.fsencode` would restore.
"""

import dataclasses
import json
import os
import shutil
from typing import Any

from fault_injection.spool import Spool
from fault_injection.trace import Blobs, FileType, Kind, Node, Operation, Trace

FORMAT = "durability-trace/1"
_DEFAULTS = {
    field.name: field.default
    for field in dataclasses.fields(Operation)
    if field.default is not dataclasses.MISSING
}


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _node_to_json(node: Node) -> dict[str, Any]:
    return {
        "inode": node.inode,
        "type": str(node.type),
        "mode": node.mode,
        "entries": {_text(name): inode for name, inode in sorted(node.entries.items())},
        "blob": node.blob,
        "size": node.size,
        "target": _text(node.target),
    }


def _operation_to_json(op: Operation) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(Operation):
        value = getattr(op, field.name)
        if field.name in _DEFAULTS and value == _DEFAULTS[field.name]:
            continue
        fields[field.name] = _text(value) if isinstance(value, bytes) else value
    return fields


def save_trace(trace: Trace, directory: str) -> None:
    """Write ``trace.json``, and the blobs unless the trace's spool lies there already.

    ``directory`` is made; what a trace stored there before is replaced.
    """
    os.makedirs(directory, exist_ok=True)
    _copy_blobs(trace, directory)
    content = {
        "format": FORMAT,
        "start": [_node_to_json(trace.start[inode]) for inode in sorted(trace.start)],
        "operations": [_operation_to_json(op) for op in trace.operations],
    }
    part = os.path.join(directory, "trace.json.part")
    with open(part, "w", encoding="ascii") as file:
        json.dump(content, file, separators=(",", ":"))
        file.write("\n")
    os.replace(part, os.path.join(directory, "trace.json"))


def _copy_blobs(trace: Trace, directory: str) -> None:
    blobs: Blobs = trace.blobs
    if isinstance(blobs, Spool) and blobs.is_at(directory):
        blobs.flush()
        return
    spool = Spool(directory)
    try:
        keys = {op.blob for op in trace.operations} | {n.blob for n in trace.start.values()}
        for key in sorted(keys - {""}):
            if not spool.holds(key):
                shutil.copyfile(blobs.path(key), os.path.join(directory, "blobs", key))
        spool.flush()
    finally:
        spool.close()


def load_trace(directory: str) -> Trace:
    """The trace stored in ``directory``. ValueError or OSError when there is none that is whole."""
    path = os.path.join(directory, "trace.json")
    with open(path, encoding="ascii") as file:
        content = json.load(file)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise ValueError(f"{path}: not a trace of format {FORMAT}")
    try:
        start = {int(raw["inode"]): _node_from_json(raw) for raw in content["start"]}
        operations = tuple(_operation_from_json(raw) for raw in content["operations"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: damaged: {error!r}") from error
    return Trace(start=start, operations=operations, blobs=Spool.open(directory))


def _node_from_json(raw: dict[str, Any]) -> Node:
    return Node(
        inode=int(raw["inode"]),
        type=FileType(raw["type"]),
        mode=int(raw["mode"]),
        entries={_bytes(name): int(inode) for name, inode in raw["entries"].items()},
        blob=str(raw["blob"]),
        size=int(raw["size"]),
        target=_bytes(raw["target"]),
    )


def _operation_from_json(raw: dict[str, Any]) -> Operation:
    fields = dict(raw)
    fields["kind"] = Kind(fields["kind"])
    for name in ("name", "new_name", "target"):
        if name in fields:
            fields[name] = _bytes(fields[name])
    return Operation(**fields)
