"""Names: what is a step, an id, our own temporary name, or somebody else's."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinyllm.errors import SpecError
from tinyllm.paths import (
    aside_name,
    check_id,
    classify,
    model_dir,
    parse_step_name,
    run_dir,
    step_name,
)


@pytest.mark.parametrize("text", ["a", "0", "my_step_exp-3", "A.b-c_d", "x" * 64])
def test_an_id_of_letters_digits_and_three_signs_is_taken(text: str) -> None:
    assert check_id("run id", text) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "..",
        ".a",
        "-a",
        "_a",
        "a/b",
        "../a",
        "/a",
        "a\\b",
        "a b",
        "a\n",
        "ä",
        "x" * 65,
        "\0",
    ],
)
def test_any_other_id_is_refused_before_a_path_is_made(text: str) -> None:
    with pytest.raises(SpecError, match="run id") as caught:
        run_dir(Path("/artifacts"), text)
    assert caught.value.exit_code == 2


def test_runs_and_models_lie_below_the_artifacts() -> None:
    assert run_dir(Path("/a"), "r") == Path("/a/runs/r")
    assert model_dir(Path("/a"), "m", "1.0") == Path("/a/models/m/1.0")


@given(st.integers(0, 999_999))
def test_a_step_name_has_six_digits_and_is_read_back(step: int) -> None:
    name = step_name(step)
    assert len(name) == len("step-000500")
    assert parse_step_name(name) == step


@pytest.mark.parametrize("step", [-1, 1_000_000])
def test_a_step_that_needs_other_than_six_digits_has_no_name(step: int) -> None:
    with pytest.raises(ValueError, match="six digits"):
        step_name(step)


@pytest.mark.parametrize(
    "name",
    [
        "step-",
        "step-old",
        "step-30",
        "step-0100000",
        "backup-step-000030",
        "step-000030.tmp",
        "step-000030/",
        "STEP-000030",
        "step-٠٠٠٠٣٠",
        "step-+00030",
        "step_000030",
        ".nfs000001",
        "step-000030.backup",
        "",
        "step-000030\n",
    ],
)
def test_only_the_exact_form_is_a_step(name: str) -> None:
    assert parse_step_name(name) is None


def test_a_listing_tells_steps_temporaries_and_strays_apart_and_orders_by_number() -> None:
    listing = classify(
        [
            "step-900000",
            "step-100000",
            "step-0100000",
            "LATEST",
            "LATEST.tmp",
            "step-000008.tmp",
            "tmp",
            "step-8.tmp",
            "step-000009.aside-2.tmp",
            "step-old",
            ".nfs000001",
            "lost+found",
            "step-000008.tmp.bak",
            "notes.tmp",
        ]
    )
    assert listing.steps == (100_000, 900_000)
    assert listing.temporary == ("LATEST.tmp", "step-000008.tmp", "step-000009.aside-2.tmp")
    assert listing.strays == (
        ".nfs000001",
        "lost+found",
        "notes.tmp",
        "step-000008.tmp.bak",
        "step-0100000",
        "step-8.tmp",
        "step-old",
        "tmp",
    )


def test_an_aside_name_is_ours_and_not_taken() -> None:
    first = aside_name("step-000008", [])
    second = aside_name("step-000008.tmp", [first])
    assert (first, second) == ("step-000008.aside-1.tmp", "step-000008.aside-2.tmp")
    assert classify([first, second]).temporary == (first, second)
