"""The release gate: everything that keeps a checkpoint from becoming a release, all of it at once.

It reads the checkpoint and the files that are to go with it, keeps their bytes (what was judged is
what is released), and changes nothing. The weights are the one thing that it leaves open on the
quick way: their hash, and whether every value is finite, are found while they are copied. When
anything is wrong the thorough way looks at them too, so that nobody learns of his mistakes one by
one.
"""

import errno
import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tinyllm.card import CARD_FILE, CARD_LIMIT_BYTES, card_problems
from tinyllm.chat import (
    TEMPLATE_LIMIT_BYTES,
    TOKENIZER_CONFIG_FILE,
    encode_tokenizer_config,
    template_problems,
)
from tinyllm.conversion import pieces, plan
from tinyllm.durable import open_directory
from tinyllm.errors import SpecError, StorageFailed
from tinyllm.evals import SUMMARY_LIMIT_BYTES, summary_problems
from tinyllm.forms import DEFAULT_GROUP_SIZE
from tinyllm.generation_config import decode_generation_config
from tinyllm.heads import HEAD_LIMIT_BYTES, decode_head, head_file
from tinyllm.inputs import read_input
from tinyllm.ledger import LEDGER_LIMIT_BYTES, ledger_problems
from tinyllm.manifest import (
    CONFIG_FILE,
    GENERATION_FILE,
    MODEL_FILE,
    OPTIMIZER_FILE,
    STATE_FILE,
    TOKENIZER_FILE,
    FileEntry,
)
from tinyllm.origins import origins_of
from tinyllm.paths import LATEST, check_id, ckpt_dir, model_dir, run_dir, step_name
from tinyllm.reader import list_directory, read_pointer
from tinyllm.shapes import shapes
from tinyllm.spec import ModelConfig, parse_model_config
from tinyllm.state import decode_state
from tinyllm.tokenizer import encode
from tinyllm.verification import MAX_SMALL_BYTES, Verdict, verify_directory
from tinyllm.weights import (
    WeightsLayout,
    WeightsReader,
    WeightsUnusable,
    nonfinite_problems,
    read_layout,
)

LEDGER_FILE = "ledger.json"
SUMMARY_FILE = "evals/summary.json"

# A trainer that goes on may remove the directory that LATEST named a moment ago.
_LOOKS = 5
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class Request:
    """What the command line asks for. ``step`` None: the checkpoint that LATEST names."""

    artifacts: Path
    run_id: str
    model_id: str
    version: str
    card: Path
    ledger: Path
    evals: Path
    step: int | None = None
    dtype: str = "f32"
    group_size: int = DEFAULT_GROUP_SIZE
    heads: tuple[Path, ...] = ()
    chat_template: Path | None = None


@dataclass(slots=True)
class Examined:
    """What the gate saw. ``problems`` empty: it is open, and the rest is there.

    ``files`` are the small files of the release, by name. ``weights`` and ``optimizer`` are open
    descriptors of the checkpoint's files, ``entries`` what its manifest says of them.
    """

    problems: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    step_dir: str = ""
    step: int | None = None
    spec_sha256: str = ""
    config: ModelConfig | None = None
    layout: WeightsLayout | None = None
    entries: Mapping[str, FileEntry] = field(default_factory=dict)
    weights: int = -1
    optimizer: int = -1

    def add(self, what: str, problems: list[str]) -> None:
        """Note that ``what`` has these problems."""
        self.problems += [f"{what}: {problem}" for problem in problems]


def examine(request: Request, stack: ExitStack, *, thorough: bool) -> Examined:
    """Look at everything; what is opened is closed by ``stack``.

    StorageFailed when the disk keeps us from telling.
    """
    found = Examined()
    _names(request, found)
    _checkpoint(request, found, stack, thorough=thorough)
    _card(request, found)
    _ledger(request, found)
    _evals(request, found)
    _heads(request, found)
    _chat(request, found)
    return found


def _names(request: Request, found: Examined) -> None:
    named = True
    for what, text in (("model id", request.model_id), ("model version", request.version)):
        try:
            check_id(what, text)
        except SpecError as error:
            found.problems.append(str(error))
            named = False
    if named:
        target = model_dir(request.artifacts, request.model_id, request.version)
        found.problems += existing(target)


def existing(target: Path) -> list[str]:
    """A problem when something, whatever it is, has the release's name already."""
    if not os.path.lexists(target):
        return []
    return [f"{target} exists: a release is never changed; use another --version"]


def _checkpoint(request: Request, found: Examined, stack: ExitStack, *, thorough: bool) -> None:
    try:
        run = run_dir(request.artifacts, request.run_id)
    except SpecError as error:
        found.problems.append(str(error))
        return
    if not run.is_dir():
        found.problems.append(f"{run}: there is no such run")
        return
    verdict = _verified(request, found, ckpt_dir(run), thorough=thorough)
    if verdict is None:
        return
    for fd in verdict.descriptors.values():
        stack.callback(os.close, fd)
    found.step_dir = verdict.path
    name = os.path.basename(verdict.path)
    if not verdict.verifies:
        found.add(f"checkpoint {name}", [str(problem) for problem in verdict.problems])
        return
    assert verdict.manifest is not None
    found.entries = verdict.manifest.files
    found.weights = verdict.descriptors[MODEL_FILE]
    found.optimizer = verdict.descriptors[OPTIMIZER_FILE]
    found.spec_sha256 = decode_state(verdict.contents[STATE_FILE]).spec_sha256
    _model(found, verdict, name)
    if thorough and found.layout is not None:
        found.add(f"checkpoint {name}: {MODEL_FILE}", _values(request, found, found.layout))


def _verified(request: Request, found: Examined, ckpt: Path, *, thorough: bool) -> Verdict | None:
    """The verdict on the step directory that is asked for, or None and a problem."""
    if not ckpt.is_dir():
        found.problems.append(f"{ckpt}: there is no such directory, so nothing was ever saved")
        return None
    heavy = (MODEL_FILE, OPTIMIZER_FILE)
    with open_directory(str(ckpt)) as directory:
        for look in range(_LOOKS):
            step, problem = request.step, ""
            if step is None:
                pointer = read_pointer(directory)
                step, problem = pointer.step, pointer.problem
            there = list_directory(directory).steps
            offer = ", ".join(str(s) for s in there) or "none"
            if step is None:
                found.problems.append(
                    f"{ckpt / LATEST} {problem}; name a checkpoint with --step (there are: {offer})"
                )
                return None
            if step in there or request.step is None:
                verdict = verify_directory(
                    step_name(step),
                    parent=directory,
                    keep_open=heavy,
                    unhashed=() if thorough else heavy,
                )
                gone = any(p.file == "" and p.errno == errno.ENOENT for p in verdict.problems)
                if gone and request.step is None and look + 1 < _LOOKS:
                    continue
                found.step = step
                return verdict
            found.problems.append(f"run {request.run_id} has no step {step} (there are: {offer})")
            return None
    return None


def _model(found: Examined, verdict: Verdict, name: str) -> None:
    """Whether the checkpoint's files make a model that can be served."""
    where = f"checkpoint {name}"
    contents = verdict.contents
    for file in (CONFIG_FILE, GENERATION_FILE, TOKENIZER_FILE):
        if file in contents:
            found.files[file] = contents[file]
        elif file in found.entries:
            size = found.entries[file].size
            found.add(f"{where}: {file}", [f"has {size} bytes; at most {MAX_SMALL_BYTES} are read"])
    try:
        config = parse_model_config(contents[CONFIG_FILE], where=CONFIG_FILE)
    except SpecError as error:
        found.add(where, [str(error)])
        return
    found.config = config
    if GENERATION_FILE in contents:
        try:
            decode_generation_config(contents[GENERATION_FILE])
        except ValueError as error:
            found.add(f"{where}: {GENERATION_FILE}", [str(error)])
    if TOKENIZER_FILE in contents:
        try:
            encode(
                b"",
                tokenizer=contents[TOKENIZER_FILE],
                vocab_size=config.vocab_size,
                where=TOKENIZER_FILE,
            )
        except SpecError as error:
            found.add(where, [str(error)])
    try:
        layout = read_layout(found.weights, size_bytes=found.entries[MODEL_FILE].size)
    except ValueError as error:
        found.add(f"{where}: {MODEL_FILE}", [str(error)])
        return
    wrong = _misfits(layout, shapes(config))
    found.add(f"{where}: {MODEL_FILE} does not fit {CONFIG_FILE}", wrong)
    found.layout = layout


def _misfits(layout: WeightsLayout, expected: Mapping[str, tuple[int, ...]]) -> list[str]:
    have = {place.name: place.shape for place in layout.tensors}
    wrong = [f"{name} is missing" for name in expected if name not in have]
    for name, shape in have.items():
        if name not in expected:
            wrong.append(f"{name} is unknown")
        elif shape != expected[name]:
            wrong.append(f"{name} is {list(shape)}, not {list(expected[name])}")
    more = len(wrong) - _SHOWN
    return [*wrong[:_SHOWN], f"and {more} more"] if more > 0 else wrong


def _values(request: Request, found: Examined, layout: WeightsLayout) -> list[str]:
    """What is wrong with the values of the weights."""
    path = os.path.join(found.step_dir, MODEL_FILE)
    try:
        with WeightsReader(found.weights, layout, path=path) as reader:
            reader.read_rest()
        if reader.nonfinite or request.dtype == "f32":
            return nonfinite_problems(reader)
        with WeightsReader(found.weights, layout, path=path) as reader:
            for _ in pieces(
                plan(layout, dtype=request.dtype, group_size=request.group_size), reader
            ):
                pass
    except (WeightsUnusable, ValueError) as error:
        return [str(error)]
    return []


def _card(request: Request, found: Examined) -> None:
    _input(found, CARD_FILE, request.card, CARD_LIMIT_BYTES, card_problems)


def _ledger(request: Request, found: Examined) -> None:
    """Needs to know what the model was trained on; without it the rows are judged all the same."""
    sources = []
    if found.step is not None and found.spec_sha256:
        run = run_dir(request.artifacts, request.run_id)
        origins = origins_of(run, step=found.step, spec_sha256=found.spec_sha256)
        if origins.problem:
            found.problems.append(f"run {request.run_id}: {origins.problem}")
        sources = list(origins.sources)
    _input(
        found,
        LEDGER_FILE,
        request.ledger,
        LEDGER_LIMIT_BYTES,
        lambda data: ledger_problems(data, sources),
    )


def _evals(request: Request, found: Examined) -> None:
    def check(data: bytes) -> list[str]:
        return summary_problems(
            data, model_id=request.model_id, run_id=request.run_id, step=found.step
        )

    _input(found, SUMMARY_FILE, request.evals, SUMMARY_LIMIT_BYTES, check)


def _heads(request: Request, found: Examined) -> None:
    for path in request.heads:
        what = f"head {path.name}"
        data = _read(found, what, path, HEAD_LIMIT_BYTES)
        if data is None:
            continue
        try:
            head = decode_head(data)
        except ValueError as error:
            found.add(what, [f"is not a linear head: {error}"])
            continue
        if found.config is not None and head.width != found.config.width:
            found.add(what, [f"its width is {head.width}, the model's is {found.config.width}"])
        if head_file(head.name) in found.files:
            found.add(what, [f"there is another head named {head.name}"])
        found.files[head_file(head.name)] = data


def _chat(request: Request, found: Examined) -> None:
    if request.chat_template is None:
        return
    what = "chat template"
    data = _read(found, what, request.chat_template, TEMPLATE_LIMIT_BYTES)
    if data is None:
        return
    wrong = template_problems(data)
    found.add(what, wrong)
    if not wrong and found.config is not None:
        found.files[TOKENIZER_CONFIG_FILE] = encode_tokenizer_config(
            data.decode(), context=found.config.context
        )


def _input(
    found: Examined,
    name: str,
    path: Path,
    limit_bytes: int,
    check: Callable[[bytes], list[str]],
) -> None:
    """Read one of the files that go with the model, judge it, and keep its bytes as ``name``."""
    data = _read(found, name, path, limit_bytes)
    if data is not None:
        found.add(f"{name} ({path})", check(data))
        found.files[name] = data


def _read(found: Examined, what: str, path: Path, limit_bytes: int) -> bytes | None:
    try:
        return read_input(path, what="the file", limit_bytes=limit_bytes)
    except (SpecError, StorageFailed) as error:
        found.add(what, [str(error)])
        return None
