"""``tinyllm generate`` and ``tinyllm classify``.

Exit codes: 0 done, 2 the command line (also: no such head, an empty text), 8 the directory is no
model that verifies. torch is imported only when they run.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import msgspec

from tinyllm.errors import SpecError
from tinyllm.generation_config import GenerationConfig


def add_parsers(subparsers: Any) -> None:
    """Add both; each sets ``command``, a function of the parsed arguments to an exit code."""
    generate = subparsers.add_parser(
        "generate",
        help="continue a text with a released model or a checkpoint",
        description="Continue PROMPT. What is not given comes from the model's "
        "generation_config.json. The same call prints the same text every time.",
        allow_abbrev=False,
    )
    generate.add_argument("directory", metavar="DIR", type=Path, help="a model directory")
    generate.add_argument("prompt", metavar="PROMPT")
    generate.add_argument("--max-new-tokens", type=int, metavar="N")
    generate.add_argument("--temperature", type=float, metavar="T", help="0: the likeliest token")
    generate.add_argument("--top-k", type=int, metavar="K", help="0: all")
    generate.add_argument("--top-p", type=float, metavar="P")
    generate.add_argument("--seed", type=int, metavar="S")
    generate.add_argument("--stop", action="append", metavar="TEXT", help="ends the output")
    generate.add_argument("--chat", action="store_true", help="PROMPT is a message of a user")
    generate.add_argument("--json", action="store_true", help="print one JSON document")
    generate.set_defaults(command=generate_command)
    classify = subparsers.add_parser(
        "classify",
        help="classify a text with a head of a released model",
        description="Print each class and its probability, the likeliest first.",
        allow_abbrev=False,
    )
    classify.add_argument("directory", metavar="DIR", type=Path, help="a released model")
    classify.add_argument("text", metavar="TEXT")
    classify.add_argument("--head", metavar="NAME", help="may be left out when there is one")
    classify.add_argument("--json", action="store_true", help="print one JSON document")
    classify.set_defaults(command=classify_command)


def generate_command(arguments: argparse.Namespace) -> int:
    """``tinyllm generate``."""
    import torch

    from tinyllm import load
    from tinyllm.engine import generate

    torch.set_num_threads(1)
    model = load(arguments.directory)
    settings = overridden(
        model.generation,
        max_new_tokens=arguments.max_new_tokens,
        temperature=arguments.temperature,
        top_k=arguments.top_k,
        top_p=arguments.top_p,
        seed=arguments.seed,
        stop=arguments.stop,
    )
    done = generate(model, arguments.prompt, settings=settings, as_chat=arguments.chat)
    if arguments.json:
        row = {"text": done.text, "tokens": list(done.tokens), "ended_by": done.ended_by}
        print(json.dumps(row))
    else:
        print(done.text)
    return 0


def classify_command(arguments: argparse.Namespace) -> int:
    """``tinyllm classify``."""
    import torch

    from tinyllm import load
    from tinyllm.engine import classify

    torch.set_num_threads(1)
    shares = classify(load(arguments.directory), arguments.text, head=arguments.head)
    if arguments.json:
        print(json.dumps(shares))
    else:
        for label, share in sorted(shares.items(), key=lambda item: (-item[1], item[0])):
            print(f"{share:.6f}  {label}")
    return 0


def overridden(config: GenerationConfig, **given: Any) -> GenerationConfig:
    """``config`` with what was given (not None) in its place; SpecError when out of bounds."""
    values = msgspec.to_builtins(config) | {k: v for k, v in given.items() if v is not None}
    try:
        return msgspec.convert(values, GenerationConfig)
    except msgspec.ValidationError as error:
        raise SpecError(f"generation settings: {error}") from error
