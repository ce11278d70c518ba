"""``MANIFEST.json``: what a directory claims to hold, and which names it may claim.

A manifest lists every other file of its directory with its sha256 and size. Names come from a file
that may be damaged or hostile, so a name is checked before anything is opened by it: a plain file
name, ``heads/<name>.json`` or ``evals/summary.json``, and nothing that leads elsewhere.
"""

import re
from collections.abc import Mapping
from typing import Annotated

import msgspec

from tinyllm.documents import decode_strictly
from tinyllm.paths import MANIFEST, MAX_STEP
from tinyllm.state import canonical_json

FORMAT = "tinyllm-manifest/1"

# Far above what any real manifest needs; what is longer is not read.
MAX_MANIFEST_BYTES = 4 << 20

MODEL_FILE = "model.safetensors"
OPTIMIZER_FILE = "optimizer.safetensors"
CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
GENERATION_FILE = "generation_config.json"
STATE_FILE = "trainer_state.json"

CHECKPOINT_REQUIRED = frozenset({MODEL_FILE, OPTIMIZER_FILE, CONFIG_FILE, STATE_FILE})
RELEASE_REQUIRED = frozenset(
    {MODEL_FILE, CONFIG_FILE, "MODEL_CARD.md", "ledger.json", "evals/summary.json"}
)

_ALLOWED = re.compile(
    r"evals/summary\.json|heads/[A-Za-z0-9][A-Za-z0-9._-]{0,63}\.json"
    r"|[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
)


_Id = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$(?!\n)")]


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One file's content: ``sha256`` in hex, ``size`` in bytes."""

    sha256: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
    size: Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class CheckpointManifest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="checkpoint",
):
    """The manifest of a step directory."""

    format: str
    step: Annotated[int, msgspec.Meta(ge=0, le=MAX_STEP)]
    files: dict[str, FileEntry]


class ReleaseManifest(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="release",
):
    """The manifest of a released model."""

    format: str
    model_id: _Id
    version: _Id
    files: dict[str, FileEntry]


Manifest = CheckpointManifest | ReleaseManifest


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of ``MANIFEST.json``, the same for the same content."""
    return canonical_json(manifest)


def decode_manifest(data: bytes) -> Manifest:
    """Read and check a manifest; ValueError says what is wrong with it."""
    manifest: Manifest = decode_strictly(data, Manifest)  # type: ignore[arg-type]
    if manifest.format != FORMAT:
        raise ValueError(f"format {manifest.format!r} is not {FORMAT!r}")
    for name in sorted(manifest.files):
        reason = wrong_name(name)
        if reason:
            raise ValueError(f"file name {_shown(name)} {reason}")
    release = isinstance(manifest, ReleaseManifest)
    missing = sorted((RELEASE_REQUIRED if release else CHECKPOINT_REQUIRED) - set(manifest.files))
    if missing:
        raise ValueError(f"does not list {', '.join(missing)}")
    return manifest


def wrong_name(name: str) -> str:
    """Why ``name`` may not stand in a manifest; empty when it may."""
    if name == MANIFEST:
        return "is the manifest itself"
    if "\0" in name:
        return "holds a NUL"
    if name.startswith("/"):
        return "is an absolute path"
    if "\\" in name:
        return "holds a backslash"
    if ".." in name.split("/"):
        return "leads out of the directory"
    if not _ALLOWED.fullmatch(name):
        return "is neither a plain file name nor heads/<name>.json nor evals/summary.json"
    return ""


def checkpoint_manifest(*, step: int, files: Mapping[str, FileEntry]) -> CheckpointManifest:
    """The manifest of a step directory that holds ``files``."""
    return CheckpointManifest(format=FORMAT, step=step, files=dict(files))


def _shown(name: str) -> str:
    text = ascii(name)
    return text if len(text) <= 80 else text[:77] + "..."
