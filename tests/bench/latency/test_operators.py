"""The operators benchmark: its modules compute what they say, its figures say who is behind whom."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from bench.latency.operators import BENCHMARK, operators_result, ratios, run
from bench.networks import operator_modules
from bench.networks.operator_names import operator_names
from bench.result import BenchError


def test_every_function_that_gives_an_example_is_an_operator() -> None:
    functions = inspect.getmembers(operator_modules, inspect.isfunction)
    examples = [name for name, function in functions if inspect.signature(function).return_annotation == "Example"]
    assert sorted(operator_names()) == sorted(examples)


@pytest.mark.parametrize("name", operator_names())
def test_an_operator_computes_numbers_that_tell_inputs_apart(name: str) -> None:
    module, inputs = getattr(operator_modules, name)()
    with torch.no_grad():
        output = module(*inputs)
        other = module(*(torch.roll(value, 1, -1) if value.dim() > 1 else value for value in reversed(inputs)))
    assert torch.isfinite(output).all()
    assert output.abs().max() > 0
    if output.shape == other.shape and name not in ("matrix_norm", "row_sum", "average_pool"):
        assert not torch.equal(output, other)
    again, _ = getattr(operator_modules, name)()
    for left, right in zip(module.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(left, right)


def test_the_capsules_are_matrices_that_are_multiplied() -> None:
    module, (x,) = operator_modules.conv2d_capsule()
    weight = module.conv.weight.detach().reshape(32, 4, 32, 4, 3, 3)  # out, column, in, inner, height, width
    padded = torch.nn.functional.pad(x, (0, 0, 0, 0, 1, 1, 1, 1))
    expected = sum(
        torch.einsum("nchwik,ojck->nohwij", padded[:, :, dy : dy + 16 : 2, dx : dx + 16 : 2], weight[..., dy, dx])
        for dy in range(3)
        for dx in range(3)
    )
    with torch.no_grad():
        torch.testing.assert_close(module(x), expected, rtol=1e-4, atol=1e-4)


def figures(**median_ms: float) -> dict[str, dict[str, float]]:
    return {"median_ms": median_ms, "ratios": ratios(median_ms)}


def test_an_operator_that_was_measured_is_not_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = []

    def measure(name: str, *_settings: object) -> dict[str, Any]:
        measured.append(name)
        if len(measured) == 2:
            raise BenchError("interrupted")
        return {**figures(ours=1.0, metaschedule=2.0), "failures": {}}

    monkeypatch.setattr("bench.latency.operators._operator", measure)
    settings: dict[str, Any] = {
        "budget_secs": 2.0,
        "rounds": 3,
        "block_secs": 0.1,
        "seed": 0,
        "parts": tmp_path / "new",
    }
    with pytest.raises(BenchError, match="interrupted"):
        run(["softmax", "gather"], **settings)
    result = run(["softmax", "gather"], **settings)
    assert measured == ["softmax", "gather", "gather"]
    assert list(result.details["operators"]) == ["softmax", "gather"]
    assert result.ratio == 2.0
    with pytest.raises(BenchError, match=r"softmax\.json.*--parts"):
        run(["softmax"], **{**settings, "seed": 1})


def test_who_is_behind_whom() -> None:
    result = operators_result(
        {
            "better": figures(ours=1.0, metaschedule=4.0, eager=3.0, compile=2.0, ort=0.8),
            "slower": figures(ours=4.0, metaschedule=1.0, eager=3.0, compile=2.5),
            "alone": figures(ours=1.0, eager=1.0),
            "missing": figures(metaschedule=1.0, eager=1.0),
        },
        120.0,
    )
    assert (result.ours, result.peer, result.ratio) == pytest.approx((2.0, 2.0, 1.0))
    assert result.details["slower_than_metaschedule"] == ["slower", "missing"]
    assert result.details["behind_frameworks"] == ["slower", "missing"]
    assert result.details["operators"]["better"]["ratios"] == pytest.approx(
        {"metaschedule": 0.25, "best_framework": 1.25}
    )
    rows = BENCHMARK.table(json.loads(result.to_json())).splitlines()
    assert "| `better` | 1.000 | 4.000 | 3.000 | 2.000 | 0.800 | 4.00 | 0.80 |" in rows
    assert "| `missing` | fails | 1.000 | 1.000 | fails | fails | - | - |" in rows
