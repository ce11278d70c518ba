"""Models as an engine runs them: the same text every time, from each form; and heads."""

import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import tinyllm
from tests.tinyllm import runs
from tests.tinyllm.releases import World, trained, world, writable
from tinyllm import chat, pcg32
from tinyllm.cli import main
from tinyllm.engine import candidates, choose, classify, embed, generate
from tinyllm.errors import ModelUnusable, SpecError
from tinyllm.forms import DTYPES
from tinyllm.generation_config import GenerationConfig
from tinyllm.loading import Model
from tinyllm.model import hidden, logits
from tinyllm.quantize import dequantise

PROMPT = "The first snow"
FORMS = (*DTYPES, "checkpoint")


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> World:
    """A checkpoint, and a release of it in each form."""
    directory = tmp_path_factory.mktemp("engine")
    asked = world(trained(directory / "trained"), directory / "world")
    for dtype in DTYPES:
        asked.release(dtype=dtype, version=dtype)
    return asked


def place(asked: World, form: str) -> Path:
    return asked.step_dir if form == "checkpoint" else asked.target.with_name(form)


@pytest.fixture(scope="module")
def models(asked: World) -> dict[str, Model]:
    return {form: tinyllm.load(place(asked, form)) for form in FORMS}


def said(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


# --------------------------------------------------------------------------------- sampling

FIVE = np.array([0.0, 2.0, 1.0, 2.0, -1.0], dtype=np.float32)


def kept(**settings: Any) -> list[int]:
    order, shares = candidates(FIVE, GenerationConfig(**settings))
    assert len(order) == len(shares)
    return order.tolist()


def test_candidates_are_likeliest_first_and_ties_go_to_the_smaller_id() -> None:
    assert kept() == [1, 3, 2, 0, 4]
    assert kept(top_k=3) == [1, 3, 2]
    assert kept(top_k=99) == [1, 3, 2, 0, 4]
    _, shares = candidates(FIVE, GenerationConfig())
    exact = [math.exp(x) / sum(math.exp(y) for y in FIVE.tolist()) for x in (2, 2, 1, 0, -1)]
    assert shares.tolist() == pytest.approx(exact, rel=1e-12)


def test_top_p_keeps_the_fewest_that_reach_it() -> None:
    """The shares are 0.389, 0.389, 0.143, 0.053, 0.019 and a bit."""
    assert [len(kept(top_p=p)) for p in (0.01, 0.38, 0.4, 0.7, 0.8, 0.93, 0.98, 0.99, 1.0)] == [
        1, 1, 2, 2, 3, 4, 4, 5, 5,
    ]  # fmt: skip


def test_top_p_looks_at_what_top_k_left() -> None:
    """Of the two likeliest each has half, so 0.5 is reached by one."""
    assert kept(top_k=2, top_p=0.5) == [1]
    assert kept(top_k=2, top_p=0.51) == [1, 3]


def test_temperature_comes_first() -> None:
    assert kept(temperature=0.1, top_p=0.9) == [1, 3]
    assert kept(temperature=100.0, top_p=0.9) == [1, 3, 2, 0, 4]


def test_temperature_0_takes_the_likeliest_and_draws_nothing() -> None:
    generator = pcg32.seeded(1, sequence=2)
    assert choose(FIVE, GenerationConfig(temperature=0), generator) == (1, generator)


def test_a_draw_takes_each_token_as_often_as_it_is_likely() -> None:
    how, generator = GenerationConfig(top_k=3), pcg32.seeded(5, sequence=2)
    counts = dict.fromkeys(range(5), 0)
    for _ in range(4000):
        token, generator = choose(FIVE, how, generator)
        counts[token] += 1
    _, shares = candidates(FIVE, how)
    for token, share in zip([1, 3, 2], shares.tolist(), strict=True):
        assert counts[token] == pytest.approx(4000 * share, abs=4 * math.sqrt(4000 * share))
    assert counts[0] == counts[4] == 0


@given(
    st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12),
    st.floats(0, 100),
    st.integers(0, 15),
    st.floats(0, 1, exclude_min=True),
    st.integers(0, 2**63 - 1),
)
def test_any_settings_choose_a_token_that_may_come(
    values: Sequence[float], temperature: float, top_k: int, top_p: float, seed: int
) -> None:
    how = GenerationConfig(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    scores: npt.NDArray[np.float32] = np.array(values, dtype=np.float32)
    token, _ = choose(scores, how, pcg32.seeded(seed, sequence=2))
    assert 0 <= token < len(values)
    if temperature == 0 or top_k == 1:
        assert token == int(np.argmax(scores))
    else:
        order, shares = candidates(scores, how)
        assert token in order
        assert np.all(np.diff(shares) <= 0)


# --------------------------------------------------------------------------- loading each form


def test_each_form_is_loaded_for_what_it_is(models: dict[str, Model]) -> None:
    assert {form: models[form].stored_as for form in FORMS} == {
        "f32": "f32",
        "bf16": "bf16",
        "int4": "int4",
        "checkpoint": "f32",
    }
    for form, model in models.items():
        assert {v.dtype for v in model.parameters.values()} == {torch.float32}
        assert model.generation.top_k == 40
        assert (model.chat is None) is (form == "checkpoint")
        assert sorted(model.heads) == ([] if form == "checkpoint" else ["tone"])


def test_the_parameters_are_those_of_the_formula(asked: World, models: dict[str, Model]) -> None:
    weights = load_file(asked.step_dir / "model.safetensors")
    stored = load_file(place(asked, "int4") / "model.safetensors")
    quantised = 0
    for name, value in weights.items():
        assert torch.equal(models["checkpoint"].parameters[name], value)
        assert torch.equal(models["f32"].parameters[name], value)
        rounded = value.to(torch.bfloat16).float()
        assert torch.equal(models["bf16"].parameters[name], rounded)
        int4 = models["int4"].parameters[name]
        if f"{name}.qweight" in stored:
            quantised += 1
            packed, scales = (stored[f"{name}.{part}"].numpy() for part in ("qweight", "scales"))
            assert int4.numpy().tobytes() == dequantise(packed, scales).tobytes()
        else:
            assert torch.equal(int4, rounded)
    assert quantised == 7


def test_f32_computes_what_the_checkpoint_does_and_the_others_nearly(
    models: dict[str, Model],
) -> None:
    tokens = torch.arange(20).reshape(1, 20)
    results = {
        form: logits(model.parameters, tokens, config=model.config)
        for form, model in models.items()
    }
    assert torch.equal(results["f32"], results["checkpoint"])
    for form, limit in (("bf16", 0.02), ("int4", 0.5)):
        change = (results[form] - results["f32"]).norm() / results["f32"].norm()
        assert 0 < change < limit


def test_a_directory_without_a_manifest_only_when_asked(asked: World, tmp_path: Path) -> None:
    """What another tool made: the files that an engine needs, and nothing else."""
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        shutil.copy(asked.step_dir / name, bare / name)
    with pytest.raises(ModelUnusable, match=r"MANIFEST\.json: is missing"):
        tinyllm.load(bare)
    model = tinyllm.load(str(bare), verify=False)
    assert (model.generation, model.heads, model.chat) == (GenerationConfig(), {}, None)
    (bare / "tokenizer.json").unlink()
    with pytest.raises(ModelUnusable, match=r"tokenizer\.json is not there, but config\.json"):
        tinyllm.load(bare, verify=False)
    (bare / "config.json").unlink()
    with pytest.raises(ModelUnusable, match=r"config\.json: is missing"):
        tinyllm.load(bare, verify=False)


def broken(asked: World, tmp_path: Path, form: str, **changes: torch.Tensor | None) -> str:
    """Why a model whose weights were changed cannot be loaded."""
    copy = tmp_path / "copy"
    shutil.copytree(place(asked, form), copy)
    writable(copy)
    tensors: dict[str, torch.Tensor | None] = dict(load_file(copy / "model.safetensors"))
    tensors.update(changes)
    save_file({n: t for n, t in tensors.items() if t is not None}, copy / "model.safetensors")
    with pytest.raises(ModelUnusable) as raised:
        tinyllm.load(copy, verify=False)
    shutil.rmtree(copy)
    return str(raised.value).removeprefix(f"{copy}: ")


def test_weights_that_do_not_fit_are_named(asked: World, tmp_path: Path) -> None:
    head = "head.weight"

    def why(form: str, **changes: Any) -> str:
        return broken(asked, tmp_path, form, **changes)

    assert why("f32", **{head: None}) == "model.safetensors has no head.weight"
    assert why("f32", **{head: torch.zeros(2, 2)}) == "head.weight is [2, 2], not [384, 32]"
    assert why("f32", **{head: torch.zeros(384, 32).half()}) == (
        "head.weight is torch.float16, not F32 or BF16"
    )
    assert why("f32", x=torch.zeros(1)) == "model.safetensors has tensors of no use: x"
    assert why("int4", **{f"{head}.scales": None}) == "model.safetensors has no head.weight"
    for scales in (torch.zeros(383, 1), torch.zeros(384, 2), torch.zeros(384, 1).double()):
        assert "do not go together in groups of 32, 64, 128" in why(
            "int4", **{f"{head}.scales": scales}
        )
    packed = torch.zeros(383, 16, dtype=torch.uint8)
    assert why("int4", **{f"{head}.qweight": packed, f"{head}.scales": torch.zeros(383, 1)}) == (
        "head.weight is [383, 32], not [384, 32]"
    )


def test_a_head_of_another_width_or_name(asked: World, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(place(asked, "f32"), copy)
    writable(copy)
    head = json.loads((copy / "heads" / "tone.json").read_text())
    for changes in ({"width": 2, "weight": [[0, 0], [0, 0]]}, {"name": "other"}):
        (copy / "heads" / "tone.json").write_text(json.dumps(head | changes))
        with pytest.raises(ModelUnusable, match=r"heads/tone\.json is the head .* of width"):
            tinyllm.load(copy, verify=False)


# ------------------------------------------------------------------------------------ generate


@pytest.mark.parametrize("form", FORMS)
def test_the_same_text_every_time(
    asked: World, models: dict[str, Model], form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process twice, by the command, and by the command in another process."""
    first, second = (generate(models[form], PROMPT) for _ in range(2))
    assert first == second
    assert (len(first.tokens), first.ended_by) == (16, "length")
    code, out, err = said(capsys, "generate", place(asked, form), PROMPT, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out) == {
        "text": first.text,
        "tokens": list(first.tokens),
        "ended_by": "length",
    }
    again = subprocess.run(
        [sys.executable, "-m", "tinyllm", "generate", str(place(asked, form)), PROMPT],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert again.stdout == first.text + "\n"


def test_a_checkpoint_says_what_its_f32_release_says(models: dict[str, Model]) -> None:
    assert generate(models["f32"], PROMPT) == generate(models["checkpoint"], PROMPT)


def test_greedy_is_the_likeliest_token_each_time(models: dict[str, Model]) -> None:
    model = models["int4"]
    how = GenerationConfig(temperature=0, max_new_tokens=5)
    done = generate(model, PROMPT, settings=how)
    other_seed = GenerationConfig(temperature=0, max_new_tokens=5, seed=99)
    assert generate(model, PROMPT, settings=other_seed) == done
    assert model.tokenizer is not None
    library = Tokenizer.from_str(model.tokenizer.decode())
    ids = library.encode(PROMPT, add_special_tokens=False).ids
    for token in done.tokens:
        scores = logits(model.parameters, torch.tensor([ids]), config=model.config)[0, -1]
        assert token == int(scores.argmax())
        ids.append(token)
    assert done.text == library.decode(list(done.tokens))


def test_the_seed_decides(models: dict[str, Model]) -> None:
    def of(seed: int) -> tuple[int, ...]:
        return generate(models["f32"], PROMPT, settings=GenerationConfig(seed=seed)).tokens

    assert len(of(1)) == 256
    assert of(1) == of(1)
    assert of(1) != of(2)


def test_a_prompt_longer_than_the_context_counts_by_its_end(models: dict[str, Model]) -> None:
    long = "x" * 200 + " " + PROMPT * 20
    how = GenerationConfig(max_new_tokens=3, temperature=0)
    done = generate(models["f32"], long, settings=how)
    assert done == generate(models["f32"], "y" * 100 + long, settings=how)


def test_a_stop_text_ends_the_output_before_it(models: dict[str, Model]) -> None:
    whole = generate(models["f32"], PROMPT)
    stop = whole.text[5:8]
    done = generate(models["f32"], PROMPT, settings=GenerationConfig(
        max_new_tokens=16, temperature=0.8, top_k=40, top_p=0.95, seed=7, stop=(stop, "never")
    ))  # fmt: skip
    assert done.ended_by == "stop"
    assert done.text == whole.text[: whole.text.index(stop)]
    assert done.tokens == whole.tokens[: len(done.tokens)]


def test_the_settings_of_the_command_come_before_the_models(
    asked: World, models: dict[str, Model], capsys: pytest.CaptureFixture[str]
) -> None:
    how = GenerationConfig(max_new_tokens=4, temperature=1.5, top_k=9, top_p=0.5, seed=3)
    words = ["--max-new-tokens", 4, "--temperature", 1.5, "--top-k", 9, "--top-p", 0.5]
    code, out, _ = said(
        capsys, "generate", place(asked, "f32"), PROMPT, *words, "--seed", 3, "--json"
    )
    assert code == 0
    assert tuple(json.loads(out)["tokens"]) == generate(models["f32"], PROMPT, settings=how).tokens
    for bad in (["--top-p", "0"], ["--temperature", "-1"], ["--max-new-tokens", "0"]):
        code, out, err = said(capsys, "generate", place(asked, "f32"), PROMPT, *bad)
        assert (code, out) == (2, "")
        assert err.startswith("tinyllm: error: generation settings: ")


def test_an_empty_prompt_is_a_usage_error(asked: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "generate", place(asked, "f32"), "")
    assert code == 2
    assert "the text is empty" in err


def test_a_chat_goes_through_the_template(
    asked: World, models: dict[str, Model], capsys: pytest.CaptureFixture[str]
) -> None:
    model = models["int4"]
    assert model.chat is not None
    text = chat.render(model.chat.chat_template, [{"role": "user", "content": PROMPT}])
    assert text == f"user: {PROMPT}\nassistant:"
    expected = generate(model, text)
    assert generate(model, PROMPT, as_chat=True) == expected
    code, out, _ = said(capsys, "generate", place(asked, "int4"), PROMPT, "--chat")
    assert (code, out) == (0, expected.text + "\n")
    code, _, err = said(capsys, "generate", place(asked, "checkpoint"), PROMPT, "--chat")
    assert (code, "has no chat template" in err) == (2, True)


def test_a_model_of_bytes_says_text_whatever_it_says(tmp_path: Path) -> None:
    """Bytes that are no UTF-8 are shown as such, and a prompt may hold any."""
    assert runs.train(tmp_path, "adamw").code == 0
    latest = (runs.ckpt(tmp_path) / "LATEST").read_text().strip()
    model = tinyllm.load(runs.ckpt(tmp_path) / latest)
    assert model.tokenizer is None
    done = generate(model, "\udcff\u00e9", settings=GenerationConfig(max_new_tokens=40, seed=1))
    assert bytes(done.tokens).decode("utf-8", "replace") == done.text


# ------------------------------------------------------------------------------------ classify


@pytest.mark.parametrize("form", DTYPES)
def test_a_head_is_weight_times_embedding_plus_bias(models: dict[str, Model], form: str) -> None:
    model = models[form]
    head = model.heads["tone"]
    assert model.tokenizer is not None
    ids = Tokenizer.from_str(model.tokenizer.decode()).encode(PROMPT).ids
    states = hidden(model.parameters, torch.tensor([ids]), config=model.config)[0].double()
    for pooling, expected in (("mean", states.mean(0)), ("last", states[-1])):
        found = embed(model, PROMPT, pooling=pooling)
        assert found.tolist() == pytest.approx(expected.tolist(), abs=1e-6)
    scores = np.array(head.weight) @ states.mean(0).numpy() + np.array(head.bias)
    shares = np.exp(scores) / np.exp(scores).sum()
    assert classify(model, PROMPT) == pytest.approx(
        dict(zip(["calm", "loud"], shares.tolist(), strict=True)), abs=1e-6
    )


def test_classify_prints_the_likeliest_first(
    asked: World, models: dict[str, Model], capsys: pytest.CaptureFixture[str]
) -> None:
    shares = classify(models["int4"], PROMPT, head="tone")
    code, out, _ = said(capsys, "classify", place(asked, "int4"), PROMPT)
    assert code == 0
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    assert out == "".join(f"{share:.6f}  {label}\n" for label, share in ordered)
    code, out, _ = said(capsys, "classify", place(asked, "int4"), PROMPT, "--json")
    assert json.loads(out) == shares
    assert list(json.loads(out)) == ["calm", "loud"]
    assert sum(shares.values()) == pytest.approx(1, abs=1e-12)


def test_a_head_that_is_not_there(asked: World, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = said(capsys, "classify", place(asked, "f32"), PROMPT, "--head", "x")
    assert (code, "has no head x (there are: tone)" in err) == (2, True)
    code, _, err = said(capsys, "classify", place(asked, "checkpoint"), PROMPT)
    assert (code, "name one of its heads with --head (there are: none)" in err) == (2, True)


def test_with_two_heads_one_must_be_named(asked: World, tmp_path: Path) -> None:
    head = json.loads(asked.request.heads[0].read_text())
    second = tmp_path / "last.json"
    second.write_text(json.dumps(head | {"name": "ending", "pooling": "last"}))
    asked.release(version="two", heads=(*asked.request.heads, second))
    model = tinyllm.load(place(asked, "two"))
    with pytest.raises(SpecError, match=r"name one of its heads .*ending, tone"):
        classify(model, PROMPT)
    assert classify(model, PROMPT, head="ending") != classify(model, PROMPT, head="tone")


# ---------------------------------------------------------------------------------- the commands


def test_a_directory_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("generate", "classify"):
        code, out, err = said(capsys, command, tmp_path, "x")
        assert (code, out) == (8, "")
        assert err == f"tinyllm: error: {tmp_path} does not verify: MANIFEST.json: is missing\n"
        code, _, err = said(capsys, command, tmp_path / "absent", "x")
        assert (code, err) == (
            8,
            f"tinyllm: error: {tmp_path}/absent does not verify: is missing\n",
        )


def test_release_does_not_load_torch(asked: World) -> None:
    program = (
        "import sys\nfrom tinyllm.cli import main\n"
        "code = main(sys.argv[1:])\nprint(code, 'torch' in sys.modules)\n"
    )
    for dtype in DTYPES:
        ended = subprocess.run(
            [
                sys.executable,
                "-c",
                program,
                *asked.words("--dtype", dtype, "--version", f"t{dtype}"),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert ended.stdout.splitlines()[-1] == "0 False", ended.stderr


def test_usage_of_release(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, says in [
        (["release"], "the following arguments are required: --run-id, --model-id, --version"),
        (["release", "--dtype", "int8"], "argument --dtype: invalid choice: 'int8'"),
        (["release", "--group-size", "16"], "argument --group-size: invalid choice: 16"),
        (["release", "--step", "x"], "argument --step: invalid int value: 'x'"),
    ]:
        with pytest.raises(SystemExit) as ended:
            main(argv)
        assert ended.value.code == 2
        assert says in capsys.readouterr().err
