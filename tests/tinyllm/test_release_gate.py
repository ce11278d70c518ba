"""The release gate: each fault by its own message, all of them at once, and nothing left behind."""

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tinyllm import releases, runs
from tests.tinyllm.checkpoints import flip, rehash
from tests.tinyllm.releases import STEP, World, problems, set_value, trained, world
from tinyllm import gate, origins
from tinyllm.card import card_template, placeholders
from tinyllm.cli import main
from tinyllm.errors import ReleaseRefused
from tinyllm.manifest import STATE_FILE
from tinyllm.tokenizer import TOKENIZER_LIMIT_BYTES
from tinyllm.verification import MAX_SMALL_BYTES


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture
def asked(source: Path, tmp_path: Path) -> World:
    return world(source, tmp_path)


def write(file: str, content: str | bytes) -> Callable[[World], None]:
    data = content.encode() if isinstance(content, str) else content
    return lambda asked: (asked.inputs / file).write_bytes(data) and None


def gone(file: str) -> Callable[[World], None]:
    return lambda asked: (asked.inputs / file).unlink()


def edited(file: str, change: Callable[[Any], Any]) -> Callable[[World], None]:
    return lambda asked: asked.edit(file, change)


def in_step(file: str, change: Callable[[Path], Any]) -> Callable[[World], None]:
    return lambda asked: change(asked.step_dir / file) and None


SHA = "1c8896b55825a368fd1016e000a57f970d9eb2528dec7c8796f5fdd5bc41830b"
HEX = "[0-9a-f]{64}"
ROW = {"source": "essays", "sha256": SHA, "allowed_uses": ["train"], "revoked": False}
COVERS = f"does not cover the source essays \\(sha256 {SHA}\\) that the model was trained on"

CARD = r"MODEL_CARD\.md(?: \(.*\))?: "
LEDGER = r"ledger\.json(?: \(.*\))?: "
EVALS = r"evals/summary\.json(?: \(.*\))?: "
HEAD = r"head head\.json: "
CHAT = r"chat template: "
STEP_DIR = rf"checkpoint {STEP}: "

# What is broken, and the whole of what the gate then says.
CARDS = {
    "is missing": (gone("MODEL_CARD.md"), [CARD + ".* cannot be opened: No such file .*"]),
    "is empty": (write("MODEL_CARD.md", " \n"), [CARD + "is empty"]),
    "is not text": (write("MODEL_CARD.md", b"# x\xff"), [CARD + "is not UTF-8 at byte 3"]),
    "has a placeholder left": (
        write("MODEL_CARD.md", "# x {{ licence }} and {{other}}, {{licence}}"),
        [CARD + r"still has the placeholder \{\{licence}}", CARD + r".* \{\{other}}"],
    ),
}
LEDGERS = {
    "is missing": (gone("ledger.json"), [LEDGER + ".* cannot be opened: No such file .*"]),
    "is not JSON": (
        write("ledger.json", "[{"),
        [LEDGER + "is not a JSON array of ledger rows: .*"],
    ),
    "is not an array": (
        write("ledger.json", json.dumps(ROW)),
        [LEDGER + "is not a JSON array of ledger rows: Expected `array`, got `object`"],
    ),
    "is empty": (write("ledger.json", "[]"), [LEDGER + COVERS + ": no row"]),
    "is about another content": (
        edited("ledger.json", lambda _: [ROW | {"sha256": "0" * 64}]),
        [LEDGER + COVERS + ": no row is of its content, only of another"],
    ),
    "does not allow training": (
        edited("ledger.json", lambda _: [ROW | {"allowed_uses": ["evaluate", "training"]}]),
        [LEDGER + r"row 1 \(essays\) allows evaluate, training, not train"],
    ),
    "allows nothing, and is revoked": (
        edited("ledger.json", lambda _: [ROW | {"allowed_uses": [], "revoked": True}]),
        [
            LEDGER + r"row 1 \(essays\) allows nothing, not train",
            LEDGER + r"row 1 \(essays\) is revoked",
        ],
    ),
    "has a revoked row beside a good one": (
        edited("ledger.json", lambda _: [ROW, ROW | {"revoked": True}]),
        [LEDGER + r"row 2 \(essays\) is revoked"],
    ),
    "has a row that is none": (
        edited("ledger.json", lambda _: [ROW, {"source": "more"}]),
        [LEDGER + "row 2 is not a ledger row: Object missing required field `sha256`"],
    ),
    "has one word for several": (
        edited("ledger.json", lambda _: [ROW | {"allowed_uses": "train"}]),
        [
            LEDGER + "row 1 is not a ledger row: Expected `array`, got `str` .*",
            LEDGER + COVERS + ": no row",
        ],
    ),
    "says a thing twice": (
        write("ledger.json", json.dumps([ROW])[:-2] + ', "revoked": false}]'),
        [LEDGER + ".*the key 'revoked' stands twice in one object"],
    ),
    "has a number that is none": (
        write("ledger.json", json.dumps([ROW])[:-2] + ', "price": 1e999}]'),
        [LEDGER + ".*1e999 is too large for a number"],
    ),
}


def failing(**changes: Any) -> Callable[[Any], None]:
    def change(summary: Any) -> None:
        summary["results"][0].update(changes)

    return change


def summary_of(**changes: Any) -> Callable[[World], None]:
    return edited("summary.json", lambda summary: summary.update(changes))


EVALUATIONS = {
    "are missing": (gone("summary.json"), [EVALS + ".* cannot be opened: No such file .*"]),
    "are rubbish": (write("summary.json", "null"), [EVALS + "is not an evaluation summary: .*"]),
    "have no results": (summary_of(results=[]), [EVALS + "is not an evaluation summary: .*"]),
    "are of another model": (
        summary_of(model_id="other"),
        [EVALS + "is of another model: other, not smoke"],
    ),
    "are of another run": (summary_of(run_id="q"), [EVALS + "is of another run: q, not r"]),
    "are of another step": (summary_of(step=2), [EVALS + "is of another step: 2, not 3"]),
    "did not pass": (
        summary_of(passed=False),
        [EVALS + "the suite smoke did not pass"],
    ),
    "claim what the numbers do not say": (
        edited("summary.json", failing(value=6.5)),
        [
            EVALS + r"result 1 \(essays\) did not pass: nats a token is 6\.5, above 5\.95, "
            "but it claims to have passed",
            EVALS + "the suite smoke claims to have passed, but not every result did",
        ],
    ),
    "claim it the other way round": (
        edited("summary.json", failing(higher_is_better=True)),
        [
            EVALS + r"result 1 \(essays\) did not pass: nats a token is 5\.9, below 5\.95, .*",
            EVALS + "the suite smoke claims .*",
        ],
    ),
    "say that one failed, although it reached its threshold": (
        edited("summary.json", failing(passed=False)),
        [EVALS + r"result 1 \(essays\) did not pass", EVALS + "the suite smoke claims .*"],
    ),
    "hold a value that is no number": (
        write(
            "summary.json", (releases.EXAMPLE / "summary.json").read_text().replace("5.9,", "NaN,")
        ),
        [EVALS + "is not an evaluation summary: .*"],
    ),
}
HEADS = {
    "is missing": (gone("head.json"), [HEAD + ".* cannot be opened: No such file .*"]),
    "is no head": (write("head.json", "[]"), [HEAD + "is not a linear head: .*"]),
    "is of another width": (
        edited(
            "head.json",
            lambda h: h.update(width=16, weight=[row[:16] for row in h["weight"]]),
        ),
        [HEAD + "its width is 16, the model's is 32"],
    ),
    "has a row of another width": (
        edited("head.json", lambda h: h.update(weight=[h["weight"][0], h["weight"][1][1:]])),
        [HEAD + "is not a linear head: row 2 has 31 weights, its width is 32"],
    ),
    "has a class without a bias": (
        edited("head.json", lambda h: h.update(bias=[0.5])),
        [HEAD + "is not a linear head: it has 2 classes, 2 rows of weights and 1 biases"],
    ),
    "has one class twice": (
        edited("head.json", lambda h: h.update(classes=["calm", "calm"])),
        [HEAD + "is not a linear head: two of its classes have one name"],
    ),
    "has a name that leads elsewhere": (
        edited("head.json", lambda h: h.update(name="../x")),
        [HEAD + "is not a linear head: .*"],
    ),
    "holds a number beyond float32": (
        edited("head.json", lambda h: h.update(bias=[0.0, 1e39])),
        [HEAD + "is not a linear head: .*"],
    ),
}
CHATS = {
    "is missing": (gone("chat_template.jinja"), [CHAT + ".* cannot be opened: No such file .*"]),
    "is not text": (write("chat_template.jinja", b"\xff"), [CHAT + "is not UTF-8 at byte 0"]),
    "does not end": (
        write("chat_template.jinja", "{% for m in messages %}"),
        [CHAT + "is not a chat template: .*"],
    ),
    "leaves the user out": (
        write("chat_template.jinja", "assistant:"),
        [CHAT + "leaves out the message of a user"],
    ),
    "refuses": (
        write("chat_template.jinja", "{{ raise_exception('no') }}"),
        [CHAT + "cannot be rendered: ValueError: no"],
    ),
    "never ends": (
        write(
            "chat_template.jinja",
            "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
        ),
        [CHAT + "takes more than 2 s or 256 MiB for one word"],
    ),
    "takes all memory": (
        write("chat_template.jinja", "{{ 'x' * 10**10 }}{{ messages[0].content }}"),
        [CHAT + "cannot be rendered: MemoryError.*"],
    ),
    "reaches for what is not its own": (
        write("chat_template.jinja", "{{ messages.__class__.__mro__ }}"),
        [CHAT + "is not a chat template: access to attribute '__class__' .*"],
    ),
}
MODEL = "model.safetensors"
CHECKPOINTS = {
    "has changed weights": (
        in_step(MODEL, lambda p: flip(p, p.stat().st_size - 1)),
        [STEP_DIR + f"{MODEL}: sha256 is {HEX}, the manifest says {HEX}"],
    ),
    "has a changed optimizer, which is not even released": (
        in_step("optimizer.safetensors", lambda p: flip(p, p.stat().st_size - 1)),
        [STEP_DIR + f"optimizer.safetensors: sha256 is {HEX}, the manifest says {HEX}"],
    ),
    "has three files changed": (
        lambda asked: (
            [
                flip(asked.step_dir / name, 40)
                for name in (MODEL, "config.json", "trainer_state.json")
            ]
            and None
        ),
        [
            STEP_DIR + f"{name}: sha256 is .*"
            for name in ("config.json", MODEL, "trainer_state.json")
        ],
    ),
    "is cut short": (
        in_step(MODEL, lambda p: p.write_bytes(p.read_bytes()[:-1])),
        [STEP_DIR + f"{MODEL}: is [0-9]+ bytes long, the manifest says [0-9]+"],
    ),
    "has no manifest": (
        in_step("MANIFEST.json", lambda p: p.unlink()),
        [STEP_DIR + "MANIFEST.json: is missing"],
    ),
    "has a file that nobody vouches for": (
        in_step("more", lambda p: p.write_text("x")),
        [STEP_DIR + "more: is not in the manifest"],
    ),
    "is gone": (
        lambda asked: asked.step_dir.rename(asked.artifacts / "elsewhere") and None,
        [STEP_DIR + "is missing"],
    ),
    "is named by nothing": (
        lambda asked: (asked.step_dir.parent / "LATEST").unlink(),
        [r".*/LATEST .*; name a checkpoint with --step \(there are: 3\)"],
    ),
    "was never saved": (
        lambda asked: asked.step_dir.parent.rename(asked.artifacts / "elsewhere") and None,
        [".*/runs/r/ckpt: there is no such directory, so nothing was ever saved"],
    ),
    "holds a value that is not finite": (
        lambda asked: set_value(asked, "head.weight", 70, float("inf")),
        [STEP_DIR + f"{MODEL}: head.weight is inf at element 70; weights must be finite"],
    ),
    "was trained on nobody knows what": (
        lambda asked: (asked.artifacts / "runs/r/progress.jsonl").unlink(),
        ["run r: cannot tell which data the model was trained on: is missing"],
    ),
}
GROUPS = {
    "card": CARDS,
    "ledger": LEDGERS,
    "evaluations": EVALUATIONS,
    "head": HEADS,
    "chat template": CHATS,
    "checkpoint": CHECKPOINTS,
}
FAULTS = {
    f"{group} {name}": fault for group, faults in GROUPS.items() for name, fault in faults.items()
}


def matched(found: list[str], expected: list[str]) -> None:
    assert len(found) == len(expected), found
    for line, pattern in zip(found, expected, strict=True):
        assert re.fullmatch(pattern, line), (line, pattern)


def test_without_a_fault_the_gate_opens(asked: World) -> None:
    assert asked.release().path == str(asked.target)


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_message(asked: World, name: str) -> None:
    fault, expected = FAULTS[name]
    fault(asked)
    matched(problems(asked), expected)


def test_all_of_them_are_listed_at_once_and_the_exit_code_is_6(
    asked: World, capsys: pytest.CaptureFixture[str]
) -> None:
    together = [
        CHECKPOINTS["has changed weights"],
        CHECKPOINTS["has a changed optimizer, which is not even released"],
        CARDS["has a placeholder left"],
        LEDGERS["allows nothing, and is revoked"],
        EVALUATIONS["claim what the numbers do not say"],
        HEADS["is no head"],
        CHATS["does not end"],
    ]
    expected = [rf"{asked.target} exists: a release is never changed; use another --version"]
    for fault, lines in together:
        fault(asked)
        expected += lines
    asked.target.mkdir(parents=True)
    matched(problems(asked), expected)
    code = main(asked.words())
    captured = capsys.readouterr()
    assert (code, captured.out) == (6, "")
    assert captured.err.startswith("tinyllm: error: smoke 1.0 is not released, 11 problems:\n  - ")
    assert captured.err.count("\n  - ") == 11
    assert captured.err.endswith("\nnothing was written\n")


def test_what_only_the_copy_would_show_is_told_with_the_rest(asked: World) -> None:
    """A value that is not finite is found while the weights are copied; the card is wrong too."""
    for name, element, value in [
        ("embed.tokens", 5, float("nan")),
        ("norm.bias", 0, float("-inf")),
    ]:
        set_value(asked, name, element, value)
    CARDS["is empty"][0](asked)
    for dtype in ("f32", "bf16", "int4"):
        matched(
            problems(asked, dtype=dtype),
            [
                STEP_DIR + f"{MODEL}: embed.tokens is nan at element 5; weights must be finite",
                STEP_DIR + f"{MODEL}: norm.bias is -inf at element 0; weights must be finite",
                CARD + "is empty",
            ],
        )


@pytest.mark.parametrize("dtype", ["bf16", "int4"])
def test_a_weight_too_large_for_bfloat16(asked: World, dtype: str) -> None:
    set_value(asked, "norm.weight", 3, 3.4e38)
    [line] = problems(asked, dtype=dtype)
    assert line.endswith("norm.weight is 3.3999999521443642e+38 at element 3: too large for BF16")
    assert asked.release(dtype="f32").errors == ()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"model_id": "a/b"}, ["model id 'a/b': use 1 to 64 letters, .*"]),
        ({"model_id": ".."}, ["model id '..': .*"]),
        ({"model_id": ""}, ["model id '': .*"]),
        ({"version": "../1"}, ["model version '../1': .*"]),
        ({"version": "."}, ["model version '.': .*"]),
        ({"version": ".1.0.tmp"}, ["model version '.1.0.tmp': .*"]),
        ({"version": "1.0\n"}, [r"model version '1.0\\n': .*"]),
        ({"version": "v" * 65}, ["model version 'v+': .*"]),
        ({"model_id": "/", "version": "/"}, ["model id '/': .*", "model version '/': .*"]),
        ({"run_id": "../r"}, [r"run id '\.\./r': .*"]),
        ({"run_id": "q"}, [".*/runs/q: there is no such run"]),
        ({"step": 2}, [r"run r has no step 2 \(there are: 3\)"]),
        ({"step": -3}, [r"run r has no step -3 \(there are: 3\)"]),
        ({"step": 10**9}, [r"run r has no step 1000000000 \(there are: 3\)"]),
    ],
)
def test_names_and_steps_that_are_none(
    asked: World, changes: dict[str, Any], expected: list[str]
) -> None:
    if "model_id" in changes:
        asked.edit("summary.json", lambda summary: summary.update(model_id=changes["model_id"]))
        # A summary cannot be of such a model either, so it is one problem more.
        expected = [*expected, EVALS + "is not an evaluation summary: .*"]
    if "run_id" in changes:
        expected = [*expected, EVALS + f"is of another run: r, not {re.escape(changes['run_id'])}"]
    matched(problems(asked, **changes), expected)


@pytest.mark.parametrize("what", ["complete", "empty", "file", "dangling link", "other's"])
def test_a_version_that_exists_is_refused_whatever_its_state(asked: World, what: str) -> None:
    target = asked.target
    if what == "complete":
        asked.release()
    else:
        target.parent.mkdir(parents=True)
    if what in ("empty", "other's"):
        target.mkdir()
    if what == "other's":
        (target / "MANIFEST.json").write_text("{")
    if what == "file":
        target.write_text("")
    if what == "dangling link":
        target.symlink_to("nowhere")
    matched(
        problems(asked),
        [rf"{target} exists: a release is never changed; use another --version"],
    )


def test_a_new_version_beside_it_is_not(asked: World) -> None:
    asked.release()
    before = releases.everything(asked.target)
    assert asked.release(version="1.1").manifest.version == "1.1"
    assert releases.everything(asked.target) == before


def test_the_template_of_the_card_is_no_card(asked: World) -> None:
    asked.request.card.write_text(card_template())
    names = placeholders(card_template())
    assert len(names) == 13
    matched(problems(asked), [CARD + f"still has the placeholder {{{{{name}}}}}" for name in names])
    text = card_template()
    for name in names:
        text = text.replace(f"{{{{{name}}}}}", f"the {name}")
    asked.request.card.write_text(text)
    assert asked.release().manifest.files["MODEL_CARD.md"].size == len(text)


def test_two_heads_of_one_name(asked: World) -> None:
    head = asked.request.heads[0]
    second = head.with_name("second.json")
    second.write_bytes(head.read_bytes())
    matched(
        problems(asked, heads=(head, second)),
        [r"head second\.json: there is another head named tone"],
    )


def test_inputs_that_are_no_files_are_neither_waited_for_nor_read(asked: World) -> None:
    for path in (asked.request.card, asked.request.ledger):
        path.unlink()
    os.mkfifo(asked.request.card)
    asked.request.ledger.mkdir()
    asked.request.heads[0].write_bytes(b"[" * (gate.HEAD_LIMIT_BYTES + 1))
    matched(
        problems(asked),
        [
            CARD + ".* is not a regular file",
            LEDGER + ".* is not a regular file",
            HEAD + f".* has {gate.HEAD_LIMIT_BYTES + 1} bytes; at most .* are read",
        ],
    )


def test_json_that_nests_for_ever(asked: World) -> None:
    for file in ("ledger.json", "summary.json", "head.json"):
        write(file, "[" * 200_000)(asked)
    assert [line.split(":")[0].split(" (")[0] for line in problems(asked)] == [
        "ledger.json",
        "evals/summary.json",
        "head head.json",
    ]


def test_weights_that_do_not_fit_the_model(asked: World) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["more"] = tensors.pop("norm.bias")
        tensors["head.weight"] = tensors["head.weight"][:-1].copy()

    releases.change_weights(asked, change)
    fits = STEP_DIR + f"{MODEL} does not fit config.json: "
    matched(
        problems(asked),
        [
            fits + "norm.bias is missing",
            fits + r"head.weight is \[383, 32], not \[384, 32]",
            fits + "more is unknown",
        ],
    )


def test_weights_of_another_type(asked: World) -> None:
    def change(tensors: dict[str, Any]) -> None:
        tensors["norm.bias"] = tensors["norm.bias"].astype("float16")

    releases.change_weights(asked, change)
    [line] = problems(asked)
    assert line.endswith("norm.bias is F16; the parameters of a checkpoint are F32")


def test_a_tokenizer_that_is_too_long_to_be_kept_is_not_left_out(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (asked.step_dir / "tokenizer.json").stat().st_size
    assert size > max((asked.step_dir / n).stat().st_size for n in ("config.json", STATE_FILE))
    monkeypatch.setattr("tinyllm.verification.MAX_SMALL_BYTES", size - 1)
    monkeypatch.setattr("tinyllm.gate.MAX_SMALL_BYTES", size - 1)
    [line] = problems(asked)
    assert line == (
        f"checkpoint {STEP}: tokenizer.json: has {size} bytes; at most {size - 1} are read"
    )


def test_whatever_a_trainer_takes_for_a_tokenizer_is_kept() -> None:
    assert TOKENIZER_LIMIT_BYTES <= MAX_SMALL_BYTES


def test_settings_and_a_tokenizer_that_no_engine_could_use(asked: World) -> None:
    (asked.step_dir / "generation_config.json").write_text('{"temperature": -1}')
    (asked.step_dir / "tokenizer.json").write_text("{}")
    rehash(asked.step_dir)
    matched(
        problems(asked),
        [
            STEP_DIR + r"generation_config\.json: Expected `float` >= 0.*",
            STEP_DIR + r"tokenizer\.json: the tokenizer is not a tokenizer\.json: .*",
        ],
    )


# ---------------------------------------------------------- what the model was trained on


def two_sources(directory: Path) -> list[dict[str, str]]:
    sources = []
    for name in ("letters", "notes"):
        path = directory / f"{name}.txt"
        path.write_text((runs.SMOKE / "corpus.txt").read_text() + name)
        sources.append({"name": name, "path": str(path)})
    return sources


def test_every_source_must_be_covered(tmp_path: Path) -> None:
    spec = runs.write_spec(
        tmp_path / "spec.json",
        data={"sources": two_sources(tmp_path), "seq_length": 16, "max_windows": 12},
        steps=4,
        ckpt_every=4,
    )
    assert runs.train(tmp_path / "trained", spec).code == 0
    asked = world(tmp_path / "trained", tmp_path / "world").asking(heads=(), chat_template=None)
    asked.edit("summary.json", lambda summary: summary.update(step=4))
    found = problems(asked)
    [start, *_] = runs.lines(tmp_path / "trained")
    recorded = {s["name"]: s["sha256"] for s in start["sources"]}
    assert [re.sub(r"^ledger\.json \(.*\): ", "", line) for line in found] == [
        f"does not cover the source {name} (sha256 {recorded[name]}) that the model was trained "
        "on: no row"
        for name in ("letters", "notes")
    ]
    rows = [ROW | {"source": name, "sha256": sha} for name, sha in recorded.items()]
    asked.edit("ledger.json", lambda _: rows[:1])
    assert len(problems(asked)) == 1
    asked.edit("ledger.json", lambda _: [*rows, ROW | {"source": "further-up", "sha256": "1" * 64}])
    assert asked.release().step == 4


def test_a_run_that_changed_its_data_had_both(tmp_path: Path) -> None:
    first, second = two_sources(tmp_path)
    content: dict[str, Any] = {"steps": 4, "ckpt_every": 2, "keep_ckpts": 2}
    data = {"seq_length": 16, "max_windows": 12}
    path = tmp_path / "spec.json"
    spec = runs.write_spec(path, data={"sources": [first], **data}, **content)
    trained_to = tmp_path / "trained"
    killed = runs.train(trained_to, spec, stop_at=("step.began", 3))
    assert killed.code == -9
    spec = runs.write_spec(path, data={"sources": [second], **data}, **content)
    assert runs.train(trained_to, spec, "--resume", "--allow-spec-change").code == 0
    asked = world(trained_to, tmp_path / "world").asking(heads=(), chat_template=None)

    def uncovered(step: int) -> list[str]:
        asked.edit("summary.json", lambda summary: summary.update(step=step))
        return [re.findall(r"the source (\S+)", line)[0] for line in problems(asked, step=step)]

    assert uncovered(2) == ["letters"]
    assert uncovered(4) == ["letters", "notes"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda lines: [b"x" * 2 * (1 << 20) + b"\n", *lines], "line 1 has 1048576 bytes or more"),
        (lambda lines: [*lines, b"y" * (1 << 20)], "bytes or more"),
        (lambda lines: [b"{}\n", *lines], "line 1 is not one that a run writes"),
        (lambda lines: lines[1:], "no attempt is recorded with the checkpoint's train spec"),
        (lambda _: [], "no attempt is recorded with the checkpoint's train spec"),
    ],
)
def test_a_record_that_cannot_be_read_lets_nobody_guess(
    asked: World, change: Callable[[list[bytes]], list[bytes]], says: str
) -> None:
    path = asked.artifacts / "runs" / "r" / origins.PROGRESS_FILE
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    [line] = problems(asked)
    assert says in line


def test_a_torn_last_line_is_a_crash_and_no_obstacle(asked: World) -> None:
    path = asked.artifacts / "runs" / "r" / origins.PROGRESS_FILE
    path.write_bytes(path.read_bytes() + b'{"kind":"resu')
    assert asked.release().step == 3


def test_the_refusal_says_what_it_knew_when_a_second_look_finds_nothing(
    asked: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    CARDS["is empty"][0](asked)
    real = gate.examine
    good = (releases.EXAMPLE / "MODEL_CARD.md").read_bytes()

    def mended_meanwhile(*arguments: Any, **more: Any) -> Any:
        found = real(*arguments, **more)
        asked.request.card.write_bytes(good)
        return found

    monkeypatch.setattr("tinyllm.release.examine", mended_meanwhile)
    with pytest.raises(ReleaseRefused, match=r"1 problem:\n  - MODEL_CARD\.md .*: is empty"):
        asked.release()
