"""The methods on our runtime, by curves made by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import click
import pytest

from bench.options import methods_named
from bench.result import BenchError
from bench.tuning import methods
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
    assert found == {
        "by_model": {MODEL: 50.0 / 10.0},
        "spread": {MODEL: [50.0 / 20.0, 50.0 / 5.0]},
        "mean": pytest.approx(5.0),
    }
    assert less({MODEL: {"quick": quick, "slow": BASELINE}}, "quick", "slow", "trials")["mean"] == pytest.approx(5.0)


def test_most_seeds_must_reach_it() -> None:
    lame = [_curve((1.0, 1.0)), _curve((60.0, 5.11)), _curve((60.0, 5.11))]
    curves = {"a:a": {"lame": lame, "slow": BASELINE}, "b:b": {"lame": BASELINE, "slow": BASELINE}}
    found = less(curves, "lame", "slow", "secs")
    assert (found["by_model"], found["mean"]) == ({"a:a": 0.0, "b:b": 1.0}, 0.0)
    assert found["spread"]["a:a"] == [0.0, 50.0]


def test_two_per_cent_more_is_as_good() -> None:
    near = [_curve((10.0, 5.09))] * 3
    assert less({MODEL: {"near": near, "slow": BASELINE}}, "near", "slow", "secs")["mean"] == pytest.approx(5.0)


def test_all_methods_have_a_seed_before_any_has_a_second() -> None:
    found = list(runs(["a.py:a", "b.py:b"], ["fleet", "pruner:offline"], 2, 30.0, None, WORK))
    assert [piece.name for piece in found[:5]] == [
        "a.py:a: fleet, seed 0, 30 s",
        "a.py:a: pruner:offline, seed 0, 30 s",
        "b.py:b: fleet, seed 0, 30 s",
        "b.py:b: pruner:offline, seed 0, 30 s",
        "a.py:a: fleet, seed 1, 30 s",
    ]
    assert len({piece.folder for piece in found}) == 8
    (limited,) = runs(["a.py:a"], ["fleet"], 1, 600.0, 200, WORK)
    assert limited.name == "a.py:a: fleet, seed 0, 200 trials"


def test_nothing_is_known_before_but_the_model_that_a_method_adapts(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, tuple[list[str], dict[str, str]]] = {}

    def run_json(command: list[str], *, env: dict[str, str], timeout_secs: float) -> dict[str, Any]:
        assert timeout_secs > 30.0
        asked[command[command.index("--method") + 1]] = (command, env)
        return {}

    monkeypatch.setattr(methods, "run_json", run_json)
    for piece in runs(["a.py:a"], ["fleet", "pruner", "moa-pruner", "moa-pruner:offline"], 1, 30.0, 200, WORK):
        piece.take()
    assert all(command[command.index("--trials") + 1] == "200" for command, _ in asked.values())
    without = [method for method, (command, _) in asked.items() if "--no-pretrained" in command]
    assert without == ["fleet", "pruner"]
    assert {(env["FLEET_TUNE_STORE"], env["FLEET_TUNE_SHIPPED"]) for _, env in asked.values()} == {("", "")}


def _tuned(piece: MethodRun) -> dict[str, Any]:
    secs = {"adatune": 10.0, "autotvm": 40.0, "random": 60.0}[piece.method]
    points = [(secs + piece.seed + at, 9.0 - 4.0 * at / 150) for at in range(151)]
    tasks = [{"trials": 1500}, {"trials": 64}, {"trials": 36}]
    return {**_curve(*points), "tuned_secs": 2.0, "trials": 1600, "task_results": tasks}


def test_an_interrupted_comparison_goes_on_and_ends_with_tables(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(MethodRun, "take", _tuned)
    names = ("adatune", "autotvm", "random")
    assert run([MODEL], names, 3, 30.0, None, tmp_path, True, 2, 1e9) is None
    assert capsys.readouterr().err.count("\n  net.py:net: ") == 7
    found = run([MODEL], names, 3, 30.0, None, tmp_path, True, 0, 1e9)
    assert found is not None
    assert found.ours == pytest.approx(1877.0 / 1577.0, rel=0.01)
    details = json.loads(found.to_json())["details"]
    assert [claim["method"] for claim in details["claims"]] == ["adatune"]
    curve = details["models"][MODEL]["adatune"]["curves"][0]
    assert (len(curve), curve[0]["secs"], curve[-1]["latency"]) == (51, 10.0, 5.0)
    text = table(json.loads(found.to_json()))
    assert "| AdaTune, figure 6 and table 3 | adatune against autotvm |" in text
    assert "| `net`, random | 1600 | 1 of 3 | 5000.00 | 2000.00 |" in text


def test_what_began_with_a_model_is_called_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    curve = {
        **_curve((10.0, 9.0), (20.0, 5.0)),
        "tuned_secs": 2.0,
        "trials": 16,
        "task_results": [{"trials": 11}, {"trials": 5}],
    }
    monkeypatch.setattr(MethodRun, "take", lambda _piece: curve)
    found = run([MODEL], ("moa-pruner:equation-1", "ansor:rounds-10:joint"), 1, 30.0, None, tmp_path, True, 0, math.inf)
    assert found is not None
    details = json.loads(found.to_json())["details"]
    assert details["pretrained"] == ["moa-pruner:equation-1"]
    text = table({"details": details})
    assert "| 1 seed of 30 s, no records |" in text
    assert "| `net`, moa-pruner:equation-1, pre-trained | 16 | 1 of 2 |" in text
    assert "| `net`, ansor:rounds-10:joint | 16 | 1 of 2 |" in text
    claim = (
        "| Pruner, section 1 | moa-pruner:equation-1, pre-trained against ansor:rounds-10:joint | 4.82 times less time"
    )
    assert f"{claim}, on GPUs | 1.00 | net 1.00 (1.00 to 1.00) | 1.00 |" in text
    assert "| moa-pruner:equation-1, pre-trained |  | 1.00 |" in text
    assert "from nothing" not in text


def test_one_method_is_no_comparison() -> None:
    with pytest.raises(BenchError, match="two methods"):
        run([MODEL], ["fleet"], 1, 1.0, None, WORK, True, 0, 1e9)


def test_unknown_methods_are_refused_by_name() -> None:
    option = next(each for each in BENCHMARK.options if each.name == "methods")
    context = click.Context(click.Command("methods"))
    assert methods_named(context, option, "fleet,ansor:offline") == ("fleet", "ansor:offline")
    with pytest.raises(click.BadParameter, match="there is no method 'annealing': choose of fleet"):
        methods_named(context, option, "fleet,annealing")
