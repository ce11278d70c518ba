"""The benchmarks' arithmetic exactly, and their machinery with tiny sizes; no time is judged."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.benchmarks import ALL
from harness.benchmarks.children import BenchmarkFailed, measured
from harness.benchmarks.figures import Figure, Pair, median, paired, ratio_figure, unmeasured
from harness.benchmarks.gate import gate_figure
from harness.benchmarks.kills import rate_figure
from harness.benchmarks.power import Explored, exploration_figure
from harness.benchmarks.power import rate_figure as states_figure
from harness.benchmarks.realfs import cuts_figure
from harness.benchmarks.sizes import Setting, Sizes
from harness.cli import main
from harness.commands import bench
from harness.commands.gate import smoke_configs
from harness.results import LayerCount, Result

TINY = Sizes(checkpoint_bytes=1 << 20, rounds=1, cases=1, cuts=1, files=1, busy_s=0.001)


def clock_of(*ticks: float) -> Iterator[float]:
    return iter(ticks)


def test_pairs_alternate_and_only_they_are_timed() -> None:
    done: list[str] = []
    ticks = clock_of(0, 2, 10, 11, 20, 23, 30, 34)
    pair = paired(
        lambda: done.append("first"),
        lambda: done.append("second"),
        rounds=2,
        before=lambda: done.append("before"),
        clock=lambda: next(ticks),
    )
    assert done == ["before", "first", "before", "second", "before", "second", "before", "first"]
    assert pair == Pair((2, 4), (1, 3))
    assert pair.ratio == 1.5
    assert pair.words() == "medians 3 s and 2 s of 2 (2 to 4; 1 to 3)"


def test_the_ratio_is_that_of_the_medians() -> None:
    assert Pair((1.0, 100.0, 3.0), (2.0, 2.0, 50.0)).ratio == 1.5
    with pytest.raises(ValueError, match="no values"):
        median(())


@pytest.mark.parametrize(
    ("value", "at_most", "met"),
    [(1.15, True, True), (1.16, True, False), (1.15, False, True), (1.14, False, False)],
)
def test_a_target_is_met_from_its_own_side(value: float, at_most: bool, met: bool) -> None:
    assert Figure("f", "", value, "x", target=1.15, at_most=at_most).met is met


def test_without_a_target_or_a_value_nothing_is_met_or_missed() -> None:
    assert Figure("f", "", 1.0, "x").met is None
    assert unmeasured("f", "", "needs root").met is None


def test_case_rates() -> None:
    pair = Pair((0.25, 0.25), (2.0, 3.0))
    figure = rate_figure("k", "adamw", pair, target=12.0, baseline_s=0.1)
    assert (figure.value, figure.met, figure.rounds) == (10.0, False, 2)
    assert figure.detail.startswith("4.00 and 0.40 cases a second on one worker")
    assert figure.detail.endswith("0.100 s (40% of it)")


def test_judged_states_against_process_starts() -> None:
    found = Explored(4.0, 900, 800, 20, 780, sampled=False, failed=0)
    seconds = exploration_figure(found, jobs=2)
    rate = states_figure("power-rate", "adamw", found, (9.0, 2.0, 1.0))
    assert (seconds.value, seconds.met) == (4.0, True)
    assert (
        seconds.detail
        == "900 states found, 800 distinct, 20 run for real, 780 answered by equal reads"
    )
    assert (rate.value, rate.met) == (400.0, False)  # 200 a second, 0.5 starts


def test_cuts_a_second() -> None:
    figure = cuts_figure(30, 2.0)
    assert (figure.value, figure.met) == (15.0, True)


def test_the_gate_by_layer() -> None:
    layers = {
        "kill": LayerCount(cases=10, failed=0, seconds=3.0),
        "power/xfs": LayerCount(cases=5, failed=0, seconds=7.4),
    }
    result = Result(command="gate", subject="s", verdict="pass", layers=layers, seconds=241.0)
    figure = gate_figure(result)
    assert (figure.value, figure.met) == (241.0, False)
    assert figure.what == "the whole gate: 15 cases"
    assert "power/xfs 7 s, kill 3 s; verdict pass" in figure.detail


def test_the_table() -> None:
    pair = Pair((1.0,), (1.0,))
    figures = [
        ratio_figure("save", "a save / a loop", pair, target=1.15),
        unmeasured("x", "w", "y"),
    ]
    assert bench.table(figures) == [
        "save                      1.00 x   <= 1.15  met            a save / a loop",
        "                  medians 1 s and 1 s of 1 (1 to 1; 1 to 1)",
        "x                              -   not measured            w",
        "                  y",
    ]
    missed = Figure("power-rate", "", 999.0, "x", target=1000.0, at_most=False)
    assert ">= 1,000  NOT MET" in bench.table([missed])[0]


def test_a_measuring_program_that_fails_is_an_error_with_its_words() -> None:
    with pytest.raises(BenchmarkFailed, match=r"writes ended with exit code 1:\n(.|\n)*IndexError"):
        measured("writes")


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("checkpoint", ["save", "save-memory", "verify"]),
        ("release", ["release", "release-memory"]),
        ("recording", ["recording", "recording-memory", "recording-idle"]),
        ("power-files", ["power-files-posix", "power-files-xfs"]),
        ("power-memory", ["power-memory"]),
        ("realfs", ["realfs"]),
        ("gate", ["gate"]),
    ],
)
def test_the_machinery_with_tiny_sizes(name: str, figures: list[str], tmp_path: Path) -> None:
    setting = Setting(TINY, tmp_path, smoke_configs(), gate_result=None, jobs=1)
    found = ALL[name](setting)
    assert [f.name for f in found] == figures
    if name not in ("realfs", "gate"):  # these say why when they cannot be measured here
        # Of so little memory a page more or less is all there is to see.
        assert all(f.value is not None and (f.value > 0 or f.unit == "MiB") for f in found)


def test_an_unknown_name_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "--out", str(tmp_path)]) == 2
    assert "'speed' is no benchmark; there are checkpoint," in capsys.readouterr().err


def test_the_command_writes_the_figures_and_leaves_no_scratch(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fast(setting: Setting) -> list[Figure]:
        (setting.scratch / "left").write_bytes(b"x")
        return [Figure("fast", "a thing", 3.0, "x", target=2.0)]

    def broken(setting: Setting) -> list[Figure]:
        raise OSError(28, "No space left on device", str(setting.scratch))

    monkeypatch.setattr(bench, "ALL", {"fast": fast, "broken": broken})
    assert main(["bench", "fast", "--out", str(tmp_path), "--quick"]) == 0  # not met, and still 0
    assert "<= 2  NOT MET" in capsys.readouterr().out
    report = json.loads((tmp_path / "bench.json").read_text())
    assert report["quick"] is True
    assert [(f["name"], f["value"], f["met"]) for f in report["figures"]] == [("fast", 3.0, False)]
    assert [p.name for p in tmp_path.iterdir()] == ["bench.json"]

    assert main(["bench", "--json", "--out", str(tmp_path)]) == 3
    said = capsys.readouterr()
    assert "broken: could not be run: [Errno 28] No space left on device" in said.err
    assert [f["met"] for f in json.loads(said.out)["figures"]] == [False, None]
    assert [p.name for p in tmp_path.iterdir()] == ["bench.json"]
