"""The result object, and the figures that benchmarks are made of."""

from __future__ import annotations

import json

import pytest

from bench.result import BenchError, BenchResult, interleave, spread


def test_spread_of_an_even_number_of_samples() -> None:
    assert spread([4.0, 1.0, 3.0, 2.0]) == {"median": 2.5, "min": 1.0, "max": 4.0, "count": 4}


def test_spread_refuses_no_samples() -> None:
    with pytest.raises(BenchError, match="no samples"):
        spread([])


def test_interleave_takes_turns() -> None:
    order: list[str] = []

    def side(name: str) -> list[float]:
        order.append(name)
        return [float(len(order))]

    samples = interleave(3, {"a": lambda: side("a"), "b": lambda: side("b")})
    assert order == ["a", "b"] * 3
    assert samples == {"a": [1.0, 3.0, 5.0], "b": [2.0, 4.0, 6.0]}


def test_result_has_the_documented_keys_in_order() -> None:
    result = json.loads(BenchResult("x", 1.234567, None, None, "s", {"n": 3}).to_json())
    assert list(result) == ["bench", "ours", "peer", "ratio", "unit", "details"]
    assert result["ours"] == 1.2346
    assert result["details"]["n"] == 3
    assert result["details"]["machine"]["versions"]["apache-tvm"]


def test_result_for_people() -> None:
    assert BenchResult("x", 1.234567, 2.5, 2.02, "s").to_text().startswith("x: ours 1.235 s, peer 2.5 s, ratio 2.02\n{")
    assert BenchResult("x", 1.0, None, None, "s").to_text().startswith("x: ours 1 s\n")
    assert BenchResult("x", None, None, None, "s", {"reason": "no GPU"}).to_text() == "x: skipped: no GPU"
