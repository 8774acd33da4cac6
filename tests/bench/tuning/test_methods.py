"""The methods on our runtime, by curves made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest

from bench.result import BenchError
from bench.tuning import methods
from bench.tuning.method_curves import draw
from bench.tuning.methods import BENCHMARK, MethodRun, less, run, runs, table

MODEL = "net.py:net"
WORK = Path("work")


def _curve(*points: tuple[float, float]) -> dict[str, Any]:
    """Points of seconds and latency; ten trials a second."""
    return {"curve": [{"secs": secs, "trials": 10 * secs, "latency": latency} for secs, latency in points]}


BASELINE = [_curve((1.0, 9.0), (40.0, 5.0), (60.0, 5.0)), _curve((1.0, 9.0), (50.0, 4.0)), _curve((20.0, 6.0))]
"""Three seeds: their last latencies are 5, 4 and 6, and they need 40, 50 and for ever for the middle one."""


def test_the_baseline_sets_the_latency_and_its_own_time() -> None:
    quick = [_curve((2.0, 8.0), (10.0, 5.0)), _curve((5.0, 4.0)), _curve((20.0, 5.0))]
    found = less({MODEL: {"quick": quick, "slow": BASELINE}}, "quick", "slow", "secs")
    assert found == {"by_model": {MODEL: 50.0 / 10.0}, "mean": pytest.approx(5.0)}
    assert less({MODEL: {"quick": quick, "slow": BASELINE}}, "quick", "slow", "trials")["mean"] == pytest.approx(5.0)


def test_most_seeds_must_reach_it() -> None:
    lame = [_curve((1.0, 1.0)), _curve((60.0, 5.1)), _curve((60.0, 5.1))]
    curves = {"a:a": {"lame": lame, "slow": BASELINE}, "b:b": {"lame": BASELINE, "slow": BASELINE}}
    found = less(curves, "lame", "slow", "secs")
    assert found == {"by_model": {"a:a": 0.0, "b:b": 1.0}, "mean": 0.0}


def test_all_methods_have_a_seed_before_any_has_a_second() -> None:
    found = list(runs(["a.py:a", "b.py:b"], ["fleet", "pruner:offline"], 2, 30.0, WORK))
    assert [piece.name for piece in found[:5]] == [
        "a.py:a: fleet, seed 0, 30 s",
        "a.py:a: pruner:offline, seed 0, 30 s",
        "b.py:b: fleet, seed 0, 30 s",
        "b.py:b: pruner:offline, seed 0, 30 s",
        "a.py:a: fleet, seed 1, 30 s",
    ]
    assert len({piece.folder for piece in found}) == 8


def _tuned(piece: MethodRun) -> dict[str, Any]:
    secs = {"adatune": 10.0, "autotvm": 40.0, "random": 60.0}[piece.method]
    points = [(secs + piece.seed + at, 9.0 - 4.0 * at / 150) for at in range(151)]
    return {**_curve(*points), "tuned_secs": 2.0, "trials": 1600}


def test_an_interrupted_comparison_goes_on_and_ends_with_tables_and_pictures(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MethodRun, "tune", _tuned)
    names = ("adatune", "autotvm", "random")
    assert run([MODEL], names, 3, 30.0, tmp_path, 2) is None
    assert "7 pieces are missing" in capsys.readouterr().err
    found = run([MODEL], names, 3, 30.0, tmp_path, 0)
    assert found is not None
    assert found.ours == pytest.approx(191.0 / 161.0)
    details = json.loads(found.to_json())["details"]
    assert [claim["method"] for claim in details["claims"]] == ["adatune"]
    curve = details["models"][MODEL]["adatune"]["curves"][0]
    assert (len(curve), curve[0]["secs"], curve[-1]["latency"]) == (51, 10.0, 5.0)
    text = table(json.loads(found.to_json()))
    assert "| AdaTune, figure 6 | adatune against autotvm | 1.3 to 3.9 times less time | 1.19 | net 1.19 |" in text
    assert "| `net`, random | 1600 | 5000.00 | 2000.00 |" in text


def test_a_network_has_a_picture_with_a_line_for_each_method(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    curves = [seed["curve"] for seed in BASELINE]
    (picture,) = draw({"models": {MODEL: {"pruner": {"curves": curves}}}}, tmp_path, "methods")
    assert picture == tmp_path / "methods-net-py-net.svg"
    assert picture.read_text().count("pruner") == 1


def test_one_method_is_no_comparison() -> None:
    with pytest.raises(BenchError, match="two methods"):
        run([MODEL], ["fleet"], 1, 1.0, WORK, 0)


def test_unknown_methods_are_refused_by_name() -> None:
    option = next(each for each in BENCHMARK.options if each.name == "methods")
    context = click.Context(click.Command("methods"))
    assert methods._methods(context, option, "fleet,ansor:offline") == ("fleet", "ansor:offline")
    with pytest.raises(click.BadParameter, match="there is no method 'annealing': choose of fleet"):
        methods._methods(context, option, "fleet,annealing")
