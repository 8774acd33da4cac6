"""The latency of a network: its ratio and its table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from bench.latency import network_latency
from bench.latency.latency_front import draw
from bench.latency.network_latency import BENCHMARK, front, latency_result


def test_latency_ratio_is_above_one_when_we_are_faster() -> None:
    medians = {"ours": 0.010, "eager": 0.030, "compile": 0.020, "ort": 0.005}
    result = latency_result("m", medians, {}, {})
    assert (result.ours, result.peer, result.unit) == (10.0, 5.0, "ms")
    assert result.ratio == pytest.approx(0.5), "against the fastest"
    assert result.details["ratios"] == pytest.approx({"eager": 3.0, "compile": 2.0, "ort": 0.5})


def test_a_framework_that_leaves_float32_is_no_peer_of_a_network_in_float32() -> None:
    medians = {"ours": 0.010, "ort": 0.014, "openvino": 0.006, "openvino-f32": 0.012}
    errors = {"openvino": 3e-3, "openvino-f32": 6e-7}
    sides = {side: {"relative_error": errors.get(side, 1e-6)} for side in medians}
    assert latency_result("m", medians, {}, sides).peer == 12.0
    quantised = {side: {"relative_error": 4e-2} for side in medians}
    assert latency_result("m", medians, {}, quantised).peer == 6.0


def test_slow_sides_may_run_once_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    class Side:
        ready: ClassVar[dict[str, Any]] = {"side": "ours"}

        def __init__(self, args: list[str], *, env: dict[str, str]) -> None:
            assert env["TVM_NUM_THREADS"] == args[args.index("--threads") + 1]
            asked.append(args)

        def __enter__(self) -> Side:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def ask(self, line: str) -> dict[str, list[float]]:
            return {"secs": [float(line)]}

    monkeypatch.setattr(network_latency, "Conversation", Side)
    monkeypatch.setattr(network_latency, "_SETTLE_SECS", 0.0)
    options: dict[str, Any] = {"folders": {}, "rounds": 2, "block_secs": 0.5}
    for fewest in (None, 1):
        found = network_latency.measure_sides("net", ["ours"], **options, fewest_runs=fewest)
        assert found["ours"]["secs"]["count"] == 2
    assert [args[args.index("--threads") + 2 :] for args in asked] == [[], ["--fewest-runs", "1"]]


def test_its_table() -> None:
    times = {"median": 0.0125, "min": 0.012, "max": 0.02, "count": 3}
    result = latency_result(
        "net",
        {"ours": 0.0125, "eager": 0.025, "compile": 0.02, "ort": 0.01},
        {"budget_secs": 300.0},
        {side: {"secs": times, "relative_error": 1e-6} for side in ("ours", "eager", "compile", "ort")},
    )
    text = BENCHMARK.table(json.loads(result.to_json()))
    assert "| PyTorch eager | 12.50 (12.00 to 20.00) | 2.00 | 1.0e-06 |" in text


def _in_precisions() -> dict[str, Any]:
    medians = {"ours": 0.010, "bf16": 0.006, "int8w": 0.008, "eager": 0.03, "compile": 0.02, "ort": 0.02}
    errors = {"bf16": 4e-3, "int8w": 2e-2}
    sides = {
        side: {
            "secs": {"median": secs, "min": secs, "max": secs, "count": 3},
            "relative_error": errors.get(side, 1e-6),
        }
        for side, secs in medians.items()
    }
    precisions = {"bf16": {"mean_rel_error": 1e-3}, "int8w": {"mean_rel_error": 5e-3}}
    details = {"budget_secs": 300.0, "tuning": {"mean_rel_error": 2e-7}, "precisions": precisions}
    answer: dict[str, Any] = json.loads(latency_result("net", medians, details, sides).to_json())
    return answer


def test_precisions_have_a_table_of_latency_against_error() -> None:
    result = _in_precisions()
    text = BENCHMARK.table(result)
    assert "| fleet-tune, int8w | 8.00 (8.00 to 8.00) | 0.80 | 2.0e-02 |" in text
    assert "| bf16 | 6.00 | 4.0e-03 | 1.0e-03 |" in text
    assert result["peer"] == 20.0, "our own precisions are no peers"
    assert [name for name, _, _ in front(result["details"])] == ["bf16", "int8w", "as it is"]


def test_and_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    draw(_in_precisions()["details"], tmp_path / "front.svg")
    text = (tmp_path / "front.svg").read_text()
    assert all(name in text for name in ("bf16", "int8w", "as it is"))
