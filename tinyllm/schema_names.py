"""The JSON Schemas that are our contracts, beside the structs that read the same files.

The schemas (draft 2020-12, in ``tinyllm/schemas/``) are for everybody; the structs are what tinyllm
decodes with. A test holds the one against the other.
"""

import json
from importlib.resources import files
from typing import Any

MANIFEST_SCHEMA = "manifest.schema.json"
TRAINER_STATE_SCHEMA = "trainer-state.schema.json"
PROGRESS_SCHEMA = "progress.schema.json"
GENERATION_SCHEMA = "generation-config.schema.json"
EVAL_SCHEMA = "eval-result.schema.json"
HEAD_SCHEMA = "linear-head.schema.json"
LEDGER_SCHEMA = "ledger-row.schema.json"

SCHEMAS = (
    EVAL_SCHEMA,
    GENERATION_SCHEMA,
    HEAD_SCHEMA,
    LEDGER_SCHEMA,
    MANIFEST_SCHEMA,
    PROGRESS_SCHEMA,
    TRAINER_STATE_SCHEMA,
)


def load_schema(name: str) -> dict[str, Any]:
    """One of ``SCHEMAS`` as a JSON document."""
    text = files("tinyllm").joinpath("schemas", name).read_text(encoding="utf-8")
    document: dict[str, Any] = json.loads(text)
    return document
