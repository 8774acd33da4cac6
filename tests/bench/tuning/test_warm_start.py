"""The benchmark of warm starts: what it runs with which store, and its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from bench.tuning import warm_start
from bench.tuning.warm_start import BENCHMARK

SECS = {"median": 0.004, "min": 0.003, "max": 0.005, "count": 9}


@pytest.mark.parametrize(("warm_secs", "ratio"), [(0.0041, 3.0), (0.006, None)])
def test_a_second_network_is_warm_where_it_has_the_latency_of_the_cold_run(
    monkeypatch: pytest.MonkeyPatch, warm_secs: float, ratio: float | None
) -> None:
    runs: list[tuple[str, str, float, bool]] = []

    def run_json(args: list[str], *, env: dict[str, str], timeout_secs: float) -> dict[str, Any]:
        model, out, budget = args[2], Path(args[3]), float(args[5])
        store = env["FLEET_TUNE_STORE"]
        runs.append((model, out.name, budget, bool(store)))
        assert not store or Path(store).parent == out.parent
        assert timeout_secs > budget
        trials = 0 if out.name == "again" else 10
        figures = {"elapsed_secs": budget + 10, "trials": trials, "tuned_secs": 0.01, "untuned_secs": 0.1}
        return {**figures, "store": None, "folder": str(out)}

    def measure_sides(model: str, sides: tuple[str, ...], **how: Any) -> dict[str, Any]:
        assert model == "b.py:second"
        assert [how["folders"][side].name for side in sides] == ["cold", "warm"]
        return {"cold": {"secs": SECS}, "warm": {"secs": {**SECS, "median": warm_secs}}}

    monkeypatch.setattr(warm_start, "run_json", run_json)
    monkeypatch.setattr(warm_start, "measure_sides", measure_sides)
    result = warm_start.run("a.py:first", "b.py:second", 50.0, 5.0, 3, 1.0, 0)
    assert runs == [
        ("a.py:first", "first", 50.0, True),
        ("a.py:first", "again", 50.0, True),
        ("b.py:second", "cold", 50.0, False),
        ("b.py:second", "warm", 10.0, True),
    ]
    assert (result.ours, result.peer, result.ratio) == (20.0, 60.0, ratio)
    text = BENCHMARK.table({"details": result.details})
    assert "| the same again | 60 | 0 | 10.00 |" in text
    assert "| `b.py:second`, cold | 60 | 10 | 4.00 (3.00 to 5.00) |" in text
