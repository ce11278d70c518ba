"""Random train specs within valid bounds, for the nightly run.

A spec is drawn from one of the given specs: optimizer, precision, schedule, epoch length,
checkpoint interval and retention are random, the data and the tokenizer stay. Small on purpose: a
run takes a fraction of a second, so that hundreds of them fit into a night.

Specs are written beside the run's results with what they read, under a name made of their content,
so that a case found tonight can be run again next week.
"""

import hashlib
import json
import random
import shutil
from pathlib import Path
from typing import Any

from harness.durable import make_directory, write_durably
from harness.errors import UsageError

MOST_STEPS = 16


def random_spec(rng: random.Random, base: dict[str, Any]) -> dict[str, Any]:
    """A valid train spec, drawn with ``rng``; ``base`` is one as it stands in its file."""
    spec = json.loads(json.dumps(base))
    steps = rng.randint(3, MOST_STEPS)
    heads = rng.choice((1, 2))
    spec["model"].update(
        width=heads * 8 * rng.choice((1, 2)), heads=heads, layers=rng.choice((1, 2)), context=32
    )
    spec["data"]["seq_length"] = rng.choice((8, 16, 32))
    spec["data"]["max_windows"] = rng.randint(2, 40)
    spec.update(
        optimizer=_optimizer(rng),
        precision=rng.choice(("f32", "bf16")),
        schedule={
            "name": rng.choice(("constant", "linear", "cosine")),
            "warmup_steps": rng.randint(0, steps // 2),
            "final_factor": rng.choice((0.0, 0.1, 1.0)),
        },
        seed=rng.getrandbits(62),
        batch_size=rng.randint(1, 6),
        steps=steps,
        ckpt_every=rng.randint(1, max(1, steps - 1)),
        keep_ckpts=rng.randint(1, 4),
        dropout=rng.choice((0.0, 0.1)),
    )
    return dict(spec)


def _optimizer(rng: random.Random) -> dict[str, Any]:
    adamw = {
        "name": "adamw",
        "lr": round(rng.uniform(0.0005, 0.004), 6),
        "weight_decay": rng.choice((0.0, 0.1)),
    }
    name = rng.choice(("adamw", "sgd", "muon"))
    if name == "sgd":
        return {"name": "sgd", "lr": round(rng.uniform(0.01, 0.1), 6), "momentum": 0.9}
    if name == "muon":
        return {"name": "muon", "lr": round(rng.uniform(0.005, 0.02), 6), "adamw": adamw}
    return adamw


def write_spec(spec: dict[str, Any], *, base: Path, directory: Path) -> Path:
    """Write ``spec`` to ``directory`` with the files that it names, copied from beside ``base``.

    Returns the path, ``nightly-<8 hex of its content>.json``. Raises :class:`UsageError` for a
    spec that names files elsewhere than beside itself.
    """
    make_directory(directory)
    named = [source["path"] for source in spec["data"]["sources"]]
    if spec.get("tokenizer") is not None:
        named.append(spec["tokenizer"])
    for name in named:
        if Path(name).name != name:
            raise UsageError(
                f"{base}: {name!r} does not lie beside the spec, so no random spec is made of it"
            )
        if not (directory / name).exists():
            shutil.copyfile(base.parent / name, directory / name)
    text = json.dumps(spec, indent=1, sort_keys=True) + "\n"
    path = directory / f"nightly-{hashlib.sha256(text.encode()).hexdigest()[:8]}.json"
    write_durably(path, text)
    return path
